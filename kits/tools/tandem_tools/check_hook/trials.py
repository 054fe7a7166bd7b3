"""Single requests through a fresh hook, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.hooks.chain import Chain
from tandem.hooks.trial import Brought, Shown, TrialRequest
from tandem_tools.check_hook.subject import Probe, Told


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    """What a client gets of an answer."""

    text: str
    token_ids: tuple[int, ...]
    stop_reason: str | None
    failed: str | None


def contrast(one: TrialAnswer, other: TrialAnswer) -> tuple[str, str]:
    """Two answers in words, with their texts from shortly before they differ."""
    pairs = enumerate(zip(one.text, other.text, strict=False))
    shorter = min(len(one.text), len(other.text))
    same = next((place for place, (a, b) in pairs if a != b), shorter)
    begin = max(0, same - 24)
    return _words(one, begin, same + 32), _words(other, begin, same + 32)


def _words(result: TrialAnswer, begin: int, end: int) -> str:
    if result.failed is not None:
        return f"failed: {result.failed}"
    before, after = "…" * (begin > 0), "…" * (len(result.text) > end)
    shown = f"shows {before + result.text[begin:end] + after!r}"
    return shown if result.stop_reason is None else f"{shown}, then stops ({result.stop_reason})"


def trial_answer(shown: Shown) -> TrialAnswer:
    failed = None if shown.error is None else shown.error.message
    return TrialAnswer(shown.text, tuple(shown.token_ids), shown.stop_reason, failed)


async def answer(
    chain: Chain,
    steps: Sequence[Brought],
    *,
    aborted: bool = False,
    streaming: bool = True,
) -> TrialAnswer:
    """One request from its first chunk to its end; `aborted`: its client goes away."""
    request = TrialRequest(chain, streaming=streaming)
    for step in steps:
        if not request.over:
            await request.step([step])
    if aborted:
        await request.abort()
    return trial_answer(request.outputs[0])


async def together(
    chain: Chain, probe: Probe, turns: Sequence[Sequence[Brought | None]]
) -> list[list[Told]]:
    """One request with several outputs; gives the verdicts on each of them."""
    request = TrialRequest(chain, outputs=len(turns[0]))
    for turn in turns:
        if not request.over:
            await request.step(turn)
    return [probe.told[1 + index] for index in range(len(turns[0]))]
