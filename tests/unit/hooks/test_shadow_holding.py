"""A hook in shadow that would hold text back has its verdicts counted as what they are."""

from __future__ import annotations

from tandem.hooks.chain import Chain
from tandem.hooks.piece import Piece
from tandem.hooks.settings import parse
from tandem.hooks.trial import Brought, TrialRequest


async def test_a_shadow_hook_that_holds_tokens_does_not_fail() -> None:
    entry = {"path": "examples.redact_pii:RedactPii", "shadow": True}
    chain = Chain.build(parse("", {"chain": [entry]}), phase="decode", model="m")
    request = TrialRequest(chain)
    texts = ["Write", " to", " ann", "@b.com", " now"]
    for number, text in enumerate(texts, 1):
        await request.step([Brought(Piece(text, (number,)), number == len(texts))])
    assert request.outputs[0].text == "Write to ann@b.com now"
    assert request.outputs[0].token_ids == [1, 2, 3, 4, 5]
    counters = chain.hooks[0].counters
    assert (counters.verdicts["error"], counters.verdicts["suppress"]) == (0, 4)
    assert counters.held_tokens == 0
