"""Stop words, bad words and a bias on the whole vocabulary through both phases, for executors and
for gRPC's Generate.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc.aio
import numpy
import pytest
from stacks import MODEL, Served
from test_executor_engines import PROMPT, SECONDS, responses_of

from tandem.testing.sim_stack import SimStack, sim_stack
from tandem.v1 import common_pb2, router_pb2, router_pb2_grpc
from tandem_executor import Executor, FinishReason, SamplingConfig

VOCABULARY = 2048
LENGTH = 8
STOP = common_pb2.FINISH_REASON_STOP


@pytest.fixture(scope="module")
def stack() -> Iterator[SimStack]:
    with sim_stack(settings={"frontend": {"client_logits_processors": ["banned_sequences"]}}) as it:
        yield it


@pytest.fixture(scope="module")
def sim_executor(stack: SimStack) -> Iterator[Executor]:
    with Executor(stack.stack.components["router"].address) as running:
        yield running


@pytest.fixture
def executor(served: Served) -> Iterator[Executor]:
    """Over either engine."""
    with Executor(served.stack.components["router"].address) as running:
        yield running


@pytest.fixture
async def generate(served: Served) -> AsyncIterator[Any]:
    """Calls Generate with sampling parameters; gives token ids, and the finish of each output."""
    async with grpc.aio.insecure_channel(served.stack.components["router"].address) as channel:
        stub = router_pb2_grpc.RouterStub(channel)

        async def call(*, n: int = 1, bias: Any = None, **sampling: Any) -> list[Any]:
            task = common_pb2.Task(
                model=MODEL,
                prompt_token_ids=PROMPT,
                want_token_ids=True,
                embedding_bias=bias,
                sampling=common_pb2.SamplingParams(max_tokens=LENGTH, **sampling),
            )
            answers: list[Any] = [([], None) for _ in range(n)]
            request = router_pb2.GenerateRequest(task=task, n=n)
            async for response in stub.Generate(request, timeout=SECONDS):
                tokens, finish = answers[response.output_index]
                finish = response.finish if response.HasField("finish") else finish
                answers[response.output_index] = ([*tokens, *response.token_ids], finish)
            return answers

        yield call


def answer(executor: Executor, **fields: Any) -> list[int]:
    (response,) = responses_of(executor, **fields)
    return response.result.output_token_ids[0]


def first_end(tokens: list[int], word: list[int]) -> int:
    """After so many tokens the word has come."""
    ends = (end for end in range(len(word), len(tokens) + 1))
    return next(end for end in ends if tokens[end - len(word) : end] == word)


@pytest.mark.promise("S2-078")
@pytest.mark.parametrize(("begin", "end"), [(0, 1), (0, 2), (0, 5), (1, 3), (3, 6), (5, 8)])
def test_a_stop_word_ends_an_answer_wherever_the_phases_meet(
    executor: Executor, begin: int, end: int
) -> None:
    free = answer(executor)
    word = free[begin:end]
    whole = free[: first_end(free, word)]
    never = [free[0], free[0], free[0], (free[0] + 1) % VOCABULARY]
    (response,) = responses_of(executor, stop_words=[never, word])
    assert response.result.output_token_ids == [whole]
    assert response.result.finish_reasons == [FinishReason.STOP_WORDS]
    streamed = [each.result for each in responses_of(executor, streaming=True, stop_words=[word])]
    assert [token for each in streamed for token in each.output_token_ids[0]] == whole
    assert streamed[-1].finish_reasons == [FinishReason.STOP_WORDS]


@pytest.mark.promise("S2-078")
async def test_every_client_is_told_what_ended_an_output(generate: Any) -> None:
    ((free, finish),) = await generate()
    assert list(finish.stop_tokens) == []
    word = free[:3]
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"stop_words": [{"token_id": word}], "ignore_eos": True}, word),
        ({"stop_words": [{"token_id": word}, {"token_id": word[1:]}]}, word),
        ({"stop_token_ids": [free[1]]}, [free[1]]),
        ({"stop_words": [{"token_id": [free[1]]}]}, [free[1]]),
    ]
    for sampling, ended in cases:
        for tokens, finish in await generate(n=2, **sampling):
            assert tokens == free[: first_end(free, ended)]
            assert (finish.reason, list(finish.stop_tokens)) == (STOP, ended)
            assert finish.completion_tokens == len(tokens)


async def test_a_bias_of_every_client_holds_in_both_phases(generate: Any) -> None:
    token_ids, values = array("I", range(VOCABULARY)), array("f", [0.0] * VOCABULARY)
    values[77] = 10_000.0
    bias = common_pb2.EmbeddingBias(token_ids=token_ids.tobytes(), values=values.tobytes())
    for tokens, _ in await generate(n=2, bias=bias, ignore_eos=True):
        assert tokens == [77] * LENGTH


async def test_a_bias_or_a_stop_word_that_cannot_be_is_refused_by_name(generate: Any) -> None:
    half = common_pb2.EmbeddingBias(token_ids=b"\1\0\0\0", values=b"\0")
    cases = (
        ({"bias": half}, "embedding_bias"),
        ({"stop_words": [{"token_id": []}]}, "stop_words"),
        ({"stop_words": [{"token_id": [1] * 257}]}, "stop_words"),
    )
    for fields, param in cases:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(**fields)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert dict(caught.value.trailing_metadata() or ())["tandem-param"] == param


@pytest.mark.parametrize("largest", [float(numpy.finfo(numpy.float32).max), 10_000.0])
def test_a_bias_as_upstreams_own_tests_have_it_chooses(executor: Executor, largest: float) -> None:
    bias = numpy.zeros(VOCABULARY, dtype=numpy.float32)
    bias[10] = largest
    assert answer(executor, embedding_bias=bias) == [10] * LENGTH
    never = [float("-inf")] * VOCABULARY
    never[12] = 0.0
    assert answer(executor, embedding_bias=never) == [12] * LENGTH


# --- combinations -----------------------------------------------------------------------------


# --- bad words ----------------------------------------------------------------------------------


@pytest.mark.promise("S2-090")
@pytest.mark.parametrize("sequences", [1, 3])
@pytest.mark.parametrize(("begin", "end"), [(0, 1), (0, 2), (0, 4), (1, 3), (2, 6)])
def test_a_bad_word_of_several_tokens_never_comes_and_all_but_its_last_do(
    sim_executor: Executor, begin: int, end: int, sequences: int
) -> None:
    free = answer(sim_executor)
    word = free[begin:end]
    until = first_end(free, word)
    config = SamplingConfig(num_return_sequences=sequences)
    for response in responses_of(sim_executor, bad_words=[word], sampling_config=config):
        tokens = response.result.output_token_ids[0]
        assert tokens[: until - 1] == free[: until - 1]
        assert tokens[until - 1] != free[until - 1]
        places = range(len(tokens))
        assert not any(tokens[place : place + len(word)] == word for place in places)


@pytest.mark.promise("S2-090")
def test_bad_words_and_stop_words_of_one_request_hold_together(sim_executor: Executor) -> None:
    free = answer(sim_executor)
    other = answer(sim_executor, bad_words=[free[:2]])
    (response,) = responses_of(sim_executor, bad_words=[free[:2]], stop_words=[other[1:4]])
    assert response.result.output_token_ids == [other[: first_end(other, other[1:4])]]
    assert response.result.finish_reasons == [FinishReason.STOP_WORDS]
