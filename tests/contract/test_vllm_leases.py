"""KV that is read too late, twice or never becomes no answer: see vllm_leases.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import vllm_leases

HAND_OVERS = 600


@pytest.mark.vllm
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.promise("S5-854")
async def test_no_token_comes_from_kv_that_is_not_kept_any_more(
    model_path: Path, tmp_path: Path
) -> None:
    with vllm_leases.workers(model_path, tmp_path) as workers:
        tally = await vllm_leases.run(workers, hand_overs=HAND_OVERS, seed=3)
        assert [worker.end() for worker in workers] == [0, 0]
    assert (tally.wrong, tally.hung) == ([], 0)
    assert tally.answered["twice"] > 0
    assert tally.answered["read late"] == tally.answered["called late"] == 0
