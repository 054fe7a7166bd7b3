"""What the sim engine says of a prompt is what it says of the next token of each of its parts."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.engine.base import Role
from tandem.logits.spec import LogitsProcessorSpec, forced_token_sequence

PROMPT = tuple(range(100, 250))


async def _scores(running: Any, prompt: tuple[int, ...], **sampling: Any) -> Any:
    number = running.ask(prompt, max_tokens=1, **sampling)
    (only,) = await running.end_of(number)
    return only


@pytest.mark.promise("S6-331")
async def test_each_token_has_what_the_part_before_it_says_of_it(start: Any) -> None:
    running = await start(Role.AGGREGATED)
    vocabulary = running.description.limits.vocabulary
    scored = (await _scores(running, PROMPT, prompt_logprobs=7)).prompt_logprobs
    assert scored.token_ids == PROMPT
    assert len(scored.logprobs.chosen) == len(scored.logprobs.top) == len(PROMPT) - 1
    for place in (1, 2, 63, 64, 65, 149):
        row = (await _scores(running, PROMPT[:place], logprobs=vocabulary)).logprobs
        said = dict(row.top[0])
        assert scored.logprobs.chosen[place - 1] == pytest.approx(said[PROMPT[place]], abs=1e-5)
        top = scored.logprobs.top[place - 1]
        assert [token for token, _ in top] == [token for token, _ in row.top[0][:7]]
        assert [value for _, value in top] == pytest.approx(
            [value for _, value in row.top[0][:7]], abs=1e-5
        )


@pytest.mark.promise("S6-331")
async def test_they_are_the_models_own_whatever_samples(start: Any) -> None:
    running = await start(Role.AGGREGATED)
    plain = (await _scores(running, PROMPT, prompt_logprobs=2)).prompt_logprobs
    steered = await _scores(
        running,
        PROMPT,
        prompt_logprobs=2,
        temperature=1.5,
        seed=7,
        repetition_penalty=1.5,
        logit_bias={PROMPT[1]: 50.0},
        logits=LogitsProcessorSpec((forced_token_sequence([500], 1),)),
        logprobs=0,
    )
    assert steered.token_ids == (500,)
    assert steered.logprobs.chosen[0] == pytest.approx(0.0, abs=1e-6)
    assert steered.prompt_logprobs == plain


@pytest.mark.promise("S6-331")
async def test_prefill_alone_says_them_and_only_where_asked(pair: Any) -> None:
    first, second = pair.ask(prompt_logprobs=0)
    (said,) = await pair.prefill.end_of(first)
    assert len(said.prompt_logprobs.logprobs.chosen) == len(PROMPT) - 1
    assert not any(said.prompt_logprobs.logprobs.top)
    assert all(each.prompt_logprobs is None for each in await pair.decode.end_of(second))
    first, second = pair.ask(logprobs=1)
    assert all(each.prompt_logprobs is None for each in await pair.prefill.end_of(first))


@pytest.mark.promise("S6-331")
async def test_one_that_is_cancelled_while_it_is_scored_ends_so(start: Any) -> None:
    running = await start(Role.AGGREGATED)
    number = running.ask(PROMPT * 24, max_tokens=4, prompt_logprobs=20)
    await running.until(lambda: running.engine.load().kv_tokens_used > 0)
    running.engine.cancel(number)
    said = await running.end_of(number)
    assert said[-1].prompt_logprobs is None
    other = await _scores(running, PROMPT[:1], prompt_logprobs=3)
    assert other.prompt_logprobs.logprobs.chosen == []
