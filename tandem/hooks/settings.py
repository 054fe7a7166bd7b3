"""The settings of a worker's output hooks: `hooks` in its settings file.

hooks:
  workers: 0                # processes that run the chain; 0: in the worker itself
  memory_mb: 0              # of each such process; one that needs more is replaced; 0: any
  chain:                    # in order: each hook sees what those before it let through
    - path: my_pkg.guard:Guard      # or a name that a package offers: banned_phrases
      name: guard                   # in metrics and logs; default: the path
      config: {phrases: [x]}        # keyword arguments of the class
      timeout_ms: 1000
      on_error: closed              # closed: the request fails; open: the chunk passes
      shadow: false                 # true: verdicts are counted and logged, never applied
      max_added_chars: 1048576      # so much more text than came may be shown of an output
      phases: [prefill, decode]
      models: []                    # names of served models; empty: every one
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from tandem.errors import ConfigError
from tandem.hooks.audit.settings import AuditSettings
from tandem.hooks.contract import Phase
from tandem.settings_file import read_section

OnError = Literal["closed", "open"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")
MAX_WORKERS = 256
MIN_MEMORY_MB = 128
"""What a process needs that does nothing, with room for a simple hook."""
MAX_TIMEOUT_MS = 3_600_000
MAX_TEXT_CHARS = 8 * 1024 * 1024
"""The most text of one verdict: as UTF-8 it is half of what a process of the pool may say."""
Name = Annotated[str, Meta(min_length=1)]


class HookEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One hook of the chain."""

    path: Name
    """Import path of the class, or a name that an installed package offers (GROUP in loader.py)."""
    name: str = ""
    """In metrics and logs."""
    config: dict[str, Any] = {}
    timeout_ms: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_MS)] = 1000.0
    on_error: OnError = "closed"
    shadow: bool = False
    max_added_chars: Annotated[int, Meta(ge=0, le=MAX_TEXT_CHARS)] = 1024 * 1024
    """What the hook shows of an output may have so many characters more than what came to it."""
    phases: Annotated[tuple[Phase, ...], Meta(min_length=1)] = PHASES
    models: tuple[Name, ...] = ()

    def applies(self, phase: Phase, model: str) -> bool:
        """Whether a worker of this phase, serving this model, runs it."""
        return phase in self.phases and (not self.models or model in self.models)


class Section(Struct, forbid_unknown_fields=True):
    """What a settings file may say."""

    workers: Annotated[int, Meta(ge=0, le=MAX_WORKERS)] = 0
    memory_mb: Annotated[int, Meta(ge=0)] = 0
    chain: tuple[str | HookEntry, ...] = ()


class HookSettings(Struct, frozen=True, kw_only=True):
    """All hooks of a worker."""

    chain: tuple[HookEntry, ...] = ()
    workers: int = 0
    memory_mb: int = 0
    audit: AuditSettings | None = None
    """Where decisions are written down; None: nowhere."""
    worker: str = ""
    """The worker's name, for the audit log."""

    def for_worker(self, phase: Phase, model: str) -> HookSettings:
        """With only the entries that a worker of this phase and model runs."""
        chain = tuple(entry for entry in self.chain if entry.applies(phase, model))
        return replace(self, chain=chain)


def parse(hook: str, hooks: Mapping[str, Any]) -> HookSettings:
    """From the worker's settings: `hook`, one import path, and `hooks` as above; not both.

    Raises ConfigError, naming the entry and the field.
    """
    if hook and hooks:
        raise ConfigError("hook and hooks are both set: name the class in hooks.chain")
    section = read_section(Section, "hooks", hooks)
    if 0 < section.memory_mb < MIN_MEMORY_MB:
        raise ConfigError(f"hooks.memory_mb must be 0 (no limit) or at least {MIN_MEMORY_MB}")
    if section.memory_mb and not section.workers:
        raise ConfigError("hooks.memory_mb limits the processes of hooks.workers, which is 0")
    chain = tuple(map(_named, (hook,) if hook else section.chain))
    names = [entry.name for entry in chain]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"hooks.chain has two hooks named {doubled!r}: give each its own name")
    return HookSettings(chain=chain, workers=section.workers, memory_mb=section.memory_mb)


def _named(given: str | HookEntry) -> HookEntry:
    entry = HookEntry(path=given) if isinstance(given, str) else given
    return entry if entry.name else replace(entry, name=entry.path)
