"""A transfer that misbehaves between real engines: wrong_kv.py, with few hand-overs."""

from __future__ import annotations

from pathlib import Path

import pytest
from transfer_faults import ANOTHERS, FAULTS, OF_TRANSFER, Fault
from wrong_kv import READY_SECONDS, WrongKv, between_engines, try_mutants

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.long,
    pytest.mark.promise("S5-697"),
    pytest.mark.timeout(2 * READY_SECONDS),
]
HAND_OVERS, OF_A_MUTANT = 400, 200


async def test_no_answer_of_a_real_pair_is_from_wrong_kv(tmp_path: Path) -> None:
    with between_engines(tmp_path) as workers:
        wrong_kv = WrongKv(workers, tmp_path, seed=7)
        tally = await wrong_kv.run(HAND_OVERS)
        assert tally.injected.total() == HAND_OVERS
        assert (tally.wrong.total(), tally.needless) == (0, 0), tally
        assert {fault for fault in OF_TRANSFER if not tally.done[fault]} == set()
        assert tally.done[ANOTHERS]
        # What is doubled is good itself, and hits another.
        assert {fault for fault in FAULTS if not tally.refused[fault]} <= {Fault.DOUBLED}
        assert tally.refused[Fault.NONE]
        # Wrong answers are found where decode leaves any part of its check out.
        assert await try_mutants(wrong_kv, OF_A_MUTANT)
