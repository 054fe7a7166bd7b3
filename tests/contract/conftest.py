"""One pair of worker processes for each engine, shared by all tests of the contract."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import logits_probe
from worker_pair import Pair, WorkerProcess, connected, launched_pair, options_flag

SIM_READY_SECONDS = 30.0
SGLANG_READY_SECONDS = 280.0
VLLM_READY_SECONDS = 380.0
FLAGS = ("--hook=contract_hook.ContractHook", *logits_probe.FLAGS)
SIM_FLAGS = (options_flag("handover_timeout_seconds=8"),)
"""A peer's lease of decode's pages: a test waits for the end of one."""
VLLM_FLAGS = (options_flag("dtype=float32,handover_timeout_seconds=8"),)
"""In bfloat16 a near tie may fall otherwise in another batch."""
Workers = tuple[WorkerProcess, WorkerProcess]


def _pair(
    engine: str,
    model_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    seconds: float,
    flags: Sequence[str] = FLAGS,
) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp(f"contract-{engine}")
    with launched_pair(engine, model_path, folder, ready_seconds=seconds, flags=flags) as workers:
        yield workers
        assert [worker.end() for worker in workers] == [0, 0]


@pytest.fixture(scope="session")
def sim_workers(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    flags = (*FLAGS, *SIM_FLAGS)
    yield from _pair("sim", model_path, tmp_path_factory, SIM_READY_SECONDS, flags)


@pytest.fixture(scope="session")
def sglang_workers(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    yield from _pair("sglang", model_path, tmp_path_factory, SGLANG_READY_SECONDS)


@pytest.fixture(scope="session")
def vllm_workers(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    flags = (*FLAGS, *VLLM_FLAGS)
    yield from _pair("vllm", model_path, tmp_path_factory, VLLM_READY_SECONDS, flags)


@pytest.fixture(
    params=[
        "sim",
        pytest.param("sglang", marks=pytest.mark.sglang),
        pytest.param("vllm", marks=pytest.mark.vllm),
    ]
)
def workers(request: pytest.FixtureRequest) -> Workers:
    pair: Workers = request.getfixturevalue(f"{request.param}_workers")
    return pair


@pytest.fixture
async def pair(workers: Workers) -> AsyncIterator[Pair]:
    """Streams to both; whatever a test does, the workers must end up holding nothing."""
    async with connected(workers) as streams:
        yield streams
        await streams.idle()
