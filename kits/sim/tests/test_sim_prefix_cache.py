"""The sim engine's prefix cache: it saves time, and nothing else changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from quickest import quickest

from tandem.engine.base import Delta, EngineRequest, Role
from tandem.engine.prefix_log import Owner
from tandem.prefix_blocks import BLOCK_TOKENS, packed, unpacked
from tandem.v1 import common_pb2
from tandem_sim.prefix_cache import PrefixCache

LONG = tuple(n % 200 + 1 for n in range(10 * BLOCK_TOKENS + 5))
OPTIONS = {"prefix_cache_tokens": 64 * BLOCK_TOKENS, "prefill_ms_per_token": 0.5, "step_ms": 0}


def request(tokens: Sequence[int], salt: str = "") -> EngineRequest:
    sampling = common_pb2.SamplingParams(max_tokens=1)
    return EngineRequest(request_id=1, token_ids=tokens, sampling=sampling, cache_salt=salt)


async def deltas_of(pair: Any, prompt: Sequence[int], **rest: Any) -> list[Delta]:
    first, second = pair.ask(tuple(prompt), **rest)
    return [*await pair.prefill.end_of(first), *await pair.decode.end_of(second)]


@pytest.mark.promise("S5-256")
async def test_a_prompt_s_beginning_is_computed_once_and_both_phases_say_so(
    start: Any, pairing: Any
) -> None:
    pair = pairing(await start(Role.PREFILL, **OPTIONS), await start(Role.DECODE))
    began = time.monotonic()
    first = await deltas_of(pair, LONG)
    computed = time.monotonic() - began
    second = await deltas_of(pair, [*LONG[:-5], 7, 8])
    assert await quickest(lambda: deltas_of(pair, LONG), computed / 3) < computed / 2
    assert [each.cached_tokens for each in first if each.cached_tokens] == []
    assert {each.cached_tokens for each in second if each.cached_tokens} == {640}
    assert sum(bool(each.cached_tokens) for each in second) == 2  # one of each phase


@pytest.mark.promise("S5-256")
async def test_an_answer_is_the_same_whether_or_not_its_prompt_was_cached(
    start: Any, pairing: Any
) -> None:
    plain = pairing(await start(Role.PREFILL), await start(Role.DECODE))
    cached = pairing(await start(Role.PREFILL, **OPTIONS), await start(Role.DECODE))
    expected = await plain.tokens(LONG)
    assert [await cached.tokens(LONG) for _ in range(2)] == [expected, expected]
    damaged = [*LONG[:-1], 9]
    assert await cached.tokens(tuple(damaged)) == await plain.tokens(tuple(damaged)) != expected


async def test_a_prompt_whose_log_probabilities_are_wanted_is_computed_as_a_whole(
    start: Any,
) -> None:
    one = await start(Role.AGGREGATED, **OPTIONS)
    await one.end_of(one.ask(LONG))
    deltas = await one.end_of(one.ask(LONG, prompt_logprobs=0))
    assert max(each.cached_tokens for each in deltas) == 0
    assert any(each.prompt_logprobs for each in deltas)


async def test_several_outputs_of_a_prompt_compute_it_once(start: Any) -> None:
    one = await start(Role.AGGREGATED, **OPTIONS)
    deltas = await asyncio.gather(*[one.end_of(one.ask(LONG, seed=n)) for n in range(4)])
    assert sorted(max(each.cached_tokens for each in some) for some in deltas) == [0, 640, 640, 640]


async def test_its_log_has_what_entered_and_what_left(start: Any) -> None:
    tight = OPTIONS | {"prefix_cache_tokens": 12 * BLOCK_TOKENS, "prefill_ms_per_token": 0}
    one = await start(Role.AGGREGATED, **tight)
    log = one.description.prefixes
    await one.end_of(one.ask(LONG))
    mine = list(unpacked(packed(LONG)))
    assert list(log.held) == mine
    other = tuple(reversed(LONG))[: 4 * BLOCK_TOKENS]
    await one.end_of(one.ask(other))
    assert list(log.held) == [*mine[:8], *unpacked(packed(other))]


@pytest.mark.promise("S5-787")
def test_salts_keep_prompts_apart() -> None:
    cache = PrefixCache(10_000)
    mine = request(LONG, "a")
    cache.log.watcher = watcher = Mock()
    cache.use(mine, cache.blocks(mine))
    told = [call.args[0] for call in watcher.entered.call_args_list]
    assert [(*each.token_ids,) for each in told] == [LONG[n : n + 64] for n in range(0, 640, 64)]
    assert {each.owner for each in told} == {Owner("a")}
    found = [cache.cached_tokens(cache.blocks(request(LONG, each)), len(LONG)) for each in "ab"]
    assert found == [640, 0]


def test_the_last_token_is_always_computed() -> None:
    cache, prompt = PrefixCache(10_000), request(LONG[:128])
    cache.use(prompt, cache.blocks(prompt))
    assert cache.cached_tokens(cache.blocks(prompt), 128) == 127


async def test_without_a_size_there_is_none_and_the_engine_says_so(start: Any) -> None:
    one = await start(Role.PREFILL)
    assert not one.description.prefixes.keeps
    assert (await start(Role.DECODE)).description.prefixes is None
