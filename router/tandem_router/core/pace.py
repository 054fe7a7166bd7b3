"""How long a way to a first token takes, as this router has measured it: a line over the tokens
that were to be computed until then.

Each sample is one sequence: the tokens that its prefill worker had to compute when it was started,
its own among them, and the seconds from that moment to decode's word that output follows. So what
all of that takes is in it: the queue, the prompt, and for a pair the hand-over.
"""

from __future__ import annotations

from math import inf

_KEEP = 0.98
"""What is left of all earlier samples with each new one: the last hundred or so count."""
_SPREAD = 0.01
"""The least variance of the tokens, relative to their mean squared, that gives a line of its own.
With less it is drawn through the origin."""


class Pace:
    """A line by least squares, where recent samples count more. It never falls."""

    __slots__ = ("_seconds", "_tokens", "_tokens_seconds", "_tokens_squared", "_weight", "at")

    def __init__(self) -> None:
        self.at = -inf
        """When a sequence was last measured, or sent this way to be."""
        self._weight = self._tokens = self._seconds = 0.0
        self._tokens_squared = self._tokens_seconds = 0.0

    @property
    def measured(self) -> bool:
        """Whether there is a sample."""
        return self._weight > 0

    @property
    def mean_tokens(self) -> float:
        """How many tokens a sample had."""
        return self._tokens / self._weight if self._weight else 0.0

    def tells_of(self, tokens: int) -> bool:
        """Whether it was measured with so many tokens, or with enough others for a line of its own.
        By one through the origin, what short prompts take at the least counts for each token of a
        long one.
        """
        weight = self._weight
        if not weight:
            return False
        mean = self._tokens / weight
        variance = self._tokens_squared / weight - mean * mean
        return variance > _SPREAD * mean * mean or tokens <= 2 * mean

    def note(self, now: float, tokens: int, seconds: float) -> None:
        """Take in one more sample."""
        self.at = now
        self._weight = self._weight * _KEEP + 1
        self._tokens = self._tokens * _KEEP + tokens
        self._seconds = self._seconds * _KEEP + seconds
        self._tokens_squared = self._tokens_squared * _KEEP + tokens * tokens
        self._tokens_seconds = self._tokens_seconds * _KEEP + tokens * seconds

    def seconds(self, tokens: int) -> float:
        """How long it takes with so many tokens, by the line."""
        least, each = self.line()
        return least + each * tokens

    def line(self) -> tuple[float, float]:
        """Seconds that it takes at the least, and seconds for each token."""
        weight = self._weight
        if not weight:
            return 0.0, 0.0
        tokens, seconds = self._tokens / weight, self._seconds / weight
        variance = self._tokens_squared / weight - tokens * tokens
        if variance > _SPREAD * tokens * tokens:
            each = (self._tokens_seconds / weight - tokens * seconds) / variance
            least = seconds - each * tokens
            if each >= 0 and least >= 0:
                return least, each
            if each < 0:
                return seconds, 0.0
        if not tokens:
            return seconds, 0.0
        return 0.0, self._tokens_seconds / self._tokens_squared
