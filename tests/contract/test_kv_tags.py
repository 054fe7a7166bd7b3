"""No answer from KV that is not the request's, on real engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kv_mischief
import kv_mischief_load
import pytest
from worker_pair import WITHOUT_FORMS, Pair, connected, launched_pair

from tandem.v1 import worker_pb2

pytestmark = pytest.mark.timeout(600)
PROMPT, OTHER = [300, 301, 302, 303, 304], [400, 401, 402, 403, 404]
READY_SECONDS = 400.0


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


@pytest.mark.sglang
@pytest.mark.promise("S5-693")
async def test_a_transfer_that_misbehaves_gives_no_wrong_answer(
    model_path: Path, tmp_path: Path
) -> None:
    with launched_pair(
        "sglang",
        model_path,
        tmp_path,
        ready_seconds=READY_SECONDS,
        flags=(f"--engine-options=kv_check=bytes,{WITHOUT_FORMS}",),
        mischief=kv_mischief_load.mischief(tmp_path, ",".join(kv_mischief.FAULTS)),
    ) as workers:
        async with connected(workers) as pair:
            tally = await kv_mischief_load.run(pair, 240, tmp_path)
        assert [worker.end() for worker in workers] == [0, 0]
    assert not tally.wrong
    assert tally.answered > 80
    assert set(tally.injected) == set(kv_mischief.FAULTS)
    assert all(said.startswith("kv_") for said in tally.refused)
