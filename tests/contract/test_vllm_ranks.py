"""Two tensor-parallel ranks of vLLM in each phase answer as one does, and leave nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import logits_cases
import logits_probe
import psutil
import pytest
from logits_pair import spec_of
from worker_pair import Pair, WorkerProcess, connected, launched_pair, options_flag

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(900)]
READY_SECONDS = 400.0
RANKS = 2
TOGETHER = 14
"""Fewer than a worker takes."""
LENGTHS = (1, 5, 31, 32, 33, 64, 65, 200)
ASKED: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.9, "seed": 7},
    {"frequency_penalty": 1.5, "repetition_penalty": 1.2},
)
Workers = tuple[WorkerProcess, WorkerProcess]


@pytest.fixture
async def single(vllm_workers: Workers) -> AsyncIterator[Pair]:
    async with connected(vllm_workers) as pair:
        yield pair


async def say(pair: Pair) -> list[tuple[str, list[int]]]:
    """Texts, and the bytes of their hand-overs."""
    cases = [(length, given, {}) for length in LENGTHS for given in ASKED]
    cases += [(9, {}, {"logits": spec_of(*case.given)}) for case in logits_cases.CASES[:4]]
    sequences = []
    for first in range(0, len(cases), TOGETHER):
        begun = []
        for length, given, more in cases[first : first + TOGETHER]:
            prompt = [100 + place * 37 % 1700 for place in range(length)]
            task = {"prompt_text": "", "prompt_token_ids": prompt, "want_report": True, **more}
            begun.append(await pair.start(task=task, **given))
        for sequence in begun:
            await pair.finished_well(sequence)
        sequences += begun
    return [(each.text, [report.kv_bytes for report in each.reports]) for each in sequences]


@pytest.mark.promise("S5-857")
async def test_two_ranks_answer_as_one_and_leave_nothing_behind(
    single: Pair, model_path: Path, tmp_path: Path
) -> None:
    expected = await say(single)
    flags = (*logits_probe.FLAGS, options_flag(f"dtype=float32,tensor_parallel={RANKS}"))
    with launched_pair(
        "vllm", model_path, tmp_path, ready_seconds=READY_SECONDS, flags=flags
    ) as workers:
        async with connected(workers) as pair:
            assert await say(pair) == expected
            await pair.idle()
        prefill, decode = (psutil.Process(worker.process.pid) for worker in workers)
        ranks = [each for each in decode.children(recursive=True) if "Worker_TP" in each.name()]
        assert len(ranks) == RANKS
        ranks[0].kill()
        assert workers[1].process.wait(60) == 1
        begun = prefill.children(recursive=True)
        prefill.kill()
        _, alive = psutil.wait_procs([*begun, *ranks], timeout=60)
        assert alive == []
