"""No answer from KV that is not the request's, on real engines."""

from __future__ import annotations

from typing import Any

import pytest
from worker_pair import Pair

from tandem.v1 import worker_pb2

pytestmark = pytest.mark.timeout(400)
PROMPT, OTHER = [300, 301, 302, 303, 304], [400, 401, 402, 403, 404]


@pytest.mark.promise("S5-692")
@pytest.mark.parametrize(
    ("decode", "said"),
    [
        ({"prompt_token_ids": OTHER}, "another prompt"),
        ({"cache_salt": "umbrella"}, "another cache salt"),
    ],
    ids=["prompt", "salt"],
)
async def test_decode_answers_from_no_kv_of_another_request(
    pair: Pair, decode: dict[str, Any], said: str
) -> None:
    task = {
        "prompt_text": "",
        "prompt_token_ids": PROMPT,
        "want_token_ids": True,
        "cache_salt": "acme",
    }
    sequence = await pair.start(task=task, decode_task=decode)
    _, closed = await pair.finished(sequence)
    assert closed.outcome == worker_pb2.LegClosed.OUTCOME_FAILED
    assert closed.error.code == "kv_corrupt"
    assert said in closed.error.message
    assert closed.retryable
    shown = [token for columns in pair.decode.told.columns for token in columns.token_id]
    assert shown == []
    good = await pair.start(task=task)
    _, closed = await pair.finished(good)
    assert closed.outcome == worker_pb2.LegClosed.OUTCOME_FINISHED
