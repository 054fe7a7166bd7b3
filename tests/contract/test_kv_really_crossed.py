"""Proof that decode continues from the KV it was given, and computes none of it again."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import tokenizers
from worker_pair import (
    WITHOUT_FORMS,
    Pair,
    Sequence_,
    WorkerProcess,
    connected,
    launched_pair,
)

from tandem.v1 import worker_pb2

pytestmark = pytest.mark.timeout(400)
TOPICS = ("Tell me about the assert statement.", "Tell me about the import statement.")
TOKENS = 24
FLAGS = ("--hook=contract_hook.ContractHook",)
UNLIKE = {"sim": "", "sglang": f",{WITHOUT_FORMS}"}
SGLANG_READY_SECONDS = 280.0
REFERENCE_SECONDS = 300
IDLE_WITHIN = 60
TOKEN_BYTES = {"sim": 64, "sglang": 2048, "vllm": 4096}
"""Of KV: vLLM computes in float32 here."""


def _prompts(model_path: Path) -> tuple[list[int], list[int]]:
    """Two chat prompts of equal length with different answers."""
    tokenizer = tokenizers.Tokenizer.from_file(str(model_path / "tokenizer.json"))
    first, second = (
        tokenizer.encode(
            f"<|begin_of_text|><|im_start|>user\n{topic}<|im_end|>\n<|im_start|>assistant\n"
        ).ids
        for topic in TOPICS
    )
    length = min(len(first), len(second))
    return first[-length:], second[-length:]


async def _run(pair: Pair, prompt: list[int], decode_prompt: list[int]) -> Sequence_:
    task = {"prompt_text": "", "prompt_token_ids": prompt, "want_token_ids": True}
    decode_task = {"prompt_token_ids": decode_prompt}
    return await pair.run(task=task, decode_task=decode_task, max_tokens=TOKENS)


async def _generate(pair: Pair, prompt: list[int], decode_prompt: list[int]) -> list[int]:
    """The token ids, which the stream gives after those of earlier sequences."""
    return (await _run(pair, prompt, decode_prompt)).token_ids[-TOKENS:]


@pytest.fixture(params=["sim", pytest.param("sglang", marks=pytest.mark.sglang)])
async def unchecked(
    request: pytest.FixtureRequest, model_path: Path, tmp_path: Path
) -> AsyncIterator[Pair]:
    """A pair whose decode answers from whatever has come."""
    flags = (f"--engine-options=kv_check=off{UNLIKE[request.param]}", *FLAGS)
    with launched_pair(
        request.param, model_path, tmp_path, ready_seconds=SGLANG_READY_SECONDS, flags=flags
    ) as workers:
        async with connected(workers) as streams:
            yield streams


async def test_decode_continues_the_prompt_that_prefill_read_not_its_own(
    unchecked: Pair, model_path: Path
) -> None:
    """Where nobody checks whose KV has come. Else it is refused: test_kv_tags.py."""
    pair = unchecked
    first, second = _prompts(model_path)
    own = [await _generate(pair, prompt, prompt) for prompt in (first, second)]
    assert own[0] != own[1]
    assert await _generate(pair, first, second) == own[0]
    assert await _generate(pair, second, first) == own[1]


async def test_the_pair_generates_what_one_process_generates(
    pair: Pair, model_path: Path, request: pytest.FixtureRequest
) -> None:
    prompts = _prompts(model_path)
    answers = [await _generate(pair, prompt, prompt) for prompt in prompts]
    asked = [{"token_ids": prompt, "max_tokens": TOKENS} for prompt in prompts]
    engine = request.node.callspec.params["workers"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tandem.engine.reference"),
        *(f"--engine={engine}", f"--model-path={model_path}"),
        *(["--engine-options=dtype=float32"] if engine == "vllm" else []),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(REFERENCE_SECONDS):
        out, _ = await process.communicate(json.dumps(asked).encode())
    alone = json.loads(out)
    for together, reference in zip(answers, alone, strict=True):
        assert together[: len(reference)] == reference


async def test_every_byte_of_the_prompts_kv_is_counted(pair: Pair, model_path: Path) -> None:
    first, _ = _prompts(model_path)
    description = await pair.stubs[1].Describe(worker_pb2.DescribeWorkerRequest())
    sequence = await _run(pair, first, first)
    (started,) = pair.decode.told.of(sequence.number, "started")
    page = description.fingerprint.page_size
    pages = -(-len(first) // page)
    assert started.kv_bytes % pages == 0
    assert started.kv_bytes / (pages * page) == TOKEN_BYTES[description.fingerprint.engine]


async def test_idle_workers_use_no_cpu(workers: tuple[WorkerProcess, WorkerProcess]) -> None:
    """Once what earlier tests asked of them is done with: SGLang's schedulers poll until then."""
    async with asyncio.timeout(IDLE_WITHIN):
        while (cores := await _busiest(workers)) >= 0.1:
            print(f"{cores:.2f} of a core, and nothing is open")


async def _busiest(workers: tuple[WorkerProcess, WorkerProcess]) -> float:
    """Cores that one of the workers uses, over some seconds."""
    before = [_group_cpu_seconds(worker.process.pid) for worker in workers]
    began = time.monotonic()
    await asyncio.sleep(4)
    seconds = time.monotonic() - began
    after = [_group_cpu_seconds(worker.process.pid) for worker in workers]
    return max(now - then for then, now in zip(before, after, strict=True)) / seconds


def _group_cpu_seconds(session: int) -> float:
    """User and system seconds of every process of a session."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            if int(fields[3]) == session:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
