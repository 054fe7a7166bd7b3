"""Some kinds of faults strike one stack; `make chaos` has all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio
from chaotic import network_faults
from chaotic.fleet import Fleet, running
from chaotic.kinds import KINDS
from chaotic.trial import Kind, endure
from sim_oracle import Oracle
from soak import soak

from tandem.v1.common_pb2 import TokenColumns
from tandem.v1.worker_pb2 import WorkerFrame

SEED = 1
SHORT = (
    "kill -9, restart at once: decode",
    "SIGSTOP, SIGCONT after 1 s: prefill",
    "network silent for 1 s: decode",
    "wrong frames: repeated",
    "KV corrupt",
    "kill -9, restart at once: router",
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with running(tmp_path_factory.mktemp("chaos")) as fleet:
        yield fleet


def kind(name: str) -> Kind:
    (found,) = (each for each in KINDS if each.name == name)
    return found


@pytest.mark.promise("S5-230")
@pytest.mark.parametrize("name", SHORT)
async def test_answers_are_right_and_errors_those_of_the_fault(fleet: Fleet, name: str) -> None:
    row = await endure(kind(name), fleet, seed=SEED, oracle=Oracle())
    assert (row.faults, row.wrong, row.hung) == ([], 0, 0)


def another_token(frame: WorkerFrame) -> list[bytes]:
    """A frame as it should be, but for what it says."""
    for envelope in frame.envelopes:
        columns = TokenColumns.FromString(envelope.payload)
        columns.token_id[:] = [token ^ 1 for token in columns.token_id]
        envelope.payload = columns.SerializeToString()
    return [frame.SerializeToString()]


@pytest.mark.promise("S5-231")
async def test_a_wrong_token_is_noticed(fleet: Fleet) -> None:
    strike = partial(network_faults.spoil, name="decode_worker-0", how=another_token)
    row = await endure(Kind(name="lies", strike=strike), fleet, seed=SEED, oracle=Oracle())
    assert row.wrong
    assert any("not [" in fault for fault in row.faults)


@pytest.mark.promise("S5-232")
async def test_clients_that_go_away_leave_nothing_open(fleet: Fleet) -> None:
    soaked = await soak(fleet, seconds=4.0, clients=10, seed=SEED)
    assert soaked.faults == []
    assert 0 < soaked.book.left < soaked.book.requests
    assert all(held.memory for held in soaked.held.values())
