"""A decode worker that keeps prefixes: a second turn is handed over with what it has not alone.

Real SGLang on the CPU, over loopback, in float32: there what decode computed itself says the same
as what prefill computes of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from worker_pair import WITHOUT_FORMS, Pair, WorkerProcess, launched_pair, options_flag

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(400)]
READY_SECONDS = 280.0
TOKENS = 12
KV_BYTES = 4096
"""Of a token, in float32."""
CAPACITY = 2048
"""Tokens of a worker's KV cache: few, so that what is kept has to go."""
OPTIONS = (
    f"device=cpu,dtype=float32,max_total_tokens={CAPACITY},decode_prefix_cache=true,{WITHOUT_FORMS}"
)
RANDOM = random.Random(18)
Workers = tuple[WorkerProcess, WorkerProcess]


class Answer(NamedTuple):
    token_ids: list[int]
    sent: float
    """Bytes of KV that prefill says it wrote."""
    received: float
    cached: int
    """Tokens of the prompt that the client is told were cached."""


@pytest.fixture(scope="module")
def workers(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("decode-cache")
    flags = (options_flag(OPTIONS),)
    with launched_pair(
        "sglang", model_path, folder, ready_seconds=READY_SECONDS, flags=flags
    ) as pair:
        yield pair
        assert [worker.end() for worker in pair] == [0, 0]


def _prompt(length: int) -> list[int]:
    """One that begins like no other."""
    return [RANDOM.randrange(3, 1900) for _ in range(length)]


async def _ask(pair: Pair, workers: Workers, prompt: list[int], salt: str) -> Answer:
    before = [_moved(worker) for worker in workers]
    task = {"prompt_text": "", "prompt_token_ids": prompt, "want_token_ids": True}
    sequence = await pair.run(task=task | {"cache_salt": salt}, max_tokens=TOKENS)
    moved = [_moved(worker) - then for worker, then in zip(workers, before, strict=True)]
    (started,) = pair.decode.told.of(sequence.number, "started")
    assert started.kv_bytes == moved[1]
    (finish,) = sequence.finishes
    return Answer(sequence.token_ids[-TOKENS:], *moved, finish.cached_tokens)


def _moved(worker: WorkerProcess) -> float:
    return worker.total("tandem_kv_transfer_bytes_total")


@pytest.mark.promise("S5-420")
async def test_of_a_second_turn_only_what_decode_has_not_is_sent(
    pair: Pair, workers: Workers
) -> None:
    opening = _prompt(90)
    first = await _ask(pair, workers, opening, "alice")
    assert first.sent == first.received == len(opening) * KV_BYTES
    turn = [*opening, *first.token_ids, *_prompt(20)]
    second = await _ask(pair, workers, turn, "alice")
    # The last token was put out, and perhaps read again by a step that had begun.
    assert second.sent == second.received in (20 * KV_BYTES, 21 * KV_BYTES)
    anew = await _ask(pair, workers, turn, "bob")
    assert anew.sent == anew.received == len(turn) * KV_BYTES
    assert second.token_ids == anew.token_ids


@pytest.mark.promise("S5-421")
async def test_tenants_share_nothing_that_decode_keeps(pair: Pair, workers: Workers) -> None:
    prompt = _prompt(70)
    answers = [await _ask(pair, workers, prompt, salt) for salt in ("alice", "bob", "")]
    assert [answer.received for answer in answers] == [len(prompt) * KV_BYTES] * 3
    again = [await _ask(pair, workers, prompt, salt) for salt in ("alice", "bob", "")]
    assert [answer.received for answer in again] == [0] * 3
    assert len({tuple(answer.token_ids) for answer in answers + again}) == 1


@pytest.mark.promise("S5-421")
async def test_what_decode_keeps_does_not_count_as_cached_for_a_client(
    pair: Pair, workers: Workers
) -> None:
    """Prefill has the first turn's prompt, and computes the answer in the second."""
    opening = _prompt(60)
    first = await _ask(pair, workers, opening, "carol")
    turn = [*opening, *first.token_ids, *_prompt(9)]
    second = await _ask(pair, workers, turn, "carol")
    assert second.received < (len(turn) - len(opening)) * KV_BYTES
    assert (first.cached, second.cached) == (0, len(opening))


@pytest.mark.promise("S5-420")
async def test_answers_stay_right_while_what_is_kept_has_to_go(
    pair: Pair, workers: Workers
) -> None:
    """More than fits is kept, cancelled on its way and asked for again."""
    prompts = [_prompt(200) for _ in range(2 * CAPACITY // 200)]
    alone = [await _ask(pair, workers, prompt, "dave") for prompt in prompts]
    for seed in range(3):
        order = random.Random(seed).sample(range(len(prompts)), len(prompts))
        running = []
        for number in order:
            task = {"prompt_text": "", "prompt_token_ids": prompts[number], "want_token_ids": True}
            sequence = await pair.start(
                task=task | {"cache_salt": "dave", "trace_id": ""}, max_tokens=TOKENS
            )
            running.append((number, sequence))
            if number % 3 == 0:
                await asyncio.sleep(0.01 * (number % 5))
                await pair.cancel(sequence)
        for _number, sequence in running:
            await pair.finished(sequence)
    for number, prompt in enumerate(prompts):
        answer = await _ask(pair, workers, prompt, "dave")
        assert answer.token_ids == alone[number].token_ids
