"""The settings of a worker's classifiers: `classifiers` in its settings file.

classifiers:
  hold_back: none           # what waits for a judgement: none (the last chunk), window, all
  window_tokens: 64         # of hold_back: window
  refusal: "…"              # shown where a classifier blocks and brings no replacement
  max_concurrency: 256      # calls of one classifier at a time; others wait within their timeout
  regenerate: null          # off; {times: 1, temperature: 0} tries again before it blocks
  logprobs: false           # classifiers are given the log-probability of each token
  plugins: []               # installed packages that register classifiers by code
  entries:
    - path: my_pkg.toxicity:Toxicity    # or a name that a package offers: litellm, …
      name: toxicity                    # default: the class's own, or the path
      blocking: true                    # default: the class's own
      timeout_ms: 500                   # default: the class's own, or 1000
      config: {threshold: 0.9}          # keyword arguments of the class
      models: []                        # names of served models; empty: every one
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from tandem.errors import ConfigError
from tandem.hooks.settings import MAX_TIMEOUT_MS, Name
from tandem.sampling import (
    REGENERATED,
    MinP,
    Penalty,
    RepetitionPenalty,
    Seed,
    Temperature,
    TopK,
    TopP,
)
from tandem.settings_file import read_section

HoldBack = Literal["none", "window", "all"]
REFUSAL = "I can't help with that."
MAX_REGENERATIONS = 3


class ClassifierEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One classifier. None: as its class says."""

    path: Name
    """Import path of the class, or a name that an installed package offers (GROUP in loader.py)."""
    name: Name | None = None
    blocking: bool | None = None
    timeout_ms: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_MS)] | None = None
    config: dict[str, Any] = {}
    models: tuple[Name, ...] = ()

    def applies(self, model: str) -> bool:
        """Whether a worker that serves this model runs it."""
        return not self.models or model in self.models


class Resampling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling parameters of another try. None: as before."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Seed | None = None


class RegenerateSettings(Resampling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often, and with which other sampling parameters, a blocked output is generated again
    before its replacement is shown. None: as the client asked.
    """

    times: Annotated[int, Meta(ge=1, le=MAX_REGENERATIONS)] = 1
    when: Literal["blocked", "asked"] = "blocked"
    """`asked`: only where the classifier that blocks asks for it."""
    may_set: dict[str, tuple[float, float] | None] = {}
    """Parameters that the classifier that blocks may set otherwise, each with the lowest and the
    highest value; None: as clients may set it.
    """

    def allows(self, sampling: Resampling) -> bool:
        """Whether a classifier may ask for another try that is sampled so."""
        for name in REGENERATED:
            value = getattr(sampling, name)
            if value is not None and not self._allows(name, value):
                return False
        return True

    def _allows(self, name: str, value: float) -> bool:
        low, high = self.may_set.get(name, _NEVER) or _ALWAYS
        return low <= value <= high


_NEVER, _ALWAYS = (1.0, 0.0), (-math.inf, math.inf)


class ClassifierSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All classifiers of a worker."""

    hold_back: HoldBack = "none"
    window_tokens: Annotated[int, Meta(ge=1, le=4096)] = 64
    refusal: Annotated[str, Meta(min_length=1)] = REFUSAL
    max_concurrency: Annotated[int, Meta(ge=1, le=65_536)] = 256
    regenerate: RegenerateSettings | None = None
    """None: off."""
    logprobs: bool = False
    """Both phases have their engines say the log-probability of each token, for classifiers."""
    plugins: tuple[Name, ...] = ()
    entries: tuple[ClassifierEntry, ...] = ()


def parse(given: Mapping[str, Any]) -> ClassifierSettings:
    """From `classifiers` as above. Raises ConfigError, naming the entry and the field."""
    settings = read_section(ClassifierSettings, "classifiers", _spelled_out(given))
    if settings.regenerate and settings.hold_back != "all":
        raise ConfigError(
            "classifiers.regenerate needs hold_back: all: shown output cannot be made again"
        )
    if settings.regenerate:
        _check_may_set(settings.regenerate.may_set)
    return settings


def _check_may_set(ranges: Mapping[str, tuple[float, float] | None]) -> None:
    for name, bounds in ranges.items():
        where = f"classifiers.regenerate.may_set.{name}"
        if name not in REGENERATED:
            raise ConfigError(f"{where}: no such parameter; there are {', '.join(REGENERATED)}")
        if bounds is not None and not bounds[0] <= bounds[1]:
            raise ConfigError(f"{where}: the lowest value comes first, then the highest")


def _spelled_out(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """An entry that is a text names its path."""
    entries = given.get("entries")
    if not isinstance(entries, list):
        return given
    spelled_out = [{"path": entry} if isinstance(entry, str) else entry for entry in entries]
    return {**given, "entries": spelled_out}
