"""Which way a sequence goes where a pair and an aggregated worker could both take it now: the one
whose finish is predicted earlier. docs/router.md has the formula.
"""

from __future__ import annotations

from typing import NamedTuple

from tandem_router.core.pace import Pace
from tandem_router.core.story import WayTaken
from tandem_router.core.values import Disaggregate, Reason, Way

MEASURE_SECONDS = 60.0
"""A way that was measured so long ago, or never, is measured again, with a prompt of no more than
common length."""


class Option(NamedTuple):
    """One way that a sequence could go now."""

    way: Way
    pace: Pace
    waiting: int
    """Tokens that its prefill worker is to compute before those of the sequence."""
    tokens: int
    """Tokens of the sequence's prompt that the prefill worker has to compute."""
    running: int = 0
    """Sequences that are held up meanwhile, because they are decoded there."""
    flaws: tuple[int, ...] = ()
    """What speaks against its workers, the weightiest first: see Fleet."""

    def seconds(self) -> float:
        """Until the first token, and what the prompt takes of those that run there."""
        return self.pace.seconds(self.waiting + self.tokens * (1 + self.running))


class Chosen(NamedTuple):
    """What was chosen, and why."""

    way: Way
    reason: Reason
    told: WayTaken
    """The chosen way as the request's story tells it."""


_PLAIN = {
    (way, reason): Chosen(way, reason, WayTaken(way.value, reason.value))
    for way in Way
    for reason in Reason
}
"""Choices of a way without estimates in seconds."""
ONLY = {way: _PLAIN[way, Reason.ONLY] for way in Way}
"""For a sequence that has no other way."""


def choose(pair: Option, whole: Option, setting: Disaggregate, now: float) -> Chosen:
    """One of the two: a pair, and an aggregated worker."""
    if pair.flaws != whole.flaws:
        return _plain(whole if whole.flaws < pair.flaws else pair, Reason.SOUND)
    if setting != "auto":
        return _plain(pair if setting == "always" else whole, Reason.SETTING)
    for option, other in ((pair, whole), (whole, pair)):
        common = not other.pace.measured or option.tokens <= other.pace.mean_tokens
        if common and now - option.pace.at >= MEASURE_SECONDS:
            option.pace.at = now
            return _plain(option, Reason.MEASURE)
    if not (whole.pace.measured and pair.pace.tells_of(pair.waiting + pair.tokens)):
        return _plain(pair, Reason.UNMEASURED)
    by_pair, by_whole = pair.seconds(), whole.seconds()
    chosen = whole if by_whole <= by_pair else pair
    way, reason = chosen.way, Reason.EARLIEST
    told = WayTaken(way.value, reason.value, round(by_pair, 6), round(by_whole, 6))
    return Chosen(way, reason, told)


def _plain(option: Option, reason: Reason) -> Chosen:
    return _PLAIN[option.way, reason]
