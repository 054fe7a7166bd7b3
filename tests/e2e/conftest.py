"""Running stacks, shared by all tests of a session."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from stacks import SGLANG_READY_SECONDS, SIM_READY_SECONDS, Served, options

from tandem.cli.stack import Stack

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def hook_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where switch hooks of every stack of this run write; also makes them importable there."""
    log = tmp_path_factory.mktemp("hooks") / "calls.jsonl"
    log.touch()
    names = ("PYTHONPATH", "SWITCH_HOOK_LOG", "TANDEM_TRUST_TRACEPARENT")
    before = {name: os.environ.get(name) for name in names}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), before["PYTHONPATH"])))
    os.environ["SWITCH_HOOK_LOG"] = str(log)
    os.environ["TANDEM_TRUST_TRACEPARENT"] = "true"  # tests know requests by their trace ids
    yield log
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def _serve(
    engine: str, model_path: Path, hook_log: Path, run_dir: Path, ready_seconds: float
) -> Iterator[Served]:
    with Stack(options(engine, model_path), run_dir=run_dir) as stack:
        stack.wait_ready(timeout_seconds=ready_seconds)
        yield Served(engine, stack, hook_log)


@pytest.fixture(scope="session")
def sim(
    model_path: Path, hook_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    run_dir = tmp_path_factory.mktemp("sim")
    yield from _serve("sim", model_path, hook_log, run_dir, SIM_READY_SECONDS)


@pytest.fixture(scope="session")
def sim_aggregated(
    model_path: Path, hook_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """One worker that serves both phases, alone."""
    run_dir = tmp_path_factory.mktemp("aggregated")
    alone = options("sim", model_path, prefill=0, decode=0, aggregated=1)
    with Stack(alone, run_dir=run_dir) as stack:
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        yield Served("sim", stack, hook_log)


@pytest.fixture(scope="session")
def sim_pool(
    model_path: Path, hook_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """With the switch hook in two processes of each worker."""
    run_dir = tmp_path_factory.mktemp("pool")
    settings = run_dir / "worker.yaml"
    settings.write_text("hooks: {workers: 2, chain: [switch_hook.SwitchHook]}\n")
    pooled = options("sim", model_path, hook_prefill="", hook_decode="")
    flags = dict.fromkeys(("prefill_worker", "decode_worker"), (f"--config={settings}",))
    pooled = replace(pooled, flags={**pooled.flags, **flags})
    with Stack(pooled, run_dir=run_dir) as stack:
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        yield Served("sim", stack, hook_log)


@pytest.fixture(scope="session")
def sglang(
    model_path: Path, hook_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    run_dir = tmp_path_factory.mktemp("sglang")
    yield from _serve("sglang", model_path, hook_log, run_dir, SGLANG_READY_SECONDS)


@pytest.fixture(params=["sim", "sim_aggregated", pytest.param("sglang", marks=pytest.mark.sglang)])
def served(request: pytest.FixtureRequest) -> Served:
    """The same tests over a pair and an aggregated worker, and over both engines."""
    stack: Served = request.getfixturevalue(request.param)
    return stack


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncOpenAI]:
    """The official client."""
    async with AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60
    ) as client:
        yield client
