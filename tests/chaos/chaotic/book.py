"""What was asked, and what came of it: every token is compared with what the engine says to the
prompt when nothing fails.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol


class Oracle(Protocol):
    """Knows what an engine says when nothing fails."""

    def prompt(self, rng: Random) -> list[int]:
        """One that it knows the answer to."""
        ...

    def answer(self, prompt: Sequence[int], count: int) -> list[int]:
        """The answer's first tokens."""
        ...


@dataclass(eq=False)
class Asked:
    """A request that is open."""

    prompt: list[int]
    expected: list[int]
    heard: float
    """When it last brought something, or was asked."""
    tokens: list[int] = field(default_factory=list)
    begun: bool = False
    """Its answer has."""


class Book:
    """All requests while one fault strikes."""

    def __init__(self, oracle: Oracle) -> None:
        self.requests = 0
        self.failed: Counter[str] = Counter()
        """Codes of errors. Where the frontend itself is away: connection_refused, connection_lost
        before an answer, stream_lost within it.
        """
        self.wrong: list[str] = []
        self.hung = 0
        self.left = 0
        """Requests whose clients went away."""
        self.in_flight = 0
        """Requests that were open when the fault struck."""
        self.longest_stall = 0.0
        """Seconds for which a client heard nothing: before a first token, between two, or before
        the end.
        """
        self._oracle = oracle
        self._open: set[Asked] = set()

    def prompt(self, rng: Random) -> list[int]:
        """One to whose answer the answers can be compared."""
        return self._oracle.prompt(rng)

    def ask(self, prompt: list[int], count: int) -> Asked:
        """A request for `count` tokens is sent."""
        self.requests += 1
        asked = Asked(prompt, self._oracle.answer(prompt, count), time.monotonic())
        self._open.add(asked)
        return asked

    @property
    def ended(self) -> int:
        """Requests that have ended in whatever way."""
        return self.requests - len(self._open)

    def is_open(self, asked: Asked) -> bool:
        """Whether it has neither been answered nor ended otherwise."""
        return asked in self._open

    def struck(self) -> None:
        """The fault begins now."""
        self.in_flight = len(self._open)

    def hear(self, asked: Asked, tokens: Sequence[int]) -> None:
        """Tokens came."""
        self._heard(asked)
        asked.tokens += tokens

    def finish(self, asked: Asked, reason: str) -> None:
        """It ended well, and must be whole."""
        if reason != "length" or len(asked.tokens) != len(asked.expected):
            self.wrong.append(
                f"{len(asked.tokens)} of {len(asked.expected)} tokens, finish_reason {reason!r}"
            )
        self._end(asked)

    def fail(self, asked: Asked, code: str) -> None:
        """It ended with an error; what came before must be right all the same."""
        self.failed[code] += 1
        self._end(asked)

    def hang(self, asked: Asked) -> None:
        """It neither was answered nor ended in time."""
        self.hung += 1
        self._end(asked)

    def leave(self, asked: Asked) -> None:
        """Its client went away before it ended; what came must be right all the same."""
        self.left += 1
        self._end(asked)

    def _end(self, asked: Asked) -> None:
        self._heard(asked)
        self._open.remove(asked)
        count = len(asked.tokens)
        if asked.tokens != asked.expected[:count]:
            self.wrong.append(f"{asked.tokens} to {asked.prompt}, not {asked.expected[:count]}")

    def _heard(self, asked: Asked) -> None:
        now = time.monotonic()
        self.longest_stall = max(self.longest_stall, now - asked.heard)
        asked.heard = now
