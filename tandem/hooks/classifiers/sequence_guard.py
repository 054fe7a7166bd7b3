"""What a client may see of an output while classifiers have not judged all of it.

Nothing here waits or does I/O: a worker pushes what its hook chain let through, asks the
classifiers when it is told to, and shows what it is given. The order never changes.

    hold_back   what waits for a judgement                          a block replaces
    none        the last chunk, and the finish                      the last chunk
    window      each window of tokens, until all text up to its     all that was not shown, and ends
                end was judged                                      the output there
    all         everything                                          everything

Only where some classifier blocks; else nothing waits but the finish, so that scores come with it.
Without streaming nothing was shown before the end, so it is `all` whatever the setting: then the
replacement is the whole text (S4-103). What is replaced goes in every channel: text, token ids and
log-probabilities (S4-112).

What is held is bounded by the length of one output, which the request's max_tokens bounds; while a
judgement runs, by what the engine makes within the longest timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tandem.hooks.classifiers.classifier_set import Judgement
from tandem.hooks.classifiers.contract import ScoringContext
from tandem.hooks.classifiers.settings import HoldBack
from tandem.hooks.piece import Piece


@dataclass(slots=True, frozen=True, kw_only=True)
class Question:
    """An output, as far as it has come, that classifiers are to judge now."""

    text: str
    token_ids: list[int]
    shown_chars: int
    """How many characters of `text` the client has already."""
    is_final: bool
    logprobs: list[float] = field(default_factory=list)
    """Log-probabilities of `token_ids`, where the deployment gives them to classifiers."""

    def context(self, base: ScoringContext, *, finish_reason: str) -> ScoringContext:
        """What classifiers are given: `base` says whose output it is; `finish_reason` is known
        where `is_final`.
        """
        return replace(
            base,
            generated_text=self.text,
            output_token_ids=self.token_ids,
            output_logprobs=self.logprobs,
            finish_reason=finish_reason if self.is_final else "",
            request_metadata={
                **base.request_metadata,
                "is_final": self.is_final,
                "shown_chars": self.shown_chars,
            },
        )


class Step(NamedTuple):
    """What follows from a push or a judgement."""

    show: Piece | None = None
    """May be shown now."""
    ask: Question | None = None
    """Have this judged, and say so with `judged`."""
    over: bool = False
    """Nothing follows `show`; the finish may be sent. Where the output was blocked before its end,
    the engine is to stop.
    """


_NOTHING = Step()


class SequenceGuard:
    """One sequence's way past the classifiers.

    `push` each piece that the hook chain let through, the last with `final`: an empty one, where
    the last chunk has nothing to show or a hook ended the sequence. When a step asks, call `judged`
    once with the answer; more may be pushed before that. There is at most one question open.

    An output that ends in an error, or is cancelled, is not judged: drop its guard (S4-119).
    """

    __slots__ = (
        "_asked",
        "_final",
        "_held",
        "_hold",
        "_logprobs",
        "_shown_chars",
        "_texts",
        "_token_ids",
        "_waiting",
        "_window",
        "blocked_by",
        "over",
    )

    def __init__(
        self,
        *,
        hold_back: HoldBack,
        window_tokens: int,
        blocks: bool,
        streaming: bool,
        logprobs: bool = False,
    ) -> None:
        """`blocks`: some classifier may block. `logprobs`: classifiers are given those of tokens,
        which pieces have.
        """
        self._hold: HoldBack | None = None
        """None: nothing is held, not even the last chunk."""
        if blocks:
            self._hold = hold_back if streaming else "all"
        self._window = window_tokens
        self._asked: Question | None = None
        self._held = _Held()
        """Waits for the answer to the open question."""
        self._waiting = _Held()
        """Came after it was asked, or waits for the next question."""
        self._final = False
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[float] | None = [] if logprobs else None
        self._shown_chars = 0
        self.over = False
        self.blocked_by: str | None = None
        """The classifier that blocked, once one has."""

    @property
    def held_tokens(self) -> int:
        """What is held, text without a token counted as one."""
        return self._held.tokens + self._waiting.tokens

    def push(self, piece: Piece, final: bool) -> Step:
        """What the hook chain let through. After a block: no effect. Raises ValueError where
        log-probabilities are missing.
        """
        if self.over:
            return _NOTHING
        self._texts.append(piece.text)
        self._token_ids += piece.token_ids
        if self._logprobs is not None and piece.token_ids:
            chosen = [logprob for logprob, _ in _extras(piece)]
            if len(chosen) != len(piece.token_ids):
                raise ValueError("the engine gave no log-probabilities for classifiers")
            self._logprobs += chosen
        self._final = final
        show = None
        if self._holds(final):
            self._waiting.add(piece)
        else:
            show = self._show(piece)
        ask = self._ask_if_due()
        return _NOTHING if show is None and ask is None else Step(show=show, ask=ask)

    def judged(self, judgement: Judgement) -> Step:
        """The answer to the open question."""
        asked, self._asked = self._asked, None
        if asked is None:
            return _NOTHING
        if judgement.blocked and self._hold is not None:
            return self._block(judgement)
        held, self._held = self._held, _Held()
        show = self._show(held.piece())
        if asked.is_final:
            self.over = True
            return Step(show=show, over=True)
        return Step(show=show, ask=self._ask_if_due())

    def _holds(self, final: bool) -> bool:
        return self._hold in ("window", "all") or (self._hold == "none" and final)

    def _ask_if_due(self) -> Question | None:
        if self._asked is not None:
            return None
        full = self._hold == "window" and self._waiting.tokens >= self._window
        if not full and not self._final:
            return None
        self._held, self._waiting = self._waiting, _Held()
        self._texts = ["".join(self._texts)]
        self._asked = Question(
            text=self._texts[0],
            token_ids=list(self._token_ids),
            shown_chars=self._shown_chars,
            is_final=self._final,
            logprobs=list(self._logprobs or ()),
        )
        return self._asked

    def _block(self, judgement: Judgement) -> Step:
        """Drop what was not shown. The replacement has no token ids and no log-probabilities."""
        self.over = True
        self.blocked_by = judgement.blocked_by
        self._held, self._waiting = _Held(), _Held()
        show = Piece(judgement.replacement, ()) if judgement.replacement else None
        return Step(show=show, over=True)

    def _show(self, piece: Piece) -> Piece | None:
        self._shown_chars += len(piece.text)
        return piece if piece.text or piece.token_ids else None


class _Held:
    """Pieces that wait, in order."""

    __slots__ = ("_pieces", "tokens")

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self.tokens = 0
        """Text that came without a token id counts as one, or a window of it would never fill."""

    def add(self, piece: Piece) -> None:
        if piece.text or piece.token_ids:
            self._pieces.append(piece)
            self.tokens += len(piece.token_ids) or 1

    def piece(self) -> Piece:
        """The held output, joined into one piece."""
        if len(self._pieces) == 1:
            return self._pieces[0]
        token_ids: list[int] = []
        extras: list[Any] = []
        for piece in self._pieces:
            token_ids += piece.token_ids
            extras += _extras(piece)
        text = "".join(piece.text for piece in self._pieces)
        return Piece(text, tuple(token_ids), extras or None)


def _extras(piece: Piece) -> Sequence[Any]:
    return () if piece.extras is None else piece.extras
