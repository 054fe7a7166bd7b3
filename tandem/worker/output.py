"""What a sequence's tokens become on their way out: text, cut at stop strings, judged by hooks.

Nothing is ever decoded again over what a hook decided: each stage only appends (S0-008, S0-030).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Literal

from tandem.engine.base import Delta, Ending
from tandem.hooks.chain import SequenceChain
from tandem.hooks.piece import Piece
from tandem.text.detokenizer import Detokenizer
from tandem.text.stop_strings import StopStrings, Token, TokenLogprob


@dataclass(slots=True, frozen=True)
class End:
    """How a sequence ended that did not fail."""

    reason: Literal["stop", "length"]
    stop_reason: str = ""
    """The stop string that was found, the hook's reason, or the name of the classifier."""
    terminated: bool = False
    """By a hook, and its whole request with it."""
    withheld: bool = False
    """By a hook or a classifier."""


_STOP, _LENGTH = End("stop"), End("length")


class Output:
    """One sequence's pipeline: `push`, or `cut` and later `ruled` where hooks judge elsewhere.

    `end` is set once nothing more may be shown.
    """

    __slots__ = (
        "_cut_end",
        "_detokenizer",
        "_stops",
        "completion_tokens",
        "deferred_seconds",
        "emitted",
        "end",
        "hooks",
        "suppressed",
        "terminated",
    )

    def __init__(
        self, *, detokenizer: Detokenizer | None, stops: StopStrings | None = None
    ) -> None:
        """`detokenizer` may be None where nobody reads text: no hook, no stop strings, and a client
        that wants token ids alone.
        """
        self._detokenizer = detokenizer
        self._stops = stops
        self._cut_end: End | None = None
        self.hooks: SequenceChain | None = None
        """Those that judge at once."""
        self.completion_tokens = 0
        self.end: End | None = None
        self.emitted = self.suppressed = self.terminated = 0
        """Chunks, by what hooks made of them."""
        self.deferred_seconds = 0.0
        """Spent in hooks that judge elsewhere."""

    def push(self, delta: Delta) -> Piece | None:
        """What may be shown of a delta that brought tokens; None: nothing.

        Raises HookError; then nothing of the delta, nor anything later, may be shown.
        """
        piece = self.cut(delta)
        hooks = self.hooks
        if hooks is None:
            self.end = self._cut_end
            return piece if piece.text or piece.token_ids else None
        final = self._cut_end is not None
        passed = hooks.judge(piece, final)
        if passed is piece and not final:  # what nearly every call comes to
            self.emitted += 1
            return piece if piece.text or piece.token_ids else None
        return self.ruled(passed, hooks.reason, final)

    def cut(self, delta: Delta) -> Piece:
        """Text and tokens of a delta, before any hook has seen them."""
        self.completion_tokens += len(delta.token_ids)
        if delta.end is not None:
            self._cut_end = _STOP if delta.end is Ending.STOP else _LENGTH
        return self._decode(delta) if self._stops is None else self._cut(delta, self._stops)

    @property
    def over(self) -> bool:
        """What `cut` gave was the last."""
        return self._cut_end is not None

    @property
    def hook_seconds(self) -> float:
        """Spent in hooks."""
        return self.deferred_seconds + (0.0 if self.hooks is None else self.hooks.seconds)

    def ruled(self, piece: Piece | None, reason: str | None, final: bool) -> Piece | None:
        """What may be shown, now that hooks have ruled on the oldest piece they had not.

        `reason`: of a terminate. `final`: it was the last piece.
        """
        if reason is not None:
            self.terminated += 1
            self.end = End("stop", reason, terminated=True, withheld=True)
        elif piece is None:
            self.suppressed += 1
        else:
            self.emitted += 1
        if final and self.end is None:
            self.end = self._cut_end
        return piece if piece is not None and (piece.text or piece.token_ids) else None

    def abort(self) -> None:
        """The sequence is over, through no last chunk."""
        if self.hooks is not None:
            self.hooks.abort()

    def _decode(self, delta: Delta) -> Piece:
        detokenizer = self._detokenizer
        if detokenizer is None:
            text = ""
        elif delta.end is None:
            text = detokenizer.push(delta.token_ids)
        else:
            text = detokenizer.push(_shown(delta)) + detokenizer.flush()
        return Piece(text, delta.token_ids, _extras(delta))

    def _cut(self, delta: Delta, stops: StopStrings) -> Piece:
        """Token by token, so that the cut does not depend on how many of them a step brought."""
        text = ""
        shown, extras = len(_shown(delta)), _extras(delta)
        for place, token_id in enumerate(delta.token_ids):
            extra = None if extras is None else extras[place]
            text += self._push_token(token_id, extra, place < shown, stops)
            if stops.matched is not None:
                break
        if delta.end is not None and stops.matched is None:
            text += stops.push(None, self._flush())
        if stops.matched is not None:
            self._cut_end = End("stop", stops.matched)
        elif delta.end is not None:
            text += stops.flush()
        tokens = stops.released_tokens(final=self._cut_end is not None)
        released = [token.extra for token in tokens]
        return Piece(
            text, [token.token_id for token in tokens], None if extras is None else released
        )

    def _push_token(
        self, token_id: int, extra: TokenLogprob | None, shown: bool, stops: StopStrings
    ) -> str:
        assert self._detokenizer is not None
        text = self._detokenizer.push((token_id,)) if shown else ""
        end = stops.token_end(text, incomplete=self._detokenizer.incomplete)
        return stops.push(Token(token_id, extra, end), text)

    def _flush(self) -> str:
        return "" if self._detokenizer is None else self._detokenizer.flush()


def _shown(delta: Delta) -> Sequence[int]:
    """The tokens that have text: the one that ended a sequence has none, special or not."""
    return delta.token_ids[:-1] if delta.end is Ending.STOP else delta.token_ids


def _extras(delta: Delta) -> list[TokenLogprob] | None:
    logprobs = delta.logprobs
    if logprobs is None:
        return None
    return list(zip(logprobs.chosen, logprobs.top or repeat(()), strict=False))
