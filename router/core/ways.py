"""Which way a sequence goes where a pair and an aggregated worker could both take it now: the one
whose finish is predicted earlier. docs/router.md has the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.core.pace import Pace
from router.core.story import WayTaken
from router.core.values import Disaggregate, Reason, Way

MEASURE_SECONDS = 60.0
"""A way that was measured so long ago, or never, is measured again, with a prompt of no more than
common length."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Option:
    """One way that a sequence could go now."""

    way: Way
    pace: Pace
    waiting: int
    """Tokens that its prefill worker is to compute before those of the sequence."""
    tokens: int
    """Those of the sequence's prompt that are to be computed there."""
    running: int = 0
    """Sequences that are held up meanwhile, because they are decoded there."""
    flaws: tuple[int, ...] = ()
    """What speaks against its workers, the weightiest first: see Fleet."""

    def seconds(self) -> float:
        """Until the first token, and what the prompt takes of those that run there."""
        least, each = self.pace.line()
        return least + each * (self.waiting + self.tokens * (1 + self.running))


def only(option: Option) -> WayTaken:
    """The way of a sequence that has no other."""
    return _taken(option, Reason.ONLY)


def choose(options: Sequence[Option], setting: Disaggregate, now: float) -> tuple[Option, WayTaken]:
    """One of the two: a pair, and an aggregated worker."""
    pair, whole = options
    if pair.flaws != whole.flaws:
        return _told(whole if whole.flaws < pair.flaws else pair, Reason.SOUND)
    if setting != "auto":
        return _told(pair if setting == "always" else whole, Reason.SETTING)
    for option, other in ((pair, whole), (whole, pair)):
        common = not other.pace.measured or option.tokens <= other.pace.mean_tokens
        if common and now - option.pace.at >= MEASURE_SECONDS:
            option.pace.at = now
            return _told(option, Reason.MEASURE)
    if not (whole.pace.measured and pair.pace.tells_of(pair.waiting + pair.tokens)):
        return _told(pair, Reason.UNMEASURED)
    by_pair, by_whole = pair.seconds(), whole.seconds()
    chosen = whole if by_whole <= by_pair else pair
    return chosen, _taken(chosen, Reason.EARLIEST, by_pair, by_whole)


def _told(option: Option, reason: Reason) -> tuple[Option, WayTaken]:
    return option, _taken(option, reason)


def _taken(option: Option, reason: Reason, pair: float = 0.0, whole: float = 0.0) -> WayTaken:
    return WayTaken(option.way.value, reason.value, round(pair, 6), round(whole, 6))
