"""Mooncake in place of NIXL: decode goes on from the KV that came over it.

Real SGLang on the CPU and Mooncake's own TCP, over loopback. RDMA and GPUs are not in it. It runs
where scripts/set_up_mooncake.sh has been, or Mooncake is installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from worker_pair import ROOT, WITHOUT_FORMS, Pair, Sequence_, WorkerProcess, launched_pair

from tandem.v1 import worker_pb2

PACKAGE = ROOT / "build" / "mooncake"
LIBRARIES = ROOT / "build" / "libibverbs"
pytestmark = [
    pytest.mark.sglang,
    pytest.mark.timeout(600),
    pytest.mark.promise("S5-422"),
    pytest.mark.skipif(
        find_spec("mooncake") is None and not PACKAGE.exists(),
        reason="scripts/set_up_mooncake.sh has not been run",
    ),
]
READY_SECONDS = 400.0
TOKENS = 12
KV_BYTES = 4096
"""Of a token, in float32."""
PROMPTS = [[7 + (13 * number + 31 * place) % 1800 for place in range(60)] for number in range(2)]
OPTIONS = (
    f"device=cpu,dtype=float32,transfer_backend=mooncake,decode_prefix_cache=true,{WITHOUT_FORMS}"
)
Workers = tuple[WorkerProcess, WorkerProcess]


@pytest.fixture(scope="module")
def workers(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("mooncake")
    flags = (f"--engine-options={OPTIONS}",)
    with pytest.MonkeyPatch.context() as patch:
        _prepend(patch, "PYTHONPATH", [PACKAGE])
        _prepend(patch, "LD_LIBRARY_PATH", LIBRARIES.glob("**/*-linux-gnu"))
        with launched_pair(
            "sglang", model_path, folder, ready_seconds=READY_SECONDS, flags=flags
        ) as pair:
            yield pair
            assert [worker.end() for worker in pair] == [0, 0]


def _prepend(patch: pytest.MonkeyPatch, variable: str, folders: Iterable[Path]) -> None:
    paths = [*map(str, folders), *filter(None, [os.environ.get(variable)])]
    patch.setenv(variable, os.pathsep.join(paths))


async def _run(pair: Pair, prompt: list[int], decode_prompt: list[int], salt: str) -> Sequence_:
    task = {"prompt_text": "", "prompt_token_ids": prompt, "want_token_ids": True}
    decode_task = {"prompt_token_ids": decode_prompt}
    return await pair.run(
        task=task | {"cache_salt": salt}, decode_task=decode_task, max_tokens=TOKENS
    )


async def test_both_workers_say_what_hands_their_kv_over(pair: Pair) -> None:
    asked = worker_pb2.DescribeWorkerRequest()
    said = [(await stub.Describe(asked)).fingerprint.kv_transfer for stub in pair.stubs]
    assert said == ["mooncake"] * 2


async def test_decode_continues_the_prompt_that_prefill_read_not_its_own(pair: Pair) -> None:
    first, second = PROMPTS
    own = [(await _run(pair, each, each, "own")).token_ids[-TOKENS:] for each in PROMPTS]
    assert own[0] != own[1]
    assert (await _run(pair, first, second, "swapped")).token_ids[-TOKENS:] == own[0]


async def test_bytes_are_counted_under_its_name_in_both_phases(
    pair: Pair, workers: Workers
) -> None:
    """Of a prompt that decode has not, and then of one of which it has the beginning."""
    for length, expected in ((40, 40), (60, 20)):
        before = [_moved(worker) for worker in workers]
        prompt = PROMPTS[0][:length]
        await _run(pair, prompt, prompt, "counted")
        moved = [_moved(worker) - then for worker, then in zip(workers, before, strict=True)]
        assert moved == [expected * KV_BYTES] * 2
    assert workers[0].total("tandem_kv_transfer_seconds_sum", transport="mooncake/rdma/tcp") > 0


def _moved(worker: WorkerProcess) -> float:
    return sum(
        worker.total("tandem_kv_transfer_bytes_total", transport=f"mooncake/rdma/{wire}")
        for wire in ("tcp", "unknown")
    )


async def test_a_request_that_is_cancelled_costs_no_other(pair: Pair) -> None:
    prompt = PROMPTS[1]
    alone = (await _run(pair, prompt, prompt, "cancels")).token_ids[-TOKENS:]
    task = {"prompt_text": "", "prompt_token_ids": prompt[::-1]}
    cancelled = [await pair.start(task=task, max_tokens=200) for _ in range(4)]
    for sequence in cancelled:
        await pair.cancel(sequence)
        await pair.finished(sequence)
    assert (await _run(pair, prompt, prompt, "anew")).token_ids[-TOKENS:] == alone
