"""The one place that calls a classifier. Whatever it does becomes an outcome, in bounded time."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from tandem.hooks.classifiers.contract import (
    ExternalClassifierHook,
    ScoringContext,
    ScoringError,
)
from tandem.hooks.classifiers.scores import Answer, InvalidAnswerError, read
from tandem.hooks.classifiers.tally import ClassifierTally, Counted
from tandem.usercode import lifecycle

log = logging.getLogger(__name__)
_REASON = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(slots=True, frozen=True, kw_only=True)
class Outcome:
    """What became of one call."""

    blocks: bool
    replacement: str | None = None
    """Text to show instead; None: the refusal of the settings."""
    decision: Counted = "pass"
    scores: Mapping[str, Any] = field(default_factory=dict)
    """For external_scores; of a failure `{"error": reason}`."""


class ClassifierRunner:
    """One classifier, with what all its calls have in common."""

    __slots__ = ("_given_up", "_turns", "blocking", "hook", "name", "tally", "timeout")

    def __init__(self, hook: ExternalClassifierHook, *, max_concurrency: int) -> None:
        self.hook = hook
        self.name = hook.name
        self.blocking = hook.blocking
        self.timeout = hook.timeout_ms / 1000
        self.tally = ClassifierTally()
        self._turns = asyncio.Semaphore(max_concurrency)
        # Calls that did not end when they were cancelled. Each keeps its turn, so that there are
        # never more than max_concurrency.
        self._given_up: set[asyncio.Task[Answer | BaseException]] = set()

    async def run(self, ctx: ScoringContext) -> Outcome:
        """One call. Its timeout counts from now, the wait for its turn included (S4-100).

        Raises nothing but this task's own cancellation, which cancels the call (S4-115).
        """
        began = perf_counter()
        call = asyncio.get_running_loop().create_task(self._score(ctx))
        try:
            done, _ = await asyncio.wait((call,), timeout=self.timeout)
        except asyncio.CancelledError:
            self._give_up(call)
            self.tally.add("cancelled", perf_counter() - began)
            raise
        seconds = perf_counter() - began
        if not done:
            self._give_up(call)
            return self._failed("timeout", "timeout", seconds, ctx)
        if call.cancelled():  # by itself
            return self._failed("error", "exception", seconds, ctx)
        answer = call.result()
        if isinstance(answer, Answer):
            return self._judged(answer, seconds)
        reason = _reason(answer)
        counted: Counted = "timeout" if reason == "timeout" else "error"
        return self._failed(counted, reason, seconds, ctx, answer)

    async def _score(self, ctx: ScoringContext) -> Answer | BaseException:
        """The answer, or what was raised: a SystemExit must not reach the event loop."""
        async with self._turns:
            self.tally.running += 1
            try:
                return read(await self.hook.score(ctx.for_one()))
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                return error  # its own doing, not ours
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - user code becomes an outcome
                return error
            finally:
                self.tally.running -= 1

    def _judged(self, answer: Answer, seconds: float) -> Outcome:
        counted: Counted = "annotate"
        if self.blocking:
            counted = "block" if answer.block else "pass"
        self.tally.add(counted, seconds)
        return Outcome(
            blocks=self.blocking and answer.block,
            decision=counted,
            replacement=answer.replacement,
            scores=answer.scores,
        )

    def _failed(
        self,
        counted: Counted,
        reason: str,
        seconds: float,
        ctx: ScoringContext,
        error: BaseException | None = None,
    ) -> Outcome:
        """A blocking one blocks (S4-102), any other leaves a note (S4-101)."""
        self.tally.add(counted, seconds)
        log.warning(
            "a classifier failed",
            extra={
                "classifier": self.name,
                "reason": reason,
                "code": None if error is None else type(error).__name__,
                "outcome": "blocked" if self.blocking else "annotated",
                "trace_id": ctx.request_metadata.get("trace_id"),
                "request_id": ctx.request_id,
            },
        )
        return Outcome(blocks=self.blocking, decision=counted, scores={"error": reason})

    def _give_up(self, call: asyncio.Task[Answer | BaseException]) -> None:
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


def _reason(error: BaseException) -> str:
    """One word, which is never the classifier's own but for a ScoringError's."""
    if isinstance(error, InvalidAnswerError):
        return "invalid_answer"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, ScoringError) and _REASON.fullmatch(str(error.reason)):
        return error.reason
    return "exception"
