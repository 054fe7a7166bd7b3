"""Pairs whose phases divide a model among unequal numbers of ranks, among groups of ranks, or its
layers among stages: KV arrives where each rank of decode reads it.

Real SGLang on the CPU, over loopback, in float32: sums over two ranks differ from those over one in
the last digits alone. GPUs, NCCL and what lies between machines are not in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import logits_pair
import pytest
import tiny_qwen3
from worker_pair import Pair, Sequence_, WorkerProcess, connected, launched_pair

from tandem.v1 import worker_pb2

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.long,
    pytest.mark.timeout(500),
    pytest.mark.promise("S5-370"),
]
READY_SECONDS = 400.0
PROMPTS = [[5 + (11 * number + place) % 200 for place in range(20 + number)] for number in range(3)]
TOKENS = 6
HAND_OVERS, AT_ONCE = 120, 4
KV_BYTES = 4096
"""Of a token, in float32."""
CAPACITY = 8192


class Case(NamedTuple):
    options: str
    ranks: tuple[int, int]
    """Among which a sequence's KV is divided, in prefill and in decode."""
    groups: tuple[int, int] = (1, 1)
    """Data-parallel ones."""


CASES = {
    "2-to-1": Case("tensor_parallel=2,decode_tensor_parallel=1", (2, 1)),
    "1-to-2": Case("tensor_parallel=1,decode_tensor_parallel=2", (1, 2)),
    "2-to-groups": Case("tensor_parallel=2,decode_data_parallel=2", (2, 1), (1, 2)),
    "groups": Case("tensor_parallel=2,data_parallel=2", (1, 1), (2, 2)),
    "groups-to-2": Case("tensor_parallel=2,data_parallel=2,decode_data_parallel=1", (1, 2), (2, 1)),
    "stages": Case("pipeline_parallel=2", (1, 1)),
    "stages-of-2": Case("tensor_parallel=2,pipeline_parallel=2", (2, 2)),
}
"""A pair takes two minutes of CPU time to start."""
Workers = tuple[WorkerProcess, WorkerProcess]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def workers(
    case: Case, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    common = f"device=cpu,dtype=float32,max_total_tokens={CAPACITY}"
    flags = ["--served-model-name=tandem-tiny", f"--engine-options={common},{case.options}"]
    folder = tmp_path_factory.mktemp("ranks")
    model = tiny_qwen3.make(model_path, tmp_path_factory.mktemp("qwen3"))
    with launched_pair("sglang", model, folder, ready_seconds=READY_SECONDS, flags=flags) as pair:
        yield pair
        assert [worker.end() for worker in pair] == [0, 0]


async def _start(pair: Pair, prompt: list[int], tokens: int) -> Sequence_:
    task = {"prompt_text": "", "prompt_token_ids": prompt, "want_token_ids": True}
    return await pair.start(task=task, max_tokens=tokens)


async def _generate(pair: Pair, prompt: list[int], tokens: int) -> list[int]:
    sequence = await _start(pair, prompt, tokens)
    await pair.finished(sequence)
    (started,) = pair.decode.told.of(sequence.number, "started")
    assert started.kv_bytes == len(prompt) * KV_BYTES
    return sequence.token_ids[-tokens:]


@pytest.mark.promise("S5-371")
async def test_decode_goes_on_as_prefill_itself_would(workers: Workers, case: Case) -> None:
    """Prefill reads what decode made, and makes the same token next."""
    async with connected(workers) as pair:
        for stub, groups in zip(pair.stubs, case.groups, strict=True):
            described = await stub.Describe(worker_pb2.DescribeWorkerRequest())
            print_ = described.fingerprint
            prefill, decode = case.ranks
            said = (prefill, 0 if decode == prefill else decode)
            assert (print_.tensor_parallel, print_.decode_tensor_parallel) == said
            assert described.load.kv_tokens_total == groups * CAPACITY
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


async def test_prefill_hears_of_every_hand_over(workers: Workers) -> None:
    """An acknowledgement that does not come keeps a slot and KV in prefill."""
    async with connected(workers) as pair:
        for first in range(0, HAND_OVERS, AT_ONCE):
            prompts = [PROMPTS[place % 3][place % 7 :] for place in range(first, first + AT_ONCE)]
            sequences = [await _start(pair, prompt, 2) for prompt in prompts]
            for sequence in sequences:
                await pair.finished(sequence)
        await pair.idle()


@pytest.mark.promise("S5-470")
async def test_answers_of_a_form_are_given_by_all_of_them(workers: Workers) -> None:
    async with connected(workers) as pair:
        forms = [("regex", {"pattern": pattern}) for pattern in ("[0-9]{5}", "(yes|no), [a-c]+z")]
        sequences = [await logits_pair.start(pair, form, max_tokens=40) for form in forms * 2]
        for sequence, (_, form) in zip(sequences, forms * 2, strict=True):
            await pair.finished(sequence)
            whole = re.fullmatch(form["pattern"], sequence.text)
            assert whole or sequence.finishes[0].completion_tokens == 40
            assert re.match("[0-9]{5}$|yes, |no, ", sequence.text)
        await pair.idle()


def _moved(worker: WorkerProcess) -> float:
    return worker.total("tandem_kv_transfer_bytes_total")
