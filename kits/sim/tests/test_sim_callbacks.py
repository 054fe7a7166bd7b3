"""Live callbacks run in the sim engine's own process."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tandem.engine.base import Role
from tandem.errors import InvalidRequestError
from tandem.logits.callbacks import batched_callback, callback
from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec

LENGTH = 6


def spec(name: str, **args: Any) -> LogitsProcessorSpec:
    return LogitsProcessorSpec((LogitsProcessorEntry(name, args),))


def together(calls: list[Any]) -> Any:
    def force(req_ids: Any, logits: Any, token_ids: Any, stream_ptr: Any, client_ids: Any) -> None:
        calls.append((list(req_ids), list(client_ids), [len(beams[0]) for beams in token_ids]))
        for number, row in zip(req_ids, logits, strict=True):
            row[:] = -math.inf
            row[..., 500 + number] = 0.0

    return force


@pytest.mark.promise("S2-073")
async def test_a_batched_callback_is_called_once_a_step_for_all_its_requests(start: Any) -> None:
    calls: list[Any] = []
    registry = Registry.builtin()
    registry.register("together", batched_callback(together(calls)))
    whole = await start(Role.AGGREGATED, registry=registry, step_ms=20)
    free = await whole.tokens_of(whole.ask(max_tokens=LENGTH))
    asked = {
        number: whole.ask(
            logits=spec("together", request_id=number, client_id=90 + number), max_tokens=LENGTH
        )
        for number in range(4)
    }
    beside = whole.ask(max_tokens=LENGTH)
    for number, engine_id in asked.items():
        assert await whole.tokens_of(engine_id) == [500 + number] * LENGTH
    assert await whole.tokens_of(beside) == free
    for numbers, clients, _ in calls:
        assert clients == [90 + number for number in numbers]
    prompts, steps = calls[:4], calls[4:]
    assert [numbers for numbers, _, _ in prompts] == [[0], [1], [2], [3]]
    assert max(len(numbers) for numbers, _, _ in steps) == 4
    # Each request at each of its positions once, whatever was together with it.
    seen = sorted(
        (number, length)
        for numbers, _, lengths in calls
        for number, length in zip(numbers, lengths, strict=True)
    )
    assert seen == [(number, 150 + past) for number in range(4) for past in range(LENGTH)]


@pytest.mark.promise("S2-071", "S2-074")
async def test_a_callback_sees_each_position_of_its_requests_once_in_both_phases(
    start: Any,
) -> None:
    calls: list[Any] = []

    def look(req_id: Any, logits: Any, token_ids: Any, stream_ptr: Any, client_id: Any) -> None:
        calls.append((req_id, client_id, len(token_ids[0]) - 150))

    registry = Registry.builtin()
    registry.register("look", callback(look))
    prefill = await start(Role.PREFILL, registry=registry)
    decode = await start(Role.DECODE, registry=registry)
    looked = spec("look", request_id=12, client_id=34)
    for room, logits in ((1, looked), (2, None)):
        prefill.ask(room=room, logits=logits, max_tokens=4)
        peer = prefill.description.kv_endpoint
        number = decode.ask(room=room, peer=peer, logits=logits, max_tokens=4)
        await decode.tokens_of(number)
    assert calls == [(12, 34, position) for position in range(4)]


@pytest.mark.promise("S2-072")
async def test_an_unknown_callback_is_refused_before_it_is_queued(start: Any) -> None:
    whole = await start(Role.AGGREGATED)
    with pytest.raises(InvalidRequestError, match="unknown logits processor 'nobody'"):
        whole.ask(logits=spec("nobody", request_id=1))
    assert whole.idle
