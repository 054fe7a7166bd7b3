"""One hook as one sequence sees it: the chunks it is asked about, and what its answers mean. An
answer becomes a piece to pass on, or a HookError. tandem.hooks.runner makes the calls.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Final

from tandem.errors import HookError
from tandem.hooks.audit.trail import Trail
from tandem.hooks.contract import Chunk, Verdict
from tandem.hooks.counters import HookVerdict
from tandem.hooks.deferred import SequenceInfo
from tandem.hooks.loader import LoadedHook
from tandem.hooks.piece import Piece
from tandem.hooks.verdicts import InvalidVerdictError, counted_as, is_plain, plain, words_of
from tandem.usercode.call import Failed

log = logging.getLogger(__name__)
_EMIT: Final = "emit"
_NO_TOKENS: Final = 0


class SequenceHook:
    """The hook as one sequence sees it. It is told exactly once that the sequence is over
    (S0-022).
    """

    __slots__ = (
        "_added",
        "_counters",
        "_extras",
        "_info",
        "_text",
        "_tokens",
        "_trail",
        "caller",
        "ended",
        "function",
        "loaded",
        "muted",
        "next",
        "reason",
        "replay",
    )

    def __init__(self, loaded: LoadedHook, info: SequenceInfo) -> None:
        self.loaded = loaded
        self.caller, self._counters = loaded.caller, loaded.counters
        self.function = loaded.function
        self.next: SequenceHook | None = None
        """In the chain."""
        self._info = info
        self._text = ""
        self._added = 0
        """Shown characters beyond the characters that came."""
        self._tokens: list[int] = []
        """Token ids that the hook holds back, oldest first."""
        self._extras: list[Any] = []
        self._trail = None
        if loaded.audit is not None:
            self._trail = Trail(
                loaded.audit,
                info,
                phase=loaded.phase,
                hook=loaded.name,
                shadow=loaded.entry.shadow,
            )
        self.ended = False
        """The hook knows that the sequence is over."""
        self.reason: str | None = None
        """The reason of a terminate that was applied."""
        self.muted = False
        """In shadow, after a terminate: to be told the end only."""
        self.replay = info.replayed > 0
        """Another worker's hook has judged what comes now."""
        loaded.counters.sequences += 1

    def chunk(self, piece: Piece, final: bool, aborted: bool = False) -> Chunk:
        """What the hook must be called with for a piece."""
        info, loaded = self._info, self.loaded
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
                final,
                aborted,
                info.streaming,
                loaded.phase,
                info.trace_id,
                loaded.model,
                self.replay,
                info.lora_adapter,
            ),
        )

    def judge(self, answer: Any, piece: Piece, final: bool) -> Piece | None:
        """What the hook's answer lets through of the piece; None: it was suppressed. Raises
        HookError where the hook raised, was late, or answered with something else than a valid
        verdict, unless its entry says otherwise.
        """
        counters, seconds = self._counters, self.caller.took
        calls = counters.seconds
        calls.counts[bisect_left(calls.bounds, seconds)] += 1  # Histogram.observe, without the call
        calls.total += seconds
        try:
            # What nearly every call comes to, found out by identity, which runs no code of the
            # hook's.
            passes = (
                type(answer) is Verdict
                and answer.text is piece.text
                and answer.action is _EMIT
                and answer.hold_tokens is _NO_TOKENS
                and answer.show_tokens is True
                and not self._tokens
                and self._trail is None
            )
            clear = passes or is_plain(answer)
        except AttributeError as error:  # a verdict that lacks a field
            return self._failed(piece, Failed(error))
        if passes:
            counters.verdicts["emit"] += 1
            passed: Piece | None = piece
        else:
            if not clear:
                if type(answer) is not Failed:
                    answer = self.caller.call(plain, answer)
                if type(answer) is Failed:
                    return self._failed(piece, answer)
            passed = self._judged(piece, answer, final)
        if final:
            self._over()
        return passed

    def last_words(self) -> Chunk:
        """What the hook must be called with where the sequence is over without a last chunk."""
        return self.chunk(_NOTHING, True, True)

    def told(self, answer: Any) -> None:
        """The hook was called with `last_words`. No verdict applies; failures are logged."""
        loaded = self.loaded
        loaded.counters.seconds.observe(loaded.caller.took)
        if type(answer) is Failed:
            loaded.failed(answer)
            log.warning(
                "the hook raised on the last call of an aborted sequence",
                extra={
                    "trace_id": self._info.trace_id,
                    "hook": loaded.name,
                    "reason": words_of(answer),
                },
            )
        self._over()

    # --- inside ----------------------------------------------------------------------------------

    def _judged(self, piece: Piece, verdict: Verdict, final: bool) -> Piece | None:
        """A plain verdict, which may be invalid."""
        try:
            counted = counted_as(verdict, piece.text)
            held = self._held(verdict, piece, final)
            self._add(len(verdict.text) - len(piece.text))
        except InvalidVerdictError as error:
            return self._failed(piece, Failed(error))
        self._counters.verdicts[counted] += 1
        if self._trail is not None:
            self._trail.replay = self.replay
            self._trail.decided(counted, verdict, piece.text, len(piece.token_ids))
        if self.loaded.entry.shadow:
            self._shadowed(counted)
            self._release(piece, verdict, held)  # what it would hold, for its next verdict
            return piece
        if counted == "terminate":
            self._drop_tokens()
            self.reason = verdict.reason
            return Piece(verdict.text, ())
        released = self._release(piece, verdict, held)
        return None if counted == "suppress" else released

    def _shadowed(self, counted: HookVerdict) -> None:
        """The verdict is known and changes nothing. After a terminate the hook is not asked again,
        as it would not be.
        """
        if counted == "terminate":
            self.muted = True
            log.info(
                "a shadow hook would have terminated",
                extra={
                    "hook": self.loaded.name,
                    "trace_id": self._info.trace_id,
                    "request_id": self._info.request_id,
                },
            )

    def _add(self, characters: int) -> None:
        """More are shown than came, or fewer. Raises InvalidVerdictError."""
        self._added += characters
        most = self.loaded.entry.max_added_chars
        if self._added > most:
            raise InvalidVerdictError(
                f"the hook added more than {most} characters (max_added_chars)"
            )

    def _held(self, verdict: Verdict, piece: Piece, final: bool) -> int:
        """How many of the last tokens stay behind. Raises InvalidVerdictError."""
        held = verdict.hold_tokens
        if not 0 <= held <= len(self._tokens) + len(piece.token_ids):
            raise InvalidVerdictError("the hook holds more tokens than there are")
        if held and final:
            raise InvalidVerdictError("the hook holds tokens on the last chunk")
        return held

    def _release(self, piece: Piece, verdict: Verdict, held: int) -> Piece:
        """What the verdict lets through; the rest of the tokens is kept, or gone."""
        if not self._tokens and not held:
            if verdict.show_tokens:
                return Piece(verdict.text, piece.token_ids, piece.extras)
            return Piece(verdict.text, ())
        tokens, extras = self._tokens, self._extras
        self._counters.held_tokens += held - len(tokens)
        # In place, so that the cost of a chunk does not grow with what is held.
        tokens += piece.token_ids
        extras += piece.extras or ()
        cut = len(tokens) - held
        if not cut:
            return Piece(verdict.text, ())
        shown = Piece(verdict.text, tuple(tokens[:cut]), extras[:cut] or None)
        del tokens[:cut], extras[:cut]
        return shown if verdict.show_tokens else Piece(verdict.text, ())

    def _failed(self, piece: Piece, failed: Failed) -> Piece:
        """Fail closed: raises HookError. Open, or in shadow: the piece as it is, with what was
        held.
        """
        loaded, words = self.loaded, words_of(failed)
        loaded.failed(failed)
        if self._trail is not None:
            counted = "timeout" if failed.overdue else "error"
            passes = loaded.entry.shadow or loaded.entry.on_error == "open"
            self._trail.replay = self.replay
            self._trail.failed(counted, words, piece.text, len(piece.token_ids), passes=passes)
        if loaded.entry.shadow:
            return piece
        if loaded.entry.on_error == "open":
            log.warning(
                "a hook failed open",
                extra={"hook": loaded.name, "trace_id": self._info.trace_id, "reason": words},
            )
            return self._release(piece, Verdict("emit", piece.text), 0)
        raise HookError(f"the output hook failed: {words}") from failed.error

    def _drop_tokens(self) -> None:
        self._counters.held_tokens -= len(self._tokens)
        self._tokens, self._extras = [], []

    def _over(self) -> None:
        self.ended = True
        self._drop_tokens()
        self.loaded.close(self._info.request_id)


_new_chunk: Callable[[type[Chunk], tuple[Any, ...]], Chunk] = tuple.__new__
_NOTHING = Piece("", ())
