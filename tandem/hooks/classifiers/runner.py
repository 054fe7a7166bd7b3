"""The one place that calls a classifier. Whatever it does becomes an outcome, in bounded time."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from time import perf_counter
from typing import Any

from tandem.hooks.classifiers.contract import (
    ExternalClassifierHook,
    ScoringContext,
    ScoringError,
)
from tandem.hooks.classifiers.counters import ClassifierCounters, Decision
from tandem.hooks.classifiers.scores import ClassifierAnswer, InvalidAnswerError, read
from tandem.hooks.classifiers.settings import ClassifierSettings
from tandem.usercode import lifecycle
from tandem.usercode.call import Caller, Failed, failed_await
from tandem.usercode.deadline import OverdueError

log = logging.getLogger(__name__)
_REASON = re.compile(r"[a-z][a-z0-9_]{0,39}")


class ClassifierRunner:
    """One classifier, with the settings and counters of its calls."""

    __slots__ = ("_given_up", "_read", "_turns", "blocking", "caller", "counters", "hook", "name")

    def __init__(self, hook: ExternalClassifierHook, settings: ClassifierSettings) -> None:
        self.hook = hook
        self.name = hook.name
        self.blocking = hook.blocking
        self._read = partial(read, blocking=hook.blocking, again=settings.regenerate)
        self.caller = Caller(hook.timeout_ms / 1000)
        self.counters = ClassifierCounters()
        self._turns = asyncio.Semaphore(settings.max_concurrency)
        # Calls that did not end when they were cancelled. Each keeps its turn, so that there are
        # never more than max_concurrency.
        self._given_up: set[asyncio.Task[ClassifierAnswer | Failed]] = set()

    async def run(self, ctx: ScoringContext) -> ClassifierAnswer:
        """One call. Its timeout counts from now, the wait for its turn included (S4-100).

        Raises nothing but this task's own cancellation, which cancels the call (S4-115).
        """
        began = perf_counter()
        call = asyncio.get_running_loop().create_task(self._score(ctx))
        try:
            done, _ = await asyncio.wait((call,), timeout=self.caller.seconds)
        except asyncio.CancelledError:
            self._give_up(call)
            self.counters.add("cancelled", perf_counter() - began)
            raise
        seconds = perf_counter() - began
        if not done:
            self._give_up(call)
            return self._failed("timeout", "timeout", seconds, ctx)
        if call.cancelled():  # by itself
            return self._failed("error", "exception", seconds, ctx)
        answer = call.result()
        if isinstance(answer, ClassifierAnswer):
            self.counters.add(answer.decision, seconds)
            return answer
        reason = reason_of(answer, self.caller)
        decision: Decision = "timeout" if reason == "timeout" else "error"
        return self._failed(decision, reason, seconds, ctx, answer)

    async def _score(self, ctx: ScoringContext) -> ClassifierAnswer | Failed:
        async with self._turns:
            self.counters.running += 1
            try:
                return await ask(self.hook, ctx, self.caller, self._read)
            finally:
                self.counters.running -= 1

    def _failed(
        self,
        decision: Decision,
        reason: str,
        seconds: float,
        ctx: ScoringContext,
        failed: Failed | None = None,
    ) -> ClassifierAnswer:
        """A blocking one blocks (S4-102), any other leaves a note (S4-101)."""
        self.counters.add(decision, seconds)
        log.warning(
            "a classifier failed",
            extra={
                "classifier": self.name,
                "reason": reason,
                "code": None if failed is None else failed.kind,
                "outcome": "blocked" if self.blocking else "annotated",
                "trace_id": ctx.request_metadata.get("trace_id"),
                "request_id": ctx.request_id,
            },
        )
        return ClassifierAnswer(blocks=self.blocking, decision=decision, scores={"error": reason})

    def _give_up(self, call: asyncio.Task[ClassifierAnswer | Failed]) -> None:
        call.cancel()
        self._given_up.add(call)
        call.add_done_callback(self._given_up.discard)

    async def startup(self) -> None:
        """Raises LoadError."""
        await lifecycle.startup(f"classifier {self.name!r}", self.hook)

    async def shutdown(self) -> None:
        """End what does not end, then the classifier's own. Bounded; a failure is logged."""
        if self._given_up:
            for call in self._given_up:
                call.cancel()
            await asyncio.wait(self._given_up, timeout=lifecycle.SHUTDOWN_SECONDS)
        await lifecycle.shutdown(f"classifier {self.name!r}", self.hook)


async def ask(
    hook: ExternalClassifierHook,
    ctx: ScoringContext,
    caller: Caller,
    read: Callable[[Any], ClassifierAnswer],
) -> ClassifierAnswer | Failed:
    """Call a classifier with a copy of its own, and `read` what it answers. Raises this task's own
    cancellation alone.
    """
    try:
        answer = await hook.score(ctx.for_one())
    except BaseException as error:  # noqa: BLE001 - user code becomes an outcome
        return failed_await(error)
    found: ClassifierAnswer | Failed = caller.call(read, answer)
    return found


def reason_of(failed: Failed, caller: Caller) -> str:
    """One word, which is never the classifier's own but for a ScoringError's."""
    kind = type(failed.error)
    if issubclass(kind, InvalidAnswerError):
        return "invalid_answer"
    if issubclass(kind, TimeoutError | OverdueError):
        return "timeout"
    if issubclass(kind, ScoringError):
        reason = caller.call(attrgetter("reason"), failed.error)
        if type(reason) is str and _REASON.fullmatch(reason):
            return reason
    return "exception"
