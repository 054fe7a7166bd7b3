"""What a sequence's tokens become on their way out: text, cut at stop strings, judged by hooks.

Nothing is ever decoded again over what a hook decided: each stage only appends (S0-008, S0-030).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Literal

from tandem.engine.base import Delta, Ending
from tandem.hooks.deferred import Ruling
from tandem.hooks.piece import Piece
from tandem.text.detokenizer import Detokenizer
from tandem.text.stop_strings import StopStrings, Token, TokenLogprob


@dataclass(slots=True, frozen=True)
class Finish:
    """How a sequence ended that did not fail."""

    reason: Literal["stop", "length"]
    stop_reason: str = ""
    """The stop string that was found, the hook's reason, or the name of the classifier."""
    terminated: bool = False
    """By a hook, and its whole request with it."""
    withheld: bool = False
    """By a hook or a classifier."""


_STOP, _LENGTH = Finish("stop"), Finish("length")


class Output:
    """One sequence's output. Each delta is `cut` and, where there are hooks, later `ruled` on."""

    __slots__ = (
        "_detokenizer",
        "_stops",
        "completion_tokens",
        "cut_end",
        "emitted",
        "end",
        "hook_seconds",
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
        self.cut_end: Finish | None = None
        """How it ends if hooks let it; what `cut` gave was the last. None: more may come."""
        self.end: Finish | None = None
        """How it ended; the core says so. None: more may be shown."""
        self.completion_tokens = 0
        self.emitted = self.suppressed = self.terminated = 0
        """Chunks, by what hooks made of them."""
        self.hook_seconds = 0.0

    @property
    def cuts(self) -> bool:
        """Stop strings are looked for."""
        return self._stops is not None

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of tokens that are not the last, where no stop string is looked for."""
        self.completion_tokens += len(token_ids)
        return "" if self._detokenizer is None else self._detokenizer.push(token_ids)

    def cut(self, delta: Delta) -> Piece:
        """Text and tokens of a delta, before any hook has seen them."""
        self.completion_tokens += len(delta.token_ids)
        if delta.end is not None:
            self.cut_end = _STOP if delta.end is Ending.STOP else _LENGTH
        return self._decode(delta) if self._stops is None else self._cut(delta, self._stops)

    def ruled(self, ruling: Ruling) -> Finish | None:
        """Count what hooks made of the oldest piece on which they had not ruled. Returns how the
        output ended with it; None: it goes on.
        """
        self.hook_seconds = ruling.seconds or self.hook_seconds
        if ruling.reason is not None:
            self.terminated += 1
            return Finish("stop", ruling.reason, terminated=True, withheld=True)
        if ruling.piece is not None:
            self.emitted += 1
        elif ruling.error is None:
            self.suppressed += 1
        return self.cut_end if ruling.final else None

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
            self.cut_end = Finish("stop", stops.matched)
        elif delta.end is not None:
            text += stops.flush()
        tokens = stops.released_tokens(final=self.cut_end is not None)
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
