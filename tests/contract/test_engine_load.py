"""What an engine says of its load is what its workers were given, on sim and on SGLang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from worker_pair import Pair, WorkerProcess, connected, launched_pair

from tandem.v1 import worker_pb2

pytestmark = pytest.mark.timeout(400)
PATIENCE = 60.0
STATES = ("running", "queued", "preallocating", "transferring", "retracted")
PROMPT = "The for statement is used to iterate over the elements of a sequence. " * 12
MOST_TOKENS = 3600
"""What the model's context leaves of the prompt: nothing ends while the test looks."""
MOVED = "tandem_kv_transfer_bytes_total"
READY_SECONDS = 30.0
Workers = tuple[WorkerProcess, WorkerProcess]


def states(worker: WorkerProcess) -> dict[str, float]:
    """All at one time."""
    found = worker.samples("tandem_engine_requests", rank="0")
    return {labels["state"]: value for labels, value in found}


def only(state: str, count: int) -> dict[str, float]:
    return {each: float(count if each == state else 0) for each in STATES}


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if await asyncio.to_thread(holds):
                return
            await asyncio.sleep(0.05)


async def load_of(pair: Pair, phase: int) -> worker_pb2.Load:
    description = await pair.stubs[phase].Describe(worker_pb2.DescribeWorkerRequest())
    return description.load


@pytest.mark.promise("S5-299")
async def test_decode_says_how_many_run_and_what_their_kv_takes(
    pair: Pair, workers: Workers
) -> None:
    prefill, decode = workers
    fields: dict[str, Any] = {"task": {"prompt_text": PROMPT}, "max_tokens": MOST_TOKENS}
    sequences = [await pair.start(**fields) for _ in range(3)]
    await pair.decode.until(lambda told: all(told.of(e.number, "started") for e in sequences))
    await until(lambda: states(decode) == only("running", 3))
    load = await load_of(pair, 1)
    assert (load.open_legs, load.waiting_legs) == (3, 0)
    ratio = decode.metric("tandem_engine_kv_used_ratio", rank="0")
    assert ratio is not None
    later = await load_of(pair, 1)
    assert load.kv_tokens_used <= round(ratio * load.kv_tokens_total) <= later.kv_tokens_used
    assert later.open_legs == 3, "it grows while all of them run"
    for sequence in sequences:
        await pair.cancel(sequence)
        await pair.finished(sequence)
    tokens = load.kv_tokens_used - load.prompt_tokens
    assert 0 < tokens <= 3 * (MOST_TOKENS + 64)  # sim takes whole pages at once
    await until(lambda: states(decode) == states(prefill) == only("running", 0))
    assert (await load_of(pair, 1)).kv_tokens_used == 0
    assert decode.metric("tandem_engine_kv_used_ratio", rank="0") == 0


@pytest.mark.promise("S5-299")
async def test_prefill_says_who_waits_for_the_pages_of_decode(pair: Pair, workers: Workers) -> None:
    sequences = [await pair.start(phases=("prefill",)) for _ in range(2)]
    await until(lambda: states(workers[0]) == only("preallocating", 2))
    load = await load_of(pair, 0)
    assert (load.open_legs, load.waiting_legs) == (2, 0)  # more prefill workers would not help
    for sequence in sequences:
        await pair.cancel(sequence)
        await pair.prefill.closed(sequence.number)
    await until(lambda: states(workers[0]) == only("running", 0))


@pytest.mark.promise("S5-299")
async def test_decode_says_who_waits_for_prefill(pair: Pair, workers: Workers) -> None:
    sequence = await pair.start(phases=("decode",))
    await until(lambda: states(workers[1]) == only("transferring", 1))
    assert (await load_of(pair, 1)).waiting_legs == 0
    await pair.cancel(sequence)
    await pair.decode.closed(sequence.number)
    await until(lambda: states(workers[1]) == only("running", 0))


@pytest.mark.promise("S5-299")
async def test_a_second_turn_is_counted_as_cached(pair: Pair, workers: Workers) -> None:
    def counted() -> tuple[float, float]:
        names = ("tandem_worker_prompt_tokens_total", "tandem_worker_cached_tokens_total")
        prompt, cached = (workers[0].metric(name) for name in names)
        assert prompt is not None
        assert cached is not None
        return prompt, cached

    def counted_since(before: tuple[float, float]) -> bool:
        return counted()[0] > before[0]

    description = await pair.stubs[0].Describe(worker_pb2.DescribeWorkerRequest())
    turns = []
    for _ in range(2):
        before = counted()
        sequence = await pair.start(task={"prompt_text": "A second turn. " + PROMPT}, max_tokens=2)
        await pair.finished(sequence)
        await until(partial(counted_since, before))
        turns.append([now - then for now, then in zip(counted(), before, strict=True)])
    (tokens, first), (again, second) = turns
    assert tokens == again > 100
    # Engines compute a prompt's last token always, and vLLM the page that it is on. Sim has no
    # cache unless an option gives it one.
    page = description.fingerprint.page_size
    cached = {"sim": 0, "sglang": tokens - 1, "vllm": (tokens - 1) // page * page}
    assert second == cached[description.fingerprint.engine]
    assert first < tokens / 2  # of other tests' prompts


@pytest.mark.promise("S5-298")
async def test_prefill_says_that_kv_went_through_shared_memory(
    pair: Pair, workers: Workers
) -> None:
    """Both workers are on this machine. What vLLM reads over is not known."""
    description = await pair.stubs[0].Describe(worker_pb2.DescribeWorkerRequest())
    over = "unknown" if description.fingerprint.engine == "vllm" else "shm"
    sequence = await pair.start(max_tokens=2)
    await pair.finished(sequence)
    await until(lambda: workers[0].metric(MOVED, transport=f"nixl/ucx/{over}"))
    assert workers[0].metric(MOVED, transport="nixl/ucx/tcp") is None


@pytest.mark.promise("S5-298")
async def test_prefill_says_that_kv_went_over_tcp(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    with launched_pair("sim", model_path, tmp_path, ready_seconds=READY_SECONDS) as workers:
        async with connected(workers) as pair:
            await pair.finished(await pair.start(max_tokens=2))
        for worker in workers:  # decode is told
            await until(partial(worker.metric, MOVED, transport="nixl/ucx/tcp"))
            others = ("nixl/ucx/shm", "nixl/ucx/unknown")
            moved = [worker.metric(MOVED, transport=transport) for transport in others]
            assert moved == [None, 0]
