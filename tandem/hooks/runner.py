"""The one place that calls a hook. Whatever user code does becomes a verdict or a HookError."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Literal

from tandem.errors import HookError
from tandem.hooks.contract import Chunk, Hook, Phase, Verdict
from tandem.metrics import HOOK_SECONDS

log = logging.getLogger(__name__)
Counted = Literal["emit", "rewrite", "suppress", "terminate", "error"]


class HookTally:
    """What a worker's hook did and how long it took. Plain numbers: the metrics read them when they
    are scraped.
    """

    __slots__ = ("buckets", "seconds", "verdicts")

    def __init__(self) -> None:
        self.verdicts: dict[Counted, int] = {
            "emit": 0,
            "rewrite": 0,
            "suppress": 0,
            "terminate": 0,
            "error": 0,
        }
        self.buckets = [0] * (len(HOOK_SECONDS) + 1)
        """Calls by duration; the last counts those above every bound of HOOK_SECONDS."""
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """One call."""
        self.seconds += seconds
        self.buckets[bisect_left(HOOK_SECONDS, seconds)] += 1


class HookRunner:
    """A worker's hook with what all its calls have in common."""

    __slots__ = ("hook", "model", "name", "phase", "tally")

    def __init__(self, hook: Hook, *, name: str, phase: Phase, model: str) -> None:
        self.hook = hook
        self.name = name
        self.phase: Phase = phase
        self.model = model
        self.tally = HookTally()

    def sequence(
        self, *, request_id: int, output_index: int, streaming: bool, trace_id: str
    ) -> SequenceHook:
        """For the calls of one sequence, in order."""
        return SequenceHook(self, request_id, output_index, streaming, trace_id)


class SequenceHook:
    """The hook as one sequence sees it. It is told exactly once that the sequence is over
    (S0-022).
    """

    __slots__ = (
        "_ended",
        "_output_index",
        "_request_id",
        "_runner",
        "_streaming",
        "_text",
        "_trace_id",
        "emitted",
        "seconds",
        "suppressed",
        "terminated",
    )

    def __init__(
        self,
        runner: HookRunner,
        request_id: int,
        output_index: int,
        streaming: bool,
        trace_id: str,
    ) -> None:
        self._runner = runner
        self._request_id = request_id
        self._output_index = output_index
        self._streaming = streaming
        self._trace_id = trace_id
        self._text = ""
        self._ended = False
        self.emitted = self.suppressed = self.terminated = 0
        self.seconds = 0.0

    def judge(self, text_diff: str, token_ids_diff: Sequence[int], is_final: bool) -> Verdict:
        """The verdict on one chunk. Raises HookError where the hook raises, or answers with
        something else than a valid verdict; the chunk must not be shown then.
        """
        tally = self._runner.tally.verdicts
        try:
            verdict = self._call(text_diff, token_ids_diff, is_final, False)
            if (
                verdict.__class__ is Verdict
                and verdict.action == "emit"
                and verdict.text == text_diff
            ):
                counted: Counted = "emit"  # what nearly every call comes to
            else:
                counted = _counted(verdict)
        except _HookFailure as failure:
            tally["error"] += 1
            raise HookError(f"the output hook failed: {failure}") from failure.__cause__
        tally[counted] += 1
        if counted == "suppress":
            self.suppressed += 1
        elif counted == "terminate":
            self.terminated += 1
        else:
            self.emitted += 1
        return verdict

    def abort(self) -> None:
        """Tell the hook that the sequence is over without a last chunk, unless it knows. What it
        answers is not applied; a failure is logged.
        """
        if self._ended:
            return
        try:
            self._call("", (), True, True)
        except _HookFailure as failure:
            self._runner.tally.verdicts["error"] += 1
            log.warning(
                "the hook raised on the last call of an aborted sequence: %s",
                failure,
                extra={"trace_id": self._trace_id, "hook": self._runner.name},
            )

    def _call(
        self, text_diff: str, token_ids_diff: Sequence[int], is_final: bool, aborted: bool
    ) -> Verdict:
        runner = self._runner
        # The local name alone holds the text, so that CPython appends in place and the cost of a
        # chunk does not grow with the text before it.
        text, self._text = self._text, ""
        text += text_diff
        self._text = text
        self._ended = is_final
        # A Chunk's own constructor takes 1.9 µs, because the class is frozen; this way takes 0.3.
        chunk: Any = _new_chunk(_Draft)
        chunk.request_id = self._request_id
        chunk.output_index = self._output_index
        chunk.text_diff = text_diff
        chunk.text = text
        chunk.token_ids_diff = token_ids_diff
        chunk.is_final = is_final
        chunk.aborted = aborted
        chunk.streaming = self._streaming
        chunk.phase = runner.phase
        chunk.trace_id = self._trace_id
        chunk.model = runner.model
        chunk.__class__ = Chunk
        began = perf_counter()
        try:
            return runner.hook(chunk)
        except BaseException as error:  # not even sys.exit() in a hook ends a worker
            raise _HookFailure(type(error).__name__) from error
        finally:
            seconds = perf_counter() - began
            self.seconds += seconds
            runner.tally.add(seconds)


class _HookFailure(Exception):
    """Names what went wrong without the hook's own words, which may quote the text."""


class _Draft(Chunk):
    """A chunk while it is filled: the same layout, not frozen."""

    __slots__ = ()
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__


_new_chunk = object.__new__


def _counted(verdict: Verdict) -> Counted:
    """How a verdict other than "as it is" is counted. Raises _HookFailure for one that cannot be
    applied (S0-020).
    """
    if not isinstance(verdict, Verdict):
        raise _HookFailure(f"it answered {type(verdict).__name__}, not a verdict")
    action = verdict.action
    if action == "emit":
        _check_text(verdict.text, "emit's text")
        return "rewrite"
    if action == "suppress":
        return "suppress"
    if action == "terminate":
        _check_text(verdict.reason, "terminate's reason")
        return "terminate"
    raise _HookFailure("it answered an unknown action")


def _check_text(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise _HookFailure(f"{what} is {type(text).__name__}, not str")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _HookFailure(f"{what} is not valid Unicode") from None
