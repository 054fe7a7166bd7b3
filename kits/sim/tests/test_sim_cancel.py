"""Ends that are not the model's: cancels, deadlines and the engine's own close, in every state."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem.engine.base import Ending, EngineSettings, Role
from tandem.engine.mailbox import steps
from tandem.errors import DeadlineError, EngineError

PROMPT = tuple(range(100, 250))


async def only_end(running: Any, number: int, end: Ending) -> Any:
    deltas = await running.end_of(number)
    assert [delta.end for delta in deltas if delta.end is not None] == [end]
    return deltas[-1]


async def test_cancel_while_queued(start: Any) -> None:
    whole = await start(Role.AGGREGATED, max_sequences=1)
    first = whole.ask(max_tokens=1000, ignore_eos=True)
    queued = [whole.ask() for _ in range(3)]
    whole.engine.cancel(queued[1])
    await only_end(whole, queued[1], Ending.CANCELLED)
    whole.engine.cancel(first)
    await only_end(whole, first, Ending.CANCELLED)
    for number in (queued[0], queued[2]):
        assert len(await whole.tokens_of(number)) == 12
    assert whole.idle


async def test_cancel_while_the_prompt_is_computed(start: Any) -> None:
    prefill = await start(Role.PREFILL, prefill_base_ms=60_000)
    decode = await start(Role.DECODE)
    behind = prefill.ask(room=2)
    first = prefill.ask(room=1)
    second = decode.ask(room=1, peer=prefill.description.kv_endpoint)
    await asyncio.sleep(0.05)
    prefill.engine.cancel(first)
    await only_end(prefill, first, Ending.CANCELLED)
    # Decode is told, and does not wait for its own timeout.
    assert (await only_end(decode, second, Ending.FAILED)).error is not None
    prefill.engine.cancel(behind)
    await only_end(prefill, behind, Ending.CANCELLED)
    assert prefill.idle
    await decode.until(lambda: decode.idle)


async def test_cancel_before_the_other_phase_has_come(start: Any) -> None:
    prefill, decode = await start(Role.PREFILL), await start(Role.DECODE)
    first = prefill.ask(room=1)
    second = decode.ask(room=2, peer=prefill.description.kv_endpoint)
    await asyncio.sleep(0.05)
    prefill.engine.cancel(first)
    decode.engine.cancel(second)
    await only_end(prefill, first, Ending.CANCELLED)
    await only_end(decode, second, Ending.CANCELLED)
    assert prefill.idle
    assert decode.idle


@pytest.mark.promise("S2-066")
async def test_cancel_at_any_moment_of_a_hand_over_leaves_nothing(start: Any, pairing: Any) -> None:
    """Cancels race with the offer, the write and the answer; the pool holds two requests, so a page
    that is reused too early would be noticed as corrupt KV of another one.
    """
    small = {"max_total_tokens": 64 * 6}
    pair = pairing(await start(Role.PREFILL, **small), await start(Role.DECODE, **small))
    for turn in range(60):
        cancelled = pair.ask()
        kept = pair.ask()
        for _ in range(turn // 4):
            await asyncio.sleep(0)
        if turn % 2:
            pair.prefill.engine.cancel(cancelled[0])
        if turn % 4 != 1:
            pair.decode.engine.cancel(cancelled[1])
        assert len(await pair.decode.tokens_of(kept[1])) == 12
        for running, number in zip((pair.prefill, pair.decode), cancelled, strict=True):
            deltas = await running.end_of(number)
            assert sum(delta.end is not None for delta in deltas) == 1
    await pair.decode.until(lambda: pair.idle)


async def test_cancel_while_decoding(pair: Any) -> None:
    first, second = pair.ask(max_tokens=3000, ignore_eos=True)
    await pair.decode.until(lambda: len(pair.decode.said.get(second, ())) > 3)
    pair.decode.engine.cancel(second)
    await only_end(pair.decode, second, Ending.CANCELLED)
    count = len(pair.decode.said[second])
    assert await pair.tokens()
    assert len(pair.decode.said[second]) == count
    await only_end(pair.prefill, first, Ending.LENGTH)
    assert pair.idle


async def test_cancelling_what_is_unknown_or_over_does_nothing(pair: Any) -> None:
    first, second = pair.ask()
    await pair.decode.end_of(second)
    for running, number in ((pair.prefill, first), (pair.decode, second), (pair.decode, 10**9)):
        before = dict(running.said)
        running.engine.cancel(number)
        running.engine.cancel(number)
        assert running.said == before
    assert await pair.tokens()


async def test_a_deadline_ends_a_request_in_every_state(start: Any) -> None:
    whole = await start(Role.AGGREGATED, max_sequences=1)
    prefill = await start(Role.PREFILL, prefill_base_ms=60_000)
    decode = await start(Role.DECODE)
    peer = prefill.description.kv_endpoint
    endless = {"max_tokens": 3000, "ignore_eos": True, "timeout_seconds": 0.15}
    asked = [
        (whole, whole.ask(**endless)),
        (whole, whole.ask(timeout_seconds=0.1)),
        (prefill, prefill.ask(room=1, timeout_seconds=0.1)),
        (decode, decode.ask(room=2, peer=peer, timeout_seconds=0.1)),
    ]
    for running, number in asked:
        delta = await only_end(running, number, Ending.FAILED)
        assert isinstance(delta.error, DeadlineError)
        assert not delta.retryable
        await running.until(lambda running=running: running.idle)


async def test_close_ends_what_is_open_and_then_the_steps(start: Any) -> None:
    prefill, decode = await start(Role.PREFILL), await start(Role.DECODE)
    whole = await start(Role.AGGREGATED)
    peer = prefill.description.kv_endpoint
    asked = [
        (prefill, prefill.ask(room=1)),
        (decode, decode.ask(room=2, peer=peer)),
        (whole, whole.ask(max_tokens=3000, ignore_eos=True)),
    ]
    await asyncio.sleep(0.05)
    for running, number in asked:
        async with asyncio.timeout(5):
            await running.engine.close()
        deltas = await running.end_of(number)
        assert deltas[-1].end in (Ending.CANCELLED, Ending.FAILED)
        with pytest.raises(EngineError):
            running.ask(room=50)
        async with asyncio.timeout(5):
            assert [step async for step in steps(running.engine)] == []


async def test_an_engine_that_was_not_started_answers_and_closes(model_path: Any) -> None:
    from tandem.logits.registry import Registry
    from tandem_sim import SimEngine

    engine = SimEngine(
        Role.PREFILL,
        EngineSettings(
            model_path=model_path,
            model_name="tiny",
            max_sequences=1,
            host="127.0.0.1",
            options={},
            registry=Registry.builtin(),
        ),
    )
    engine.cancel(1)
    assert engine.load().open_legs == engine.open_rooms == engine.figures().cpu_seconds == 0
    await engine.close()
    async with asyncio.timeout(5):
        assert [step async for step in steps(engine)] == []
