"""Token processes beside what else divides requests: data-parallel ranks, and adapters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import tiny_qwen3
from make_lora_adapter import make
from token_workers import READY_SECONDS, Workers
from worker_pair import Pair, Sequence_, connected, launched

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.promise("S5-450"),
]
NAMES = ("", "sql", "tone")


class Case(NamedTuple):
    options: str
    names: tuple[str, ...]
    """Of adapters; empty: the model alone."""


CASES = {
    "adapters": Case("device=cpu,dtype=float32", ("", "sql", "tone")),
    "groups": Case("device=cpu,dtype=float32,tensor_parallel=2,data_parallel=2", ("",)),
}
PROMPTS = [[3 + (31 * place + 7 * number) % 1900 for place in range(40)] for number in range(6)]
TOKENS = 24
AT_ONCE = 6
"""In each process."""
TOKENS_TOTAL = "tandem_worker_tokens_total"


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def workers(case: Case, model_path: Path, tmp_path: Path) -> Iterator[Workers]:
    (tmp_path / "qwen3").mkdir()
    model = tiny_qwen3.make(model_path, tmp_path / "qwen3")
    flags = ["--served-model-name=tandem-tiny", f"--engine-options={case.options}"]
    if adapters := case.names[1:]:
        made = {
            name: make(model, tmp_path / name, seed=rank, rank=rank)
            for rank, name in enumerate(adapters, 4)
        }
        given = ",".join(f"{name}={folder}" for name, folder in made.items())
        flags.append(f"--lora-adapters={given}")
    logs = tmp_path / "prefill.log", tmp_path / "decode.log"
    with (
        launched("prefill", "sglang", model, logs[0], *flags) as prefill,
        launched("decode", "sglang", model, logs[1], *flags, "--token-processes=2") as first,
    ):
        deadline = time.monotonic() + READY_SECONDS
        prefill.wait_serving(deadline)
        yield Workers(prefill, first, deadline)
        assert [worker.end() for worker in (prefill, first)] == [0, 0]


async def begin(pair: Pair, name: str, prompt: list[int]) -> Sequence_:
    task = {"prompt_text": "", "prompt_token_ids": prompt, "lora_adapter": name}
    return await pair.start(task=task, max_tokens=TOKENS)


async def test_each_request_gets_its_own_text_of_its_own_adapter(
    workers: Workers, case: Case
) -> None:
    """By whichever process it comes, whoever runs beside it."""
    asked = [(name, number) for number in range(len(PROMPTS)) for name in case.names]
    async with (
        connected([workers.prefill, workers.first]) as one,
        connected([workers.prefill, workers.second()]) as other,
    ):
        alone = {}
        for name, number in asked:
            sequence = await begin(one, name, PROMPTS[number])
            await one.finished(sequence)
            alone[name, number] = sequence.text
        assert len(set(alone.values())) == len(asked)
        for start in range(0, len(asked), AT_ONCE):
            together = [
                (pair, each, await begin(pair, each[0], PROMPTS[each[1]]))
                for each in asked[start : start + AT_ONCE]
                for pair in (one, other)
            ]
            for pair, each, sequence in together:
                await pair.finished_well(sequence)
                assert sequence.text == alone[each], each
        await one.idle()
        await other.idle()
    made = [workers.first.metric(TOKENS_TOTAL, token_process=number) for number in "12"]
    assert made == [2 * len(asked) * TOKENS, len(asked) * TOKENS]
