"""Which policies choose: the router's own by their names, an operator's by an entry point.

An operator's may raise, take too long or answer what it was not offered. Then the router's own
chooses in its place, and no request pays for it.
"""

from __future__ import annotations

import enum
import logging
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from tandem.complaints import Complaints
from tandem.errors import LoadError
from tandem.usercode.call import Caller, Failed, name_of
from tandem.usercode.deadline import WATCH
from tandem.usercode.loader import load_entry_point
from tandem_router.core.values import Phase
from tandem_router.policies import (
    POLICIES,
    Candidates,
    LeastLoaded,
    Policy,
    PolicyFactory,
    Prefix,
    Prompt,
)
from tandem_router.policies.base import AnyCandidate

log = logging.getLogger(__name__)

GROUP = "tandem.router_policies"
REST = 100.0
"""A policy that was overdue is not asked for so many times as long as it took: what it can take of
the router's time is one in so many seconds.
"""


class Failure(enum.StrEnum):
    """Why an operator's policy was not followed; a label of metrics."""

    RAISED = "raised"
    OVERDUE = "overdue"
    ANSWER = "answer"
    """The policy named no worker that the router offered."""


class Choosing:
    """The policies of one router, and how often an operator's were not followed."""

    def __init__(self, prefill: str, decode: str, *, seconds: float) -> None:
        """`seconds`: what an operator's may take for a choice. Raises LoadError where there is no
        such policy, or it cannot be made.
        """
        self.failures: Counter[tuple[Phase, Failure]] = Counter()
        self._seconds = seconds
        self._complaints = Complaints(log)
        self.prefill = self._factory(Phase.PREFILL, prefill)
        self.decode = self._factory(Phase.DECODE, decode)

    def close(self) -> None:
        """Say now what was left out of the log."""
        self._complaints.close()

    def _factory(self, phase: Phase, name: str) -> PolicyFactory:
        own = POLICIES.get(name)
        if own is Prefix and phase is Phase.DECODE:
            raise LoadError("prefix chooses prefill workers alone: decode computes no prompts")
        if own is not None:
            return own
        WATCH.install()
        return partial(GuardedPolicy, _found(name), partial(self._failed, phase), self._seconds)

    def _failed(self, phase: Phase, failure: Failure, reason: str) -> None:
        self.failures[phase, failure] += 1
        message = "a policy was not followed: least_loaded chose"
        self._complaints.warn(message, failure.value, phase=phase.value, reason=reason)


class GuardedPolicy:
    """An operator's policy. Whatever it does, a worker is chosen."""

    def __init__(
        self,
        make: Callable[[], Any],
        tell: Callable[[Failure, str], None],
        seconds: float,
        instead: PolicyFactory = LeastLoaded,
    ) -> None:
        """`tell` is given each failure, and the class of what was raised or answered."""
        self._make = make
        self._tell = tell
        self._caller = Caller(seconds)
        self._instead = instead()
        self._policy: Policy | None = None
        self._asked_from = 0.0

    def choose(self, candidates: Candidates[AnyCandidate], prompt: Prompt) -> AnyCandidate:
        found = None
        if perf_counter() >= self._asked_from:
            found = self._answer(candidates, prompt)
        return self._instead.choose(candidates, prompt) if found is None else found

    def _answer(self, candidates: Candidates[AnyCandidate], prompt: Prompt) -> AnyCandidate | None:
        """None: it was not to be followed."""
        answer = self._caller.call(partial(self._ask, candidates), prompt)
        if isinstance(answer, Failed):
            self._note(answer)
            del answer  # its traceback refers to this frame: else both wait for the collector
        elif answer in candidates:
            chosen: AnyCandidate = answer
            return chosen
        else:
            self._tell(Failure.ANSWER, name_of(type(answer)))
        return None

    def _note(self, failed: Failed) -> None:
        if failed.overdue:
            self._asked_from = perf_counter() + REST * self._caller.took
            self._tell(Failure.OVERDUE, failed.kind)
        else:
            self._tell(Failure.RAISED, f"{failed.kind} {failed.place}".rstrip())

    def _ask(self, candidates: Candidates[AnyCandidate], prompt: Prompt) -> AnyCandidate:
        if self._policy is None:
            self._policy = self._make()
        assert self._policy is not None
        return self._policy.choose(candidates, prompt)


def _found(name: str) -> Callable[[], Any]:
    """What makes the policy of that name. Raises LoadError."""
    try:
        make = load_entry_point(GROUP, name)
    except LoadError as error:
        raise LoadError(f"no policy of the router's ({', '.join(POLICIES)}): {error}") from error
    made = Caller(math.inf).call(lambda _: make().choose, None)
    if isinstance(made, Failed):
        raise LoadError(f"the policy {name!r} cannot be made: {made.words}")
    return make  # type: ignore[no-any-return]
