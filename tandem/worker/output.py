"""What a sequence's tokens become on their way out: text, cut at stop strings, judged by the hook.

Nothing is ever decoded again over what a hook decided: each stage only appends (S0-008, S0-030).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tandem.engine.base import Delta, Ending, Logprobs
from tandem.hooks.runner import SequenceHook
from tandem.worker.detokenizer import Detokenizer
from tandem.worker.stop_strings import StopStrings, Token


@dataclass(slots=True)
class Piece:
    """What one step brought that may be shown."""

    text: str
    token_ids: Sequence[int]
    logprobs: Logprobs | None


@dataclass(slots=True, frozen=True)
class End:
    """How a sequence ended that did not fail."""

    reason: Literal["stop", "length"]
    stop_reason: str = ""
    """The stop string that was found, or the hook's reason."""
    terminated: bool = False
    """By the hook, and its whole request with it."""


_STOP, _LENGTH = End("stop"), End("length")


class Output:
    """One sequence's pipeline. `end` is set once nothing more may be shown."""

    __slots__ = ("_detokenizer", "_stops", "completion_tokens", "end", "hook")

    def __init__(
        self,
        *,
        detokenizer: Detokenizer | None,
        stops: StopStrings | None = None,
        hook: SequenceHook | None = None,
    ) -> None:
        """`detokenizer` may be None where nobody reads text: no hook, no stop strings, and a client
        that wants token ids alone.
        """
        self._detokenizer = detokenizer
        self._stops = stops
        self.hook = hook
        self.completion_tokens = 0
        self.end: End | None = None

    def push(self, delta: Delta) -> Piece | None:
        """What may be shown of a delta that brought tokens; None: nothing.

        Raises HookError; then nothing of the delta, nor anything later, may be shown.
        """
        self.completion_tokens += len(delta.token_ids)
        if delta.end is not None:
            self.end = _STOP if delta.end is Ending.STOP else _LENGTH
        piece = self._decode(delta) if self._stops is None else self._cut(delta, self._stops)
        if self.hook is not None:
            return self._judge(piece, self.hook)
        return piece if piece.text or piece.token_ids else None

    def abort(self) -> None:
        """The sequence is over, through no last chunk."""
        if self.hook is not None:
            self.hook.abort()

    def _decode(self, delta: Delta) -> Piece:
        detokenizer = self._detokenizer
        if detokenizer is None:
            text = ""
        elif delta.end is None:
            text = detokenizer.push(delta.token_ids)
        else:
            text = detokenizer.push(_shown(delta)) + detokenizer.flush()
        return Piece(text, delta.token_ids, delta.logprobs)

    def _cut(self, delta: Delta, stops: StopStrings) -> Piece:
        """Token by token, so that the cut does not depend on how many of them a step brought."""
        text = ""
        shown = len(_shown(delta))
        for place, token_id in enumerate(delta.token_ids):
            text += self._push_token(delta, place, token_id, place < shown, stops)
            if stops.matched is not None:
                break
        if delta.end is not None and stops.matched is None:
            text += stops.push(None, self._flush())
        if stops.matched is not None:
            self.end = End("stop", stops.matched)
        elif delta.end is not None:
            text += stops.flush()
        tokens = stops.released_tokens(final=self.end is not None)
        return Piece(text, [token.token_id for token in tokens], _logprobs(tokens))

    def _push_token(
        self, delta: Delta, place: int, token_id: int, shown: bool, stops: StopStrings
    ) -> str:
        assert self._detokenizer is not None
        text = self._detokenizer.push((token_id,)) if shown else ""
        logprobs = delta.logprobs
        return stops.push(
            Token(
                token_id,
                None if logprobs is None else logprobs.chosen[place],
                logprobs.top[place] if logprobs is not None and logprobs.top else (),
                stops.token_end(text, incomplete=self._detokenizer.incomplete),
            ),
            text,
        )

    def _flush(self) -> str:
        return "" if self._detokenizer is None else self._detokenizer.flush()

    def _judge(self, piece: Piece, hook: SequenceHook) -> Piece | None:
        verdict = hook.judge(piece.text, piece.token_ids, self.end is not None)
        if verdict.action == "emit":
            piece.text = verdict.text
            return piece if piece.text or piece.token_ids else None
        if verdict.action == "terminate":
            self.end = End("stop", verdict.reason, terminated=True)
            hook.abort()
        return None


def _shown(delta: Delta) -> Sequence[int]:
    """The tokens that have text: the one that ended a sequence has none, special or not."""
    return delta.token_ids[:-1] if delta.end is Ending.STOP else delta.token_ids


def _logprobs(tokens: Sequence[Token]) -> Logprobs | None:
    chosen = [token.logprob for token in tokens if token.logprob is not None]
    return Logprobs(chosen, [token.top for token in tokens]) if chosen else None
