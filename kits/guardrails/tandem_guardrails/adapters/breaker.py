"""A circuit breaker: after failures in a row a service is left alone for a while, then tried once.

It spares a service that is down the load of requests it cannot answer, and clients the wait for a
timeout each. What it refuses fails as the service's own failure would: closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tandem.hooks.classifiers.contract import ScoringError


class UnavailableError(ScoringError):
    """The service is down or overloaded: what the breaker counts."""


class CircuitBreaker:
    """Closed (calls pass), open (none passes), half open (one passes, and its end decides)."""

    def __init__(
        self,
        *,
        failures: int,
        open_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The breaker opens after `failures` failures in a row, for `open_seconds`."""
        self._failures = failures
        self._open_seconds = open_seconds
        self._clock = clock
        self._in_a_row = 0
        self._opened_at: float | None = None
        """None: closed."""
        self._probing = False
        self._era = 0
        """Counts openings and closings: a call that began before the last one says nothing."""

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around each call. Raises ScoringError `circuit_open` where none may be made now. An
        UnavailableError from inside is a failure, a cancellation says nothing, anything else shows
        that the service answers.
        """
        era = self._enter()
        try:
            yield
        except UnavailableError:
            self._failed(era)
            raise
        except Exception:
            self._answered(era)
            raise
        except BaseException:
            self._unknown(era)
            raise
        self._answered(era)

    def _enter(self) -> int:
        if self._opened_at is not None:
            rested = self._clock() - self._opened_at >= self._open_seconds
            if not rested or self._probing:
                raise ScoringError("circuit_open")
            self._probing = True
        return self._era

    def _failed(self, era: int) -> None:
        if era != self._era:
            return
        self._in_a_row += 1
        if self._probing or self._in_a_row >= self._failures:
            self._opened_at = self._clock()
            self._next_era()

    def _answered(self, era: int) -> None:
        if era != self._era:
            return
        if self._opened_at is not None:
            self._opened_at = None
            self._next_era()
        self._in_a_row = 0

    def _unknown(self, era: int) -> None:
        if era == self._era:
            self._probing = False  # the next call is the probe

    def _next_era(self) -> None:
        self._probing = False
        self._in_a_row = 0
        self._era += 1
