"""LoRA adapters on a pair of workers of each engine: both phases apply the one that is asked for,
and what one has cached no other uses.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from make_lora_adapter import make
from worker_pair import (
    FAILED,
    WITHOUT_FORMS,
    Pair,
    Sequence_,
    WorkerProcess,
    connected,
    launched_pair,
    options_flag,
)

from tandem.v1 import worker_pb2

pytestmark = pytest.mark.timeout(600)
SIM_READY_SECONDS = 30.0
SGLANG_READY_SECONDS = 280.0
VLLM_READY_SECONDS = 380.0
Workers = tuple[WorkerProcess, WorkerProcess]
ORACLE = Path(__file__).with_name("lora_oracle.py")
ORACLE_SECONDS = 200
NAMES = ("", "sql", "tone")
PROMPT = [3 + place * 31 % 1900 for place in range(90)]
TOKENS = 24


@pytest.fixture(scope="module")
def adapters(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of two ranks: what a batch holds beside each other is not alike."""
    folder = tmp_path_factory.mktemp("adapters")
    ranks = zip(NAMES[1:], (4, 8), strict=True)
    return {name: make(model_path, folder / name, seed=rank, rank=rank) for name, rank in ranks}


@pytest.fixture(
    scope="module",
    params=[
        "sim",
        pytest.param("sglang", marks=pytest.mark.sglang),
        pytest.param("vllm", marks=pytest.mark.vllm),
    ],
)
def adapted(
    request: pytest.FixtureRequest,
    model_path: Path,
    adapters: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Workers]:
    given = ",".join(f"{name}={folder}" for name, folder in adapters.items())
    options, seconds = "prefix_cache_tokens=6400", SIM_READY_SECONDS
    if request.param == "sglang":
        # In float32 no rounding decides between two tokens.
        options = f"device=cpu,dtype=float32,{WITHOUT_FORMS}"
        seconds = SGLANG_READY_SECONDS
    if request.param == "vllm":
        options, seconds = "dtype=float32", VLLM_READY_SECONDS
    # The tag of a hand-over would refuse phases that disagree about the adapter.
    flags = (f"--lora-adapters={given}", options_flag(f"{options},kv_check=off"))
    folder = tmp_path_factory.mktemp(f"lora-{request.param}")
    with launched_pair(
        request.param, model_path, folder, ready_seconds=seconds, flags=flags
    ) as workers:
        yield workers
        assert [worker.end() for worker in workers] == [0, 0]


@pytest.fixture
async def pair(adapted: Workers) -> AsyncIterator[Pair]:
    async with connected(adapted) as streams:
        yield streams
        await streams.idle()


async def begin(pair: Pair, name: str, decode_name: str | None = None, shift: int = 0) -> Sequence_:
    prompt = [each + shift for each in PROMPT]
    task = {"prompt_text": "", "prompt_token_ids": prompt, "lora_adapter": name}
    other = {} if decode_name is None else {"lora_adapter": decode_name}
    return await pair.start(task=task, decode_task=other, max_tokens=TOKENS)


async def say(pair: Pair, name: str, decode_name: str | None = None) -> str:
    sequence = await begin(pair, name, decode_name)
    await pair.finished_well(sequence)
    return sequence.text


@pytest.mark.promise("S5-410")
async def test_both_phases_apply_the_adapter(pair: Pair) -> None:
    """What one phase alone applies makes another answer than both or none."""
    right = {name: await say(pair, name) for name in NAMES}
    assert len(set(right.values())) == len(NAMES)
    for first in NAMES:
        for second in NAMES:
            if first != second:
                assert await say(pair, first, second) not in right.values(), (first, second)


@pytest.mark.promise("S5-410")
async def test_a_mixture_answers_as_each_alone(pair: Pair) -> None:
    alone = {name: await say(pair, name) for name in NAMES}
    together = [(name, await begin(pair, name)) for _ in range(4) for name in NAMES]
    for name, sequence in together:
        await pair.finished(sequence)
        assert sequence.text == alone[name], name


@pytest.mark.promise("S5-413")
async def test_a_cached_prefix_is_one_adapter_s(pair: Pair) -> None:
    shift = 17  # no other test has such a prompt
    cached = []
    for name in (*NAMES, *NAMES):
        sequence = await begin(pair, name, shift=shift)
        await pair.finished(sequence)
        (finish,) = sequence.finishes
        cached.append(finish.cached_tokens)
    assert cached[: len(NAMES)] == [0] * len(NAMES)
    assert len(set(cached[len(NAMES) :])) == 1


@pytest.mark.promise("S5-411")
async def test_an_adapter_that_a_worker_has_not_is_refused_by_both(pair: Pair) -> None:
    sequence = await begin(pair, "none")
    for end in await pair.finished(sequence):
        assert (end.outcome, end.error.code) == (FAILED, "model_not_found")


@pytest.mark.promise("S5-412")
async def test_workers_say_which_adapters_they_have(pair: Pair) -> None:
    asked = worker_pb2.DescribeWorkerRequest()
    said = [await stub.Describe(asked) for stub in pair.stubs]
    assert [list(each.lora_adapters) for each in said] == [sorted(NAMES[1:])] * 2
    assert said[0].fingerprint.lora_sha256 == said[1].fingerprint.lora_sha256 != ""


@pytest.mark.promise("S5-410")
@pytest.mark.long
@pytest.mark.parametrize(
    "adapted",
    [
        pytest.param("sglang", marks=pytest.mark.sglang),
        pytest.param("vllm", marks=pytest.mark.vllm),
    ],
    indirect=True,
)
async def test_the_pair_says_what_the_model_says_with_the_adapter_in_its_weights(
    pair: Pair, model_path: Path, adapters: dict[str, Path]
) -> None:
    asked = [[str(adapters[name]) if name else "", PROMPT] for name in NAMES]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ORACLE), str(model_path), str(TOKENS)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    async with asyncio.timeout(ORACLE_SECONDS):
        out, _ = await process.communicate(json.dumps(asked).encode())
    for name, expected in zip(NAMES, json.loads(out), strict=True):
        task = {"prompt_text": "", "prompt_token_ids": PROMPT, "lora_adapter": name}
        task |= {"want_token_ids": True}
        sequence = await pair.start(task=task, max_tokens=TOKENS)
        await pair.finished(sequence)
        assert sequence.token_ids[-TOKENS:] == expected, name
