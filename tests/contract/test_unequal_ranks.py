"""Pairs whose phases divide a model among unequal numbers of ranks, in both directions: KV heads
arrive where each rank of decode reads them.

Real SGLang on the CPU, over loopback, in float32: sums over two ranks differ from those over one in
the last digits alone. GPUs, NCCL and what lies between machines are not in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_pair import Pair, WorkerProcess, connected, launched_pair

from tandem.v1 import worker_pb2

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(500),
    pytest.mark.promise("S5-370"),
]
READY_SECONDS = 400.0
PROMPTS = [[5 + (11 * number + place) % 200 for place in range(20 + number)] for number in range(3)]
TOKENS = 6
KV_BYTES = 4096
"""Of a token, in float32."""
SIZES = ((2, 1), (1, 2))
"""A pair takes 110 seconds of CPU time to start: more than the first only where they are asked for.
"""
ALL = bool(os.environ.get("TANDEM_TEST_ALL_RANKS"))
Workers = tuple[WorkerProcess, WorkerProcess]


@pytest.fixture(
    scope="module",
    params=SIZES if ALL else SIZES[:1],
    ids=lambda sizes: f"{sizes[0]}-to-{sizes[1]}",
)
def ranks(request: pytest.FixtureRequest) -> tuple[int, int]:
    """Of prefill and of decode."""
    sizes: tuple[int, int] = request.param
    return sizes


@pytest.fixture(scope="module")
def workers(
    ranks: tuple[int, int], model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    sizes = "tensor_parallel={},decode_tensor_parallel={}".format(*ranks)
    flags = [f"--engine-options=device=cpu,dtype=float32,max_total_tokens=8192,{sizes}"]
    folder = tmp_path_factory.mktemp("unequal")
    with launched_pair("sglang", model_path, folder, ready_seconds=READY_SECONDS, flags=flags) as w:
        yield w
        assert [worker.end() for worker in w] == [0, 0]


async def _generate(pair: Pair, prompt: list[int], tokens: int) -> list[int]:
    task = {"prompt_text": "", "prompt_token_ids": prompt, "want_token_ids": True}
    sequence = await pair.start(task=task, max_tokens=tokens)
    await pair.finished(sequence)
    (started,) = pair.decode.told.of(sequence.number, "started")
    assert started.kv_bytes == len(prompt) * KV_BYTES
    return sequence.token_ids[-tokens:]


async def test_decode_goes_on_as_prefill_itself_would(
    workers: Workers, ranks: tuple[int, int]
) -> None:
    """Prefill reads what decode made, and makes the same token next."""
    async with connected(workers) as pair:
        for stub in pair.stubs:
            described = await stub.Describe(worker_pb2.DescribeWorkerRequest())
            print_ = described.fingerprint
            assert (print_.tensor_parallel, print_.decode_tensor_parallel) == ranks
        made = [await _generate(pair, prompt, TOKENS) for prompt in PROMPTS]
        assert len({tuple(tokens) for tokens in made}) > 1
        for prompt, tokens in zip(PROMPTS, made, strict=True):
            for length, token in enumerate(tokens):
                assert await _generate(pair, prompt + tokens[:length], 1) == [token]
        await pair.idle()


async def test_what_prefill_counts_as_sent_is_what_decode_received(workers: Workers) -> None:
    async with connected(workers) as pair:
        before = [_moved(worker) for worker in workers]
        for prompt in PROMPTS:
            await _generate(pair, prompt, 2)
        await pair.idle()
        moved = [_moved(worker) - then for worker, then in zip(workers, before, strict=True)]
    assert moved == [sum(map(len, PROMPTS)) * KV_BYTES] * 2


def _moved(worker: WorkerProcess) -> float:
    return worker.total("tandem_kv_transfer_bytes_total")
