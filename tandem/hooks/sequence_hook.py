"""One hook as one sequence sees it: the one place that calls a hook for a chunk. Whatever user code
does becomes a verdict or a HookError.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tandem.errors import HookError
from tandem.hooks.audit.trail import Trail
from tandem.hooks.contract import Chunk, Verdict
from tandem.hooks.deferred import SequenceInfo
from tandem.hooks.piece import Piece
from tandem.hooks.runner import HookRunner
from tandem.hooks.tally import Counted
from tandem.hooks.verdicts import (
    InvalidVerdictError,
    counted_failure,
    counted_verdict,
    words_of,
)
from tandem.usercode.deadline import WATCH, OverdueError

log = logging.getLogger(__name__)


class SequenceHook:
    """The hook as one sequence sees it. It is told exactly once that the sequence is over
    (S0-022).
    """

    __slots__ = (
        "_ended",
        "_extras",
        "_info",
        "_runner",
        "_text",
        "_tokens",
        "_trail",
        "muted",
        "reason",
        "seconds",
    )

    def __init__(self, runner: HookRunner, info: SequenceInfo) -> None:
        self._runner = runner
        self._info = info
        self._text = ""
        self._tokens: list[int] = []
        """Those the hook holds back, oldest first."""
        self._extras: list[Any] = []
        self._trail = None
        if runner.audit is not None:
            self._trail = Trail(
                runner.audit,
                info,
                phase=runner.phase,
                hook=runner.name,
                shadow=runner.entry.shadow,
            )
        self._ended = False
        self.reason: str | None = None
        """Of a terminate that was applied."""
        self.muted = False
        """In shadow, after a terminate: to be told the end only."""
        self.seconds = 0.0
        runner.tally.sequences += 1

    @property
    def is_async(self) -> bool:
        return self._runner.is_async

    @property
    def ended(self) -> bool:
        """The hook knows that the sequence is over."""
        return self._ended

    def judge(self, piece: Piece, final: bool) -> Piece | None:
        """What is let through of a piece; None: it was suppressed. Raises HookError where the hook
        raises, is late, or answers with something else than a valid verdict, unless its entry says
        otherwise.
        """
        runner = self._runner
        chunk = self._chunk(piece, final, False)
        began = perf_counter()
        WATCH.due = due = began + runner.timeout  # WATCH.enter, without the call
        if due < WATCH.next_look:
            WATCH.look_at(due)
        try:
            verdict = runner.call(chunk)
        except BaseException as error:  # noqa: BLE001 - not even sys.exit() in a hook ends a worker
            WATCH.due = 0.0
            self._took(perf_counter() - began)
            return self._failed(piece, error)
        WATCH.due = 0.0
        seconds = perf_counter() - began
        self.seconds += seconds
        tally = runner.tally
        calls = tally.seconds  # Histogram.observe, without the call
        calls.counts[bisect_left(calls.bounds, seconds)] += 1
        calls.total += seconds
        if seconds > runner.timeout:
            return self._failed(piece, OverdueError())
        # What nearly every call comes to, before anything is looked at closely.
        if (
            verdict.__class__ is Verdict
            and verdict.text == piece.text
            and verdict.action == "emit"
            and verdict.hold_tokens == 0
            and verdict.show_tokens is True
            and not self._tokens
            and self._trail is None
        ):
            tally.verdicts["emit"] += 1
            passed: Piece | None = piece
        else:
            passed = self._judged(piece, verdict, final)
        if final:
            self._over()
        return passed

    async def judge_async(self, piece: Piece, final: bool) -> Piece | None:
        """`judge` for an async hook."""
        runner = self._runner
        chunk = self._chunk(piece, final, False)
        began = perf_counter()
        try:
            async with asyncio.timeout(runner.timeout):
                verdict = await runner.call(chunk)
        except BaseException as error:  # noqa: BLE001 - as above, but for our own cancellation
            self._took(perf_counter() - began)
            _reraise_cancellation(error)
            return self._failed(piece, error)
        self._took(perf_counter() - began)
        passed = self._judged(piece, verdict, final)
        if final:
            self._over()
        return passed

    def abort(self) -> None:
        """Tell the hook that the sequence is over without a last chunk, unless it knows. What it
        answers is not applied; a failure is logged.
        """
        if self._ended:
            return
        runner = self._runner
        began = perf_counter()
        WATCH.enter(began, runner.timeout)
        try:
            runner.call(self._last_words())
        except BaseException as error:  # noqa: BLE001 - user code; there is nothing left to fail
            WATCH.due = 0.0
            self._abort_failed(error)
        WATCH.due = 0.0
        self._took(perf_counter() - began)
        self._over()

    async def abort_async(self) -> None:
        """`abort` for an async hook."""
        if self._ended:
            return
        runner = self._runner
        began = perf_counter()
        try:
            async with asyncio.timeout(runner.timeout):
                await runner.call(self._last_words())
        except BaseException as error:  # noqa: BLE001 - user code; there is nothing left to fail
            _reraise_cancellation(error)
            self._abort_failed(error)
        self._took(perf_counter() - began)
        self._over()

    # --- inside ----------------------------------------------------------------------------------

    def _judged(self, piece: Piece, verdict: Any, final: bool) -> Piece | None:
        """A verdict other than "as it is", or one that may be invalid."""
        try:
            counted = counted_verdict(verdict, piece.text)
            held = self._held(verdict, piece, final)
        except InvalidVerdictError as error:
            return self._failed(piece, error)
        self._runner.tally.verdicts[counted] += 1
        if self._trail is not None:
            self._trail.decided(counted, verdict, piece.text, len(piece.token_ids))
        if self._runner.entry.shadow:
            self._shadowed(counted)
            self._release(piece, verdict, held)  # what it would hold, for its next verdict
            return piece
        if counted == "terminate":
            self._drop_tokens()
            self.reason = verdict.reason
            return Piece(verdict.text, ())
        released = self._release(piece, verdict, held)
        return None if counted == "suppress" else released

    def _shadowed(self, counted: Counted) -> None:
        """The verdict is known and changes nothing. After a terminate the hook is not asked again,
        as it would not be.
        """
        if counted == "terminate":
            self.muted = True
            log.info(
                "a shadow hook would have terminated",
                extra={
                    "hook": self._runner.name,
                    "trace_id": self._info.trace_id,
                    "request_id": self._info.request_id,
                },
            )

    def _held(self, verdict: Verdict, piece: Piece, final: bool) -> int:
        """How many of the last tokens stay behind. Raises InvalidVerdictError."""
        held = verdict.hold_tokens
        if held == 0:
            return 0
        there = len(self._tokens) + len(piece.token_ids)
        if type(held) is not int or not 0 <= held <= there:
            raise InvalidVerdictError("it holds more tokens than there are")
        if final:
            raise InvalidVerdictError("it holds tokens on the last chunk")
        return held

    def _release(self, piece: Piece, verdict: Verdict, held: int) -> Piece:
        """What the verdict lets through; the rest of the tokens is kept, or gone."""
        if not self._tokens and not held:
            if verdict.show_tokens:
                return Piece(verdict.text, piece.token_ids, piece.extras)
            return Piece(verdict.text, ())
        tokens = [*self._tokens, *piece.token_ids]
        extras = [*self._extras, *(piece.extras or ())]
        self._runner.tally.held_tokens += held - len(self._tokens)
        cut = len(tokens) - held
        self._tokens, self._extras = tokens[cut:], extras[cut:]
        if verdict.show_tokens:
            return Piece(verdict.text, tokens[:cut], extras[:cut] if extras else None)
        return Piece(verdict.text, ())

    def _failed(self, piece: Piece, error: BaseException) -> Piece:
        """Fail closed: raises HookError. Open, or in shadow: the piece as it is, with what was
        held.
        """
        runner, counted, words = self._runner, counted_failure(error), words_of(error)
        runner.failed(counted)
        if self._trail is not None:
            passes = runner.entry.shadow or runner.entry.on_error == "open"
            self._trail.failed(counted, words, piece.text, len(piece.token_ids), passes=passes)
        if runner.entry.shadow:
            return piece
        if runner.entry.on_error == "open":
            log.warning(
                "a hook failed open",
                extra={"hook": runner.name, "trace_id": self._info.trace_id, "reason": words},
            )
            return self._release(piece, Verdict("emit", piece.text), 0)
        raise HookError(f"the output hook failed: {words}") from error

    def _abort_failed(self, error: BaseException) -> None:
        self._runner.failed(counted_failure(error))
        log.warning(
            "the hook raised on the last call of an aborted sequence",
            extra={
                "trace_id": self._info.trace_id,
                "hook": self._runner.name,
                "reason": words_of(error),
            },
        )

    def _drop_tokens(self) -> None:
        self._runner.tally.held_tokens -= len(self._tokens)
        self._tokens, self._extras = [], []

    def _over(self) -> None:
        self._ended = True
        self._drop_tokens()
        self._runner.close(self._info.request_id)

    def _took(self, seconds: float) -> None:
        self.seconds += seconds
        self._runner.tally.seconds.observe(seconds)

    def _last_words(self) -> Chunk:
        return self._chunk(_NOTHING, True, True)

    def _chunk(self, piece: Piece, is_final: bool, aborted: bool) -> Chunk:
        info, runner = self._info, self._runner
        # The local name alone holds the text, so that CPython appends in place and the cost of a
        # chunk does not grow with the text before it.
        text, self._text = self._text, ""
        text += piece.text
        self._text = text
        # As Chunk's own constructor does it, which takes three times as long.
        return _new_chunk(
            Chunk,
            (
                info.request_id,
                info.output_index,
                piece.text,
                text,
                piece.token_ids,
                is_final,
                aborted,
                info.streaming,
                runner.phase,
                info.trace_id,
                runner.model,
            ),
        )


_new_chunk: Callable[[type[Chunk], tuple[Any, ...]], Chunk] = tuple.__new__
_NOTHING = Piece("", ())


def _reraise_cancellation(error: BaseException) -> None:
    """From outside: this task is to end. A hook's own CancelledError is a failure of the hook."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise error
