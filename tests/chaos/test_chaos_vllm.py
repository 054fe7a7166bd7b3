"""Some kinds of faults strike a stack of vLLM workers; `make vllm-chaos` has all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from chaotic.fleet import VLLM, Fleet, running
from chaotic.kinds import KINDS_OF
from chaotic.learnt import Learnt
from chaotic.trial import endure

SEED = 1
SHORT = (
    "kill -9 of the engine's process: decode",
    "SIGSTOP, SIGCONT of the engine's process: decode",
    "kill -9 of the engine's process: prefill",
    "kill -9, restart at once: decode",
)
OTHERS = (
    "half of the clients go away",
    "stray bytes on all ports: prefill",
)

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.vllm,
    pytest.mark.long,
    pytest.mark.timeout(900),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with running(tmp_path_factory.mktemp("chaos"), engine=VLLM) as fleet:
        yield fleet


@pytest.mark.promise("S5-855", "S5-865")
@pytest.mark.parametrize("name", [*SHORT, *OTHERS])
async def test_answers_are_right_and_errors_those_of_the_fault(fleet: Fleet, name: str) -> None:
    (kind,) = (each for each in KINDS_OF["vllm"] if each.name == name)
    learnt = Learnt()
    await learnt.learn(fleet.stack.url, SEED)
    row = await endure(kind, fleet, seed=SEED, oracle=learnt)
    assert (row.faults, row.wrong, row.hung) == ([], 0, 0)
