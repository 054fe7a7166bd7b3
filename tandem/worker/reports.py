"""When routers are told what a worker carries, and of which prompts that it has yet to compute.

A router knows its own legs at once, and those of others by reports. One a second is late for loads
that change within it: so much may have begun or ended meanwhile that others send where all send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from tandem.engine.prefix_log import PrefixLog
from tandem.prefix_blocks import Blocks

EARLY_TOKENS = 2048
"""Tokens of prompts that begin or end; prefill computes them in about a tenth of a second."""
EARLY_SHARE = 1 / 16
"""A share of the slots: as many legs that begin or end."""
LINGER_SECONDS = 1.0
"""Blocks count as coming for so long after their leg's end: engines tell somewhat later that they
have entered.
"""


class Reports:
    """One worker's. It is told of legs that begin and end, and each second; it sends reports then,
    and earlier where much has changed.
    """

    def __init__(
        self,
        send: Callable[[], object],
        *,
        slots: int,
        early_a_second: float,
        prefixes: PrefixLog | None,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], object]], object],
    ) -> None:
        """`send` tells every router. `early_a_second`: the most of those beside the one each
        second; 0: none. `prefixes`: where blocks are noted that prompts bring; None: routers are
        not told of caches. `later` makes a call in so many seconds.
        """
        self._send = send
        self._early_legs = max(1.0, slots * EARLY_SHARE)
        self._early_a_second = early_a_second
        self._prefixes = prefixes
        self._clock = clock
        self._later = later
        self._coming: dict[Hashable, Blocks] = {}
        """By leg."""
        self._over: deque[tuple[float, Blocks]] = deque()
        """Blocks of legs that have ended, and until when they count as coming, too."""
        self._legs = self._tokens = 0
        """Legs, and their tokens, that have begun or ended since the last report."""
        self._told_at = float("-inf")
        self._planned = False

    def began(self, leg: Hashable, tokens: int, new_blocks: Blocks = ()) -> None:
        """A leg is open, with so many tokens to compute, whose prompt brings these blocks."""
        if self._prefixes is not None and len(new_blocks):
            self._prefixes.expect(new_blocks)
            self._coming[leg] = new_blocks
        self._moved(tokens)

    def ended(self, leg: Hashable, tokens: int) -> None:
        """A leg is over that had so many tokens to compute."""
        if (blocks := self._coming.pop(leg, None)) is not None:
            self._over.append((self._clock() + LINGER_SECONDS, blocks))
        self._moved(tokens)

    def tell(self) -> None:
        """Tell every router what there is now."""
        self._told_at = now = self._clock()
        while self._over and self._over[0][0] <= now:
            assert self._prefixes is not None
            self._prefixes.settle(self._over.popleft()[1])
        self._legs = self._tokens = 0
        self._send()

    def _moved(self, tokens: int) -> None:
        self._legs += 1
        self._tokens += tokens
        if self._early_a_second and self._much and not self._planned:
            self._planned = True
            due = self._told_at + 1 / self._early_a_second
            self._later(max(0.0, due - self._clock()), self._tell_early)

    @property
    def _much(self) -> bool:
        return self._tokens >= EARLY_TOKENS or self._legs >= self._early_legs

    def _tell_early(self) -> None:
        self._planned = False
        if self._much:
            self.tell()
