"""Logits rows are real where something acts on them, and absent elsewhere."""

from __future__ import annotations

import math
from array import array
from typing import Any

import pytest

from tandem.engine.base import Role
from tandem.errors import InvalidRequestError
from tandem.logits.processor import Row, TokenHistory
from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec
from tandem.v1 import common_pb2


class Nothing:
    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        assert logits.max() > 0


class Seen:
    """Notes the positions it was called at; fresh for each request."""

    keeps_state = False
    calls: list[tuple[int, int, int, int]] = []  # noqa: RUF012 - shared so that the test sees it

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        self._count += 1
        self.calls.append((input_ids.position, len(input_ids), input_ids[-1], self._count))


@pytest.fixture
def registry() -> Registry:
    registry = Registry.builtin()
    registry.register("nothing", Nothing)
    registry.register("seen", Seen)
    Seen.calls.clear()
    return registry


def spec(name: str, **args: Any) -> LogitsProcessorSpec:
    return LogitsProcessorSpec((LogitsProcessorEntry(name, args),))


async def test_a_processor_that_changes_nothing_changes_nothing(
    start: Any, registry: Registry
) -> None:
    whole = await start(Role.AGGREGATED, registry=registry)
    for sampling in ({}, {"temperature": 1.0, "seed": 3}):
        plain = await whole.tokens_of(whole.ask(max_tokens=500, **sampling))
        number = whole.ask(max_tokens=500, logits=spec("nothing"), **sampling)
        assert await whole.tokens_of(number) == plain


@pytest.mark.promise("S1-042")
async def test_each_phase_calls_once_for_each_of_its_positions(
    start: Any, registry: Registry
) -> None:
    prefill = await start(Role.PREFILL, registry=registry)
    decode = await start(Role.DECODE, registry=registry)
    for room in (1, 2):
        Seen.calls.clear()
        prefill.ask(room=room, logits=spec("seen"), max_tokens=4)
        peer = prefill.description.kv_endpoint
        number = decode.ask(room=room, peer=peer, logits=spec("seen"), max_tokens=4)
        tokens = await decode.tokens_of(number)
        assert Seen.calls == [
            (0, 150, 249, 1),
            (1, 151, tokens[0], 1),
            (2, 152, tokens[1], 2),
            (3, 153, tokens[2], 3),
        ]


async def test_logit_bias_bans_and_forces(start: Any) -> None:
    whole = await start(Role.AGGREGATED)
    plain = await whole.tokens_of(whole.ask())
    banned = await whole.tokens_of(whole.ask(logit_bias={plain[0]: -100.0}))
    assert plain[0] not in banned
    forced = await whole.tokens_of(whole.ask(max_tokens=5, logit_bias={700: 100.0}))
    assert forced == [700] * 5


async def test_an_embedding_bias_of_another_model_is_refused(start: Any) -> None:
    whole = await start(Role.AGGREGATED)
    ids, values = array("I", [2**31]), array("f", [1.0])
    bias = common_pb2.EmbeddingBias(token_ids=ids.tobytes(), values=values.tobytes())
    with pytest.raises(InvalidRequestError, match="the vocabulary has"):
        whole.ask(bias=bias)
    assert whole.idle


async def test_penalties_keep_a_biased_token_from_repeating(start: Any) -> None:
    whole = await start(Role.AGGREGATED)
    for penalty in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}):
        sampling = {"max_tokens": 8, "logit_bias": {700: 6.0}, "ignore_eos": True}
        free = await whole.tokens_of(whole.ask(**sampling))
        held = await whole.tokens_of(whole.ask(**sampling, **penalty))
        assert held.count(700) < free.count(700)
    repeated = await whole.tokens_of(whole.ask((700, 701), **sampling, repetition_penalty=2.0))
    assert repeated.count(700) < free.count(700)


async def test_logprobs_are_those_of_the_row(pair: Any) -> None:
    plain = await pair.tokens()
    _, number = pair.ask(logprobs=3)
    deltas = await pair.decode.end_of(number)
    assert [token for delta in deltas for token in delta.token_ids] == plain
    for delta in deltas:
        (chosen,), (top,) = delta.logprobs.chosen, delta.logprobs.top
        assert len(top) == 3
        assert top[0][0] == delta.token_ids[0]
        assert top[0][1] == pytest.approx(chosen)
        values = [value for _, value in top]
        assert values == sorted(values, reverse=True)
        assert math.fsum(map(math.exp, values)) <= 1.0
    _, number = pair.ask(logprobs=0)
    deltas = await pair.decode.end_of(number)
    assert all(not delta.logprobs.top and len(delta.logprobs.chosen) == 1 for delta in deltas)


async def test_requests_that_ask_for_no_row_get_none(pair: Any, monkeypatch: Any) -> None:
    from tandem_sim.language import Language

    def no_row(*_: object) -> None:
        raise AssertionError("a row was made")

    monkeypatch.setattr(Language, "row", no_row)
    assert len(await pair.tokens(temperature=1.0, seed=2, top_p=0.5, repetition_penalty=1.0)) == 12
