"""What the sim engine says, and that both ways to run it say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tandem.engine.base import Ending, Role
from tandem.errors import ContextLengthError, InvalidRequestError, RequestError

PROMPT = tuple(range(100, 250))


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 1.0, "seed": 7},
        {"max_tokens": 1},
        {"max_tokens": 500},
        {"logprobs": 2},
        {"logit_bias": {1: 100.0}},
    ],
)
async def test_a_pair_says_what_one_aggregated_engine_says(
    pair: Any, start: Any, sampling: dict[str, Any]
) -> None:
    whole = await start(Role.AGGREGATED)
    for prompt in (PROMPT, PROMPT[:1], PROMPT[:64], PROMPT[:65]):
        expected = await whole.tokens_of(whole.ask(prompt, **sampling))
        assert await pair.tokens(prompt, **sampling) == expected


async def test_every_token_of_the_prompt_matters(start: Any) -> None:
    whole = await start(Role.AGGREGATED)
    answers = set()
    for place in (0, 70, 149):
        changed = list(PROMPT)
        changed[place] += 1
        answers.add(tuple(await whole.tokens_of(whole.ask(tuple(changed)))))
    answers.add(tuple(await whole.tokens_of(whole.ask())))
    assert len(answers) == 4


async def test_greedy_answers_do_not_depend_on_the_seed_and_sampled_ones_do(start: Any) -> None:
    whole = await start(Role.AGGREGATED)

    async def answer(**sampling: Any) -> tuple[int, ...]:
        return tuple(await whole.tokens_of(whole.ask(**sampling)))

    greedy = await answer(temperature=0.0)
    assert await answer(temperature=0.0, seed=5) == greedy
    sampled = [await answer(temperature=0.7, seed=seed) for seed in range(8)]
    assert len({*sampled, greedy}) == 9
    assert await answer(temperature=0.7, seed=3) == sampled[3]


async def test_an_answer_ends_with_the_end_token_within_its_bounds(start: Any) -> None:
    whole = await start(Role.AGGREGATED, step_ms=0, min_output_tokens=3, max_output_tokens=9)
    eos = whole.description.eos_token_ids
    lengths = set()
    for first in range(100, 160):
        number = whole.ask((first, 7), max_tokens=100)
        tokens = await whole.tokens_of(number)
        assert whole.said[number][-1].end is Ending.STOP
        assert tokens[-1] in eos
        assert not eos & set(tokens[:-1])
        lengths.add(len(tokens))
    assert lengths <= set(range(3, 10))
    assert len(lengths) > 4


async def test_ignore_eos_runs_to_max_tokens(start: Any) -> None:
    whole = await start(Role.AGGREGATED, step_ms=0, max_output_tokens=8)
    number = whole.ask(max_tokens=50, ignore_eos=True)
    assert len(await whole.tokens_of(number)) == 50
    assert whole.said[number][-1].end is Ending.LENGTH


async def test_a_stop_token_ends_the_sequence_and_is_its_last(start: Any) -> None:
    whole = await start(Role.AGGREGATED)
    free = await whole.tokens_of(whole.ask(max_tokens=6))
    number = whole.ask(max_tokens=6, stop_token_ids=[free[3]], ignore_eos=True)
    assert await whole.tokens_of(number) == free[: free.index(free[3]) + 1]
    assert whole.said[number][-1].end is Ending.STOP


async def test_a_first_token_that_stops_ends_decode_at_once(pair: Any) -> None:
    first = (await pair.tokens(max_tokens=1))[0]
    _, number = pair.ask(max_tokens=6, stop_token_ids=[first])
    deltas = await pair.decode.end_of(number)
    assert [delta.token_ids for delta in deltas] == [(first,)]
    assert deltas[0].end is Ending.STOP


async def test_the_context_bounds_an_answer(start: Any) -> None:
    whole = await start(Role.AGGREGATED, step_ms=0, context_length=20)
    number = whole.ask(PROMPT[:12], max_tokens=100, ignore_eos=True)
    assert len(await whole.tokens_of(number)) == 8
    assert whole.said[number][-1].end is Ending.LENGTH


async def test_tokens_are_words(start: Any, model_path: Path) -> None:
    whole = await start(Role.AGGREGATED)
    tokens = await whole.tokens_of(whole.ask(max_tokens=30, ignore_eos=True))
    text = Tokenizer.from_file(str(model_path / "tokenizer.json")).decode(tokens)
    assert len(text.split()) == 30
    assert all(word.isalpha() for word in text.split())


async def test_each_step_brings_one_token_of_every_running_sequence(start: Any) -> None:
    whole = await start(Role.AGGREGATED, step_ms=5)
    numbers = [whole.ask(max_tokens=10, ignore_eos=True) for _ in range(20)]
    for number in numbers:
        deltas = await whole.end_of(number)
        assert [len(delta.token_ids) for delta in deltas] == [1] * 10


@pytest.mark.parametrize(
    ("prompt", "sampling", "error"),
    [
        ((), {}, InvalidRequestError),
        ((2048,), {}, InvalidRequestError),
        ((-1,), {}, InvalidRequestError),
        ((5,), {"max_tokens": 0}, InvalidRequestError),
        ((5,), {"logit_bias": {5000: 1.0}}, InvalidRequestError),
        ((5,) * 100, {}, ContextLengthError),
        ((5,) * 60, {"max_tokens": 39}, ContextLengthError),
    ],
)
async def test_a_request_that_can_never_run_is_refused(
    start: Any, prompt: tuple[int, ...], sampling: dict[str, Any], error: type[RequestError]
) -> None:
    whole = await start(Role.AGGREGATED, context_length=100, max_total_tokens=64)
    with pytest.raises(error):
        whole.ask(prompt, **sampling)
    assert whole.idle
    assert await whole.tokens_of(whole.ask((5,)))


async def test_rooms_are_for_pairs(pair: Any, start: Any) -> None:
    whole = await start(Role.AGGREGATED)
    with pytest.raises(InvalidRequestError):
        whole.ask(room=5)
    with pytest.raises(InvalidRequestError):
        pair.decode.ask(peer="127.0.0.1:1")
    with pytest.raises(InvalidRequestError):
        pair.decode.ask(room=5)
    pair.prefill.ask(room=5)
    with pytest.raises(InvalidRequestError):
        pair.prefill.ask(room=5)
