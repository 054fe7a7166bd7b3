"""Feeds a hook the chunks of a sequence, and keeps what its verdicts let through."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tandem.hooks.contract import Chunk, Phase, Verdict

Part = tuple[str, int]
"""A chunk's text, and how many tokens it has."""


@dataclass
class Shown:
    """What a client got."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    """Each is the number of the token in its sequence."""
    held: list[int] = field(default_factory=list)
    """So many tokens were held back after each call."""
    pieces: list[str] = field(default_factory=list)
    reason: str | None = None
    verdicts: list[Verdict] = field(default_factory=list)


class Feed:
    """One sequence's way through a hook."""

    def __init__(
        self, hook: Any, *, request_id: int = 1, phase: Phase = "decode", streaming: bool = True
    ) -> None:
        self.hook = hook
        self.request_id = request_id
        self.phase: Phase = phase
        self.streaming = streaming
        self.shown = Shown()
        self._text = ""
        self._tokens = 0
        self._held: list[int] = []

    def chunk(self, text: str, tokens: int, final: bool, *, aborted: bool = False) -> Chunk:
        self._text += text
        ids = list(range(self._tokens, self._tokens + tokens))
        self._tokens += tokens
        self._held += ids
        return Chunk(
            request_id=self.request_id,
            output_index=0,
            text_diff=text,
            text=self._text,
            token_ids_diff=ids,
            is_final=final,
            aborted=aborted,
            streaming=self.streaming,
            phase=self.phase,
            trace_id="t",
            model="m",
        )

    def push(self, text: str, tokens: int = 1, *, final: bool = False) -> Verdict:
        verdict = self.hook(self.chunk(text, tokens, final))
        assert not inspect.isawaitable(verdict)
        self.apply(verdict, final)
        return verdict

    async def push_async(self, text: str, tokens: int = 1, *, final: bool = False) -> None:
        self.apply(await self.hook(self.chunk(text, tokens, final)), final)

    def apply(self, verdict: Verdict, final: bool) -> None:
        """As tandem.hooks.runner does."""
        shown = self.shown
        shown.verdicts.append(verdict)
        if verdict.action == "terminate":
            shown.reason = verdict.reason
            shown.text += verdict.text
            shown.pieces.append(verdict.text)
            self._held = []
            return
        assert 0 <= verdict.hold_tokens <= len(self._held)
        assert not (final and verdict.hold_tokens)
        cut = len(self._held) - verdict.hold_tokens
        going, self._held = self._held[:cut], self._held[cut:]
        if verdict.action == "emit":
            shown.text += verdict.text
            shown.pieces.append(verdict.text)
            if verdict.show_tokens:
                shown.tokens += going
        shown.held.append(len(self._held))


def feed(hook: Any, parts: Sequence[Part], **kwargs: Any) -> Shown:
    """One whole sequence, its last part final; it stops at a terminate."""
    way = Feed(hook, **kwargs)
    for place, (text, tokens) in enumerate(parts, 1):
        way.push(text, tokens, final=place == len(parts))
        if way.shown.reason is not None:
            break
    return way.shown


def equal_parts(text: str, size: int) -> list[Part]:
    """One token each; an empty text is one part."""
    return [(text[at : at + size], 1) for at in range(0, len(text), size)] or [("", 1)]


@st.composite
def parts_of(draw: st.DrawFn, text: str) -> list[Part]:
    """Any chunking: also chunks of several tokens, and tokens without text."""
    parts: list[Part] = []
    while text:
        size = min(draw(st.sampled_from([1, 2, 3, 4, 9, 0])), len(text))
        parts.append((text[:size], draw(st.integers(1, 3)) if size else 1))
        text = text[size:]
    return [*parts, ("", draw(st.integers(0, 1)))] if draw(st.booleans()) or not parts else parts


def tokens_of(parts: Sequence[Part], text: str) -> list[tuple[int, int, int]]:
    """(token, begin, end) for each token: the stretch of text that its chunk, or for a token
    without text the next chunk that has some, stands for.
    """
    found, waiting, token, place = [], [], 0, 0
    for diff, count in parts:
        waiting += range(token, token + count)
        token += count
        if diff:
            found += [(number, place, place + len(diff)) for number in waiting]
            waiting = []
            place += len(diff)
    return found + [(number, place, place) for number in waiting]
