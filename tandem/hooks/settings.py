"""The settings of a worker's output hooks: `hooks` in its settings file.

hooks:
  workers: 0                # processes that run the chain; 0: in the worker itself
  chain:                    # in order: each hook sees what those before it let through
    - path: my_pkg.guard:Guard      # or the name of a ready-made hook: banned_phrases
      name: guard                   # in metrics and logs; default: the path
      config: {phrases: [x]}        # keyword arguments of the class
      timeout_ms: 1000
      on_error: closed              # closed: the request fails; open: the chunk passes
      shadow: false                 # true: verdicts are counted and logged, never applied
      phases: [prefill, decode]
      models: []                    # names of served models; empty: every one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from tandem.errors import ConfigError
from tandem.hooks.contract import Phase

OnError = Literal["closed", "open"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")
MAX_WORKERS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class HookEntry:
    """One hook of the chain. The types of its fields are checked by `parse`."""

    path: str
    """Import path of the class, or the name of a ready-made hook (tandem.hooks.ready)."""
    name: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    timeout_ms: float = 1000.0
    on_error: OnError = "closed"
    shadow: bool = False
    phases: tuple[Phase, ...] = PHASES
    models: tuple[str, ...] = ()

    def applies(self, phase: Phase, model: str) -> bool:
        """Whether a worker of this phase, serving this model, runs it."""
        return phase in self.phases and (not self.models or model in self.models)


@dataclass(frozen=True, kw_only=True, slots=True)
class HookSettings:
    """All hooks of a worker."""

    chain: tuple[HookEntry, ...] = ()
    workers: int = 0

    def for_worker(self, phase: Phase, model: str) -> HookSettings:
        """With only the entries that a worker of this phase and model runs."""
        chain = tuple(entry for entry in self.chain if entry.applies(phase, model))
        return HookSettings(chain=chain, workers=self.workers)


def parse(hook: str, hooks: Mapping[str, Any]) -> HookSettings:
    """From the worker's settings: `hook`, one import path, and `hooks` as above; not both.

    Raises ConfigError, naming the entry and the field.
    """
    if hook and hooks:
        raise ConfigError("hook and hooks are both set: name the class in hooks.chain")
    if hook:
        return HookSettings(chain=(HookEntry(path=hook, name=hook),))
    _refuse_unknown("hooks", hooks, {"workers", "chain"})
    workers = hooks.get("workers", 0)
    if type(workers) is not int or not 0 <= workers <= MAX_WORKERS:
        raise ConfigError(f"hooks.workers must be 0 to {MAX_WORKERS}, not {workers!r}")
    chain = hooks.get("chain", [])
    if not isinstance(chain, list):
        raise ConfigError(f"hooks.chain must be a list of hooks, not {chain!r}")
    entries = tuple(_entry(f"hooks.chain[{place}]", given) for place, given in enumerate(chain))
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"hooks.chain has two hooks named {name!r}: give each its own name")
    return HookSettings(chain=entries, workers=workers)


def _entry(where: str, given: Any) -> HookEntry:
    if isinstance(given, str):
        given = {"path": given}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} must be a mapping with a path, not {given!r}")
    _refuse_unknown(where, given, {known.name for known in fields(HookEntry)})
    path = given.get("path")
    if not isinstance(path, str) or not path:
        raise ConfigError(f"{where}.path must be an import path, not {path!r}")
    name = given.get("name", path)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}.name must be a text, not {name!r}")
    config = given.get("config", {})
    if not isinstance(config, Mapping) or not all(isinstance(key, str) for key in config):
        raise ConfigError(f"{where}.config must be a mapping of keyword arguments, not {config!r}")
    timeout = given.get("timeout_ms", 1000.0)
    if type(timeout) not in (int, float) or not 0 < timeout <= 3_600_000:
        raise ConfigError(f"{where}.timeout_ms must be above 0 and finite, not {timeout!r}")
    on_error = given.get("on_error", "closed")
    if on_error not in ("closed", "open"):
        raise ConfigError(f"{where}.on_error must be closed or open, not {on_error!r}")
    shadow = given.get("shadow", False)
    if not isinstance(shadow, bool):
        raise ConfigError(f"{where}.shadow must be true or false, not {shadow!r}")
    phases = _names(where, "phases", given.get("phases", list(PHASES)))
    if not phases or not set(phases) <= set(PHASES):
        raise ConfigError(f"{where}.phases must be of prefill and decode, not {list(phases)!r}")
    return HookEntry(
        path=path,
        name=name,
        config=dict(config),
        timeout_ms=float(timeout),
        on_error=on_error,
        shadow=shadow,
        phases=tuple(phase for phase in PHASES if phase in phases),
        models=_names(where, "models", given.get("models", [])),
    )


def _names(where: str, key: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"{where}.{key} must be a list of names, not {given!r}")
    return tuple(given)


def _refuse_unknown(where: str, given: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(map(str, set(given) - known))
    if unknown:
        raise ConfigError(
            f"{where} has no {', '.join(unknown)}; it takes {', '.join(sorted(known))}"
        )
