"""A transfer that misbehaves between real engines: wrong_kv.py, with few hand-overs."""

from __future__ import annotations

from pathlib import Path

import pytest
from transfer_faults import ANOTHERS, FAULTS, OF_TRANSFER, Fault
from wrong_kv import READY_SECONDS, Tally, WrongKv, between_engines

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.long,
    pytest.mark.promise("S5-697"),
    pytest.mark.timeout(2 * READY_SECONDS),
]
HAND_OVERS = 600


async def _tally(folder: Path, *, check: str = "bytes", blind: str = "") -> Tally:
    with between_engines(folder, check=check, blind=blind) as (workers, told):
        return await WrongKv(workers, told, seed=7).run(HAND_OVERS)


async def test_no_answer_of_a_real_pair_is_from_wrong_kv(tmp_path: Path) -> None:
    tally = await _tally(tmp_path)
    assert tally.injected.total() == HAND_OVERS
    assert (tally.wrong.total(), tally.needless) == (0, 0), tally
    assert {fault for fault in OF_TRANSFER if not tally.done[fault]} == set()
    assert tally.done[ANOTHERS]
    # What is doubled is good itself, and hits another.
    assert {fault for fault in FAULTS if not tally.refused[fault]} == {Fault.DOUBLED}
    assert tally.refused[Fault.NONE]


async def test_wrong_answers_are_found_where_decode_compares_nothing(tmp_path: Path) -> None:
    """Then SGLang alone compares, and no more than the room."""
    tally = await _tally(tmp_path, blind="tag")
    right = {Fault.DOUBLED, Fault.CROSSED}
    assert {fault for fault in FAULTS if not tally.wrong[fault]} == right, tally
