"""The audit log says what was decided on: text that was held back and let go as it came was not."""

from __future__ import annotations

from typing import Any

from examples.hooks import PhraseGuard, UpperCase
from examples.redact_pii import RedactPii
from tandem.hooks.audit import AuditLog, Decided
from tandem.hooks.chain import Chain
from tandem.hooks.contract import Hook
from tandem.hooks.loader import LoadedHook
from tandem.hooks.piece import Piece
from tandem.hooks.settings import HookEntry
from tandem.hooks.trial import Brought, TrialRequest


class Lines(AuditLog):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[Decided] = []

    def wants(self, decision: str) -> bool:
        return decision != "emit"

    def record(self, decided: Decided) -> None:
        self.lines.append(decided)


async def decisions(hook: Hook, *texts: str) -> list[tuple[Any, ...]]:
    lines = Lines()
    entry = HookEntry(path="h", name="h")
    runner = LoadedHook(hook, entry=entry, phase="decode", model="m", audit=lines)
    request = TrialRequest(Chain([runner], audit=lines))
    for number, text in enumerate(texts, 1):
        if not request.over:
            await request.step([Brought(Piece(text, (number,)), number == len(texts))])
    return [
        (line.decision, line.text_before, line.text_after, line.token_count) for line in lines.lines
    ]


async def test_text_that_was_held_and_let_go_leaves_no_line() -> None:
    assert await decisions(PhraseGuard(), "a", " forbidden", " rain", " and", " forbidden") == []


async def test_a_terminate_is_about_all_text_that_was_held() -> None:
    lines = await decisions(PhraseGuard(), "a", " forbidden", " phr", "ase", " never")
    assert lines == [("terminate", " forbidden phrase", " ", 4)]


async def test_a_rewrite_is_about_the_text_that_it_replaces() -> None:
    assert await decisions(UpperCase(), "ab", "C") == [("rewrite", "ab", "AB", 1)]
    lines = await decisions(RedactPii(), "Ask", " ann@", "b.com", " now")
    assert lines == [("rewrite", "Ask ann@b.com now", "Ask [email] now", 4)]
