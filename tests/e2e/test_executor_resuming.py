"""A decode worker is killed under an executor's requests: its program reads the answers of
undisturbed ones.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from resuming import begun, kill, let_go, resumed, serving, whole

from tandem.cli.stack import Stack
from tandem_executor import (
    AsyncExecutor,
    Executor,
    ExecutorConfig,
    FinishReason,
    OutputConfig,
    Request,
    Response,
    SamplingConfig,
)

SECONDS = 60.0
PROMPT = [101, 102, 103, 104]
SEEDED = {"temperature": 0.9, "top_p": 0.9, "seed": 7}
SAMPLINGS = {
    "greedy": SamplingConfig(),
    "seeded": SamplingConfig(**SEEDED),
    "three outputs": SamplingConfig(**SEEDED, num_return_sequences=3),
}
PLACE = 6
"""Responses of the first request that have been read before its worker is killed."""


@dataclass
class Answer:
    """What a program has of one request."""

    tokens: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    log_probs: dict[int, list[float]] = field(default_factory=dict)
    reasons: dict[int, FinishReason] = field(default_factory=dict)
    error: tuple[str, str] | None = None
    """Its code, and its words."""
    ended: bool = False

    def take(self, response: Response) -> None:
        if response.has_error():
            self.error, self.ended = (response.error_code, response.error_msg), True
            return
        result = response.result
        self.ended = result.is_final
        self.tokens[result.sequence_index] += result.output_token_ids[0]
        if result.log_probs is not None:
            self.log_probs[result.sequence_index] = result.log_probs[0]
        if result.is_sequence_final:
            self.reasons[result.sequence_index] = result.finish_reasons[0]


@pytest.fixture(scope="module")
def served(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    yield from serving(model_path, tmp_path_factory.mktemp("resuming"))


async def answers(
    executor: Executor | AsyncExecutor,
    samplings: list[SamplingConfig],
    seen: Callable[[int], object] = lambda _: None,
) -> list[Answer]:
    """Of streamed requests at once. `seen` is told how many responses the first one has had."""
    output = OutputConfig(return_log_probs=True)
    requests = [
        Request(PROMPT, 20, streaming=True, sampling_config=each, output_config=output)
        for each in samplings
    ]
    found = {each: Answer() for each in executor.enqueue_requests(requests)}
    first, count = next(iter(found)), 0
    while not all(each.ended for each in found.values()):
        if isinstance(executor, AsyncExecutor):
            responses = await executor.await_responses(timeout=SECONDS)
        else:
            responses = await asyncio.to_thread(executor.await_responses, timeout=SECONDS)
        assert responses, "nothing comes any more"
        for response in responses:
            found[response.request_id].take(response)
            count += response.request_id == first
        seen(count)
    return list(found.values())


async def with_one_killed(
    served: Stack, executor: Executor | AsyncExecutor
) -> tuple[list[Answer], list[Answer]]:
    """Undisturbed, and with a decode worker lost: each twice, of which either worker has one. The
    worker is started again.
    """
    await whole(served)
    samplings = [each for each in SAMPLINGS.values() for _ in range(2)]
    undisturbed = await answers(executor, samplings)
    bystanders = [await begun(served) for _ in range(2)]
    killed = False

    def seen(count: int) -> None:
        nonlocal killed
        if count >= PLACE and not killed:
            killed = True
            kill(served, "decode_worker-0")

    disturbed = await answers(executor, samplings, seen)
    assert killed
    await let_go(bystanders)
    served.components["decode_worker-0"].process.wait(10)
    served.restart("decode_worker-0")
    return undisturbed, disturbed


@asynccontextmanager
async def running(
    kind: str, served: Stack, config: ExecutorConfig
) -> AsyncIterator[Executor | AsyncExecutor]:
    router = served.components["router"].address
    if kind == "asyncio":
        async with AsyncExecutor(router, config) as of_tasks:
            yield of_tasks
    else:
        with Executor(router, config) as of_threads:
            yield of_threads


@pytest.mark.promise("S5-217")
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
async def test_a_program_reads_the_answers_of_undisturbed_requests(
    served: Stack, kind: str
) -> None:
    earlier = await resumed(served, "finished")
    async with running(kind, served, ExecutorConfig(resume=True)) as executor:
        undisturbed, disturbed = await with_one_killed(served, executor)
    assert not [each for each in undisturbed if each.error]
    assert disturbed == undisturbed
    assert await resumed(served, "finished") - earlier >= len(SAMPLINGS)


async def test_requests_of_an_executor_that_does_not_ask_end_with_the_worker(
    served: Stack,
) -> None:
    async with running("asyncio", served, ExecutorConfig()) as executor:
        undisturbed, disturbed = await with_one_killed(served, executor)
    errors = [each.error for each in disturbed if each.error is not None]
    assert {code for code, _ in errors} == {"worker_lost"}
    assert not any("resumed" in message for _, message in errors)
    pairs = zip(disturbed, undisturbed, strict=True)
    assert all(after == before for after, before in pairs if after.error is None)
