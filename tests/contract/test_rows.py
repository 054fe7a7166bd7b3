"""A sequence's answer next to what shares the steps with it, in both phases: it is the same, for
real engines that compute in float32 to the last token, and where another pair goes on with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import logits_probe
import pytest
from logits_pair import tokens_of
from row_cases import (
    KINDS,
    PROCESSORS,
    PROMPTS,
    TOKENS,
    UNFILTERED,
    alone,
    begin,
    finished,
    mixtures,
    noise,
)
from worker_pair import (
    FAILED,
    FINISHED,
    Pair,
    Sequence_,
    WorkerProcess,
    connected,
    launched_pair,
    options_flag,
    without_float32,
)

from tandem.v1 import worker_pb2

pytestmark = pytest.mark.timeout(500)
READY_SECONDS = 280.0
CONTEXT = 300
MIXTURES = 6
ROUNDING = 1e-3
"""Of one log-probability, in natural logarithms, between two batches in float32."""
DEVIATION = 0.1
"""Of one log-probability, in natural logarithms, between two batches in bfloat16: about a step of
such a logit. None was seen."""


@pytest.fixture(scope="module")
def float_workers(
    model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    options = options_flag(f"dtype=float32,context_length={CONTEXT}")
    with launched_pair(
        "sglang",
        model_path,
        tmp_path_factory.mktemp("rows"),
        ready_seconds=READY_SECONDS,
        flags=(*logits_probe.FLAGS, options),
    ) as workers:
        yield workers


@pytest.fixture(params=["sim", pytest.param("float", marks=pytest.mark.sglang)])
async def exact(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    if request.param == "float" and without_float32():
        pytest.skip("SGLang computes no float32 on a GPU")
    workers: Sequence[WorkerProcess] = request.getfixturevalue(f"{request.param}_workers")
    async with connected(workers) as streams:
        yield streams
        await streams.idle()


@pytest.fixture
async def short(float_workers: Sequence[WorkerProcess]) -> AsyncIterator[Pair]:
    async with connected(float_workers) as streams:
        yield streams
        await streams.idle()


@pytest.mark.promise("S5-380", "S6-331")
async def test_answers_are_the_same_in_every_mixture(exact: Pair) -> None:
    by_itself: dict[str, list[Answer]] = {
        kind: [_answer(await alone(exact, kind, prompt)) for prompt in PROMPTS] for kind in KINDS
    }
    _every_processor_shows(by_itself)
    for mixture in mixtures(MIXTURES, tuple(KINDS)):
        running = [await begin(exact, kind, prompt) for kind, prompt in mixture]
        for (kind, prompt), sequence in zip(mixture, running, strict=True):
            await finished(exact, sequence)
            before, after = by_itself[kind][PROMPTS.index(prompt)], _answer(sequence)
            assert after.tokens == before.tokens, kind
            assert after.prompt == pytest.approx(before.prompt, abs=ROUNDING), kind


def _every_processor_shows(by_itself: Mapping[str, Sequence[Answer]]) -> None:
    """No two kinds with processors give the same tokens, nor one of them and one without."""
    for place in range(len(PROMPTS)):
        tokens = {kind: tuple(answers[place].tokens) for kind, answers in by_itself.items()}
        plain = {tokens[kind] for kind in KINDS.keys() - PROCESSORS}
        assert len(plain) > 3
        assert len({tokens[kind] for kind in PROCESSORS} - plain) == len(PROCESSORS), tokens


class Answer(NamedTuple):
    tokens: list[int]
    prompt: list[float]
    """What was said of the prompt: its tokens and the likeliest instead, then of each how likely
    it is."""


def _answer(sequence: Sequence_) -> Answer:
    prompt: list[float] = []
    for part in sequence.prompt_logprobs:
        prompt += [*part.token_id, *part.top_token_id, *part.logprob, *part.top_logprob]
    return Answer(tokens_of(sequence), prompt)


@pytest.mark.promise("S5-217")
@pytest.mark.parametrize("kind", ["filters", "penalties", "seeded penalties"])
async def test_another_pair_goes_on_with_the_very_tokens(exact: Pair, kind: str) -> None:
    """By itself and beside others: what was made counts as output."""
    (prompt, other) = PROMPTS
    whole = tokens_of(await alone(exact, kind, prompt))
    assert len(whole) == TOKENS
    for lost_after in (1, 2, 9):
        neighbours = [await begin(exact, each, other) for each in ("greedy", "top_k", "penalties")]
        sequence = await begin(exact, kind, prompt, made=whole[:lost_after])
        assert await finished(exact, sequence) == whole
        for neighbour in neighbours:
            await finished(exact, neighbour)


@pytest.mark.sglang
@pytest.mark.promise("S5-381")
async def test_what_is_admitted_is_given_whole_and_what_is_not_says_why(short: Pair) -> None:
    limits = (await short.stubs[1].Describe(worker_pb2.DescribeWorkerRequest())).limits
    context = limits.context_length
    assert CONTEXT - 2 <= context <= CONTEXT
    prompt = [5 + place * 31 % 1900 for place in range(context)]
    for length in (1, context - 60):
        sequence = await alone(short, "greedy", prompt[:length], max_tokens=context - length)
        assert len(tokens_of(sequence)) == context - length
    refused = []
    for length in range(context - 12, context):
        sequence = await begin(short, "greedy", prompt[:length], max_tokens=context - length)
        for closed in await short.finished(sequence):
            if closed.outcome == FAILED:
                assert closed.error.code == "context_length_exceeded", closed
                assert "truncate" not in closed.error.message
                refused.append(length)
            else:
                assert closed.outcome == FINISHED
                assert len(tokens_of(sequence)) == context - length
    assert refused == sorted([*range(min(refused), context)] * 2)
    assert min(refused) > context - 6


@pytest.mark.promise("S5-380")
async def test_answers_of_the_models_own_type_part_at_ties_alone(pair: Pair) -> None:
    """SGLang computes in bfloat16 here, where a batch of another size rounds otherwise."""
    by_itself = {
        (kind, tuple(prompt)): await alone(pair, kind, prompt, logprobs=20)
        for kind in UNFILTERED
        for prompt in PROMPTS
    }
    for mixture in mixtures(2, UNFILTERED):
        running = [await begin(pair, kind, prompt, logprobs=20) for kind, prompt in mixture]
        for (kind, prompt), sequence in zip(mixture, running, strict=True):
            await finished(pair, sequence)
            before = by_itself[kind, tuple(prompt)]
            _is_the_same_but_for_a_tie(before, sequence, kind, len(prompt))


def _is_the_same_but_for_a_tie(before: Sequence_, after: Sequence_, kind: str, prompt: int) -> None:
    first, second = tokens_of(before), tokens_of(after)
    differ = (place for place in range(TOKENS) if first[place] != second[place])
    place = next(differ, TOKENS)
    rows = [_rows(each) for each in (before, after)]
    for at in range(place):
        one, other = (row[at].get(first[at]) for row in rows)
        if one is not None and other is not None:
            assert abs(one - other) < DEVIATION, (kind, at)
    if place < TOKENS:
        sampling = KINDS[kind]
        token, instead = first[place], second[place]
        row = rows[0][place]
        gap = row[token] - row[instead]
        if temperature := sampling.get("temperature", 0):
            at = prompt + place - 1
            gap /= temperature
            gap += noise(sampling["seed"], at, token) - noise(sampling["seed"], at, instead)
        assert abs(gap) < 2 * DEVIATION, (kind, place, gap)


def _rows(sequence: Sequence_) -> list[dict[int, float]]:
    """What it said of each of its tokens and of the likeliest instead."""
    rows: list[dict[int, float]] = []
    for part in sequence.logprobs:
        pairs = list(zip(part.top_token_id, part.top_logprob, strict=True))
        for place, (token, value) in enumerate(zip(part.token_id, part.logprob, strict=True)):
            row = dict(pairs[part.top_count * place : part.top_count * (place + 1)])
            rows.append(row | {token: value})
    return rows
