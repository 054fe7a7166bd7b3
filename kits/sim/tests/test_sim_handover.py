"""That decode's answer depends on KV that crossed, and what happens when it does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem.engine.base import Ending, Role
from tandem.errors import KvTransferError

PROMPT = tuple(range(100, 250))


async def test_the_first_delta_measures_the_transfer(pair: Any) -> None:
    _, number = pair.ask()
    kv = (await pair.decode.end_of(number))[0].kv
    assert kv.bytes == 3 * 64 * 64  # three pages of 64 tokens of 64 bytes
    assert kv.seconds > 0
    assert kv.transport == "nixl/ucx/shm"
    assert all(delta.kv is None for delta in pair.decode.said[number][1:])


async def test_a_dropped_hand_over_fails_both_sides_in_time(start: Any) -> None:
    prefill = await start(Role.PREFILL, handover_timeout_seconds=0.2, fault_drop="nth:1")
    decode = await start(Role.DECODE, handover_timeout_seconds=0.2)
    room = 77
    first = prefill.ask(room=room)
    second = decode.ask(room=room, peer=prefill.description.kv_endpoint)
    for running, number in ((prefill, first), (decode, second)):
        (delta,) = await running.end_of(number)
        assert delta.end is Ending.FAILED
        assert isinstance(delta.error, KvTransferError)
        assert delta.retryable
    await decode.until(lambda: decode.idle)


async def test_a_delayed_hand_over_arrives(pair: Any) -> None:
    pair.prefill.engine.set_faults(delay="always", delay_ms=80)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert len(await pair.tokens()) == 12
    assert loop.time() - began >= 0.08


async def test_either_side_may_come_first(pair: Any) -> None:
    peer = pair.prefill.description.kv_endpoint
    expected = await pair.tokens()
    early = pair.decode.ask(room=5, peer=peer)
    await asyncio.sleep(0.05)
    pair.prefill.ask(room=5)
    assert await pair.decode.tokens_of(early) == expected
    pair.prefill.ask(room=6)
    await asyncio.sleep(0.05)
    assert await pair.decode.tokens_of(pair.decode.ask(room=6, peer=peer)) == expected


async def test_a_prompt_of_another_length_is_refused(pair: Any) -> None:
    first = pair.prefill.ask(PROMPT, room=9)
    second = pair.decode.ask(PROMPT[:10], room=9, peer=pair.prefill.description.kv_endpoint)
    for running, number in ((pair.prefill, first), (pair.decode, second)):
        (delta,) = await running.end_of(number)
        assert isinstance(delta.error, KvTransferError)


async def test_an_unreachable_prefill_fails_the_room(pair: Any) -> None:
    number = pair.decode.ask(room=3, peer="127.0.0.1:1")
    (delta,) = await pair.decode.end_of(number)
    assert isinstance(delta.error, KvTransferError)
    assert delta.retryable


async def test_engines_with_other_pages_do_not_join(start: Any) -> None:
    prefill, decode = await start(Role.PREFILL, page_size=16), await start(Role.DECODE)
    number = decode.ask(room=4, peer=prefill.description.kv_endpoint)
    (delta,) = await decode.end_of(number)
    assert isinstance(delta.error, KvTransferError)
    assert prefill.description.fingerprint != decode.description.fingerprint
    assert prefill.idle


async def test_every_prefill_can_serve_every_decode(start: Any) -> None:
    prefills = [await start(Role.PREFILL) for _ in range(2)]
    decodes = [await start(Role.DECODE) for _ in range(2)]
    asked = []
    for room in range(1, 41):
        prefill, decode = prefills[room % 2], decodes[room // 2 % 2]
        prefill.ask(room=room)
        peer = prefill.description.kv_endpoint
        asked.append((decode, decode.ask(room=room, peer=peer)))
    answers = {tuple(await decode.tokens_of(number)) for decode, number in asked}
    assert len(answers) == 1


async def test_decode_meets_a_restarted_prefill(start: Any) -> None:
    decode = await start(Role.DECODE)
    port = 0
    answers = set()
    for room in (1, 2):
        prefill = await start(Role.PREFILL, kv_port=port)
        peer = prefill.description.kv_endpoint
        port = int(peer.rpartition(":")[2])
        prefill.ask(room=room)
        answers.add(tuple(await decode.tokens_of(decode.ask(room=room, peer=peer))))
        await prefill.engine.close()
    assert len(answers) == 1


async def test_a_stream_that_prefill_cuts_is_dialled_again(pair: Any) -> None:
    good = await pair.tokens()
    (link,) = pair.prefill.engine._started.handover.sender._links
    (serving,) = [task for task in asyncio.all_tasks() if "kv link to" in task.get_name()]
    link.cut("a test wants it")
    async with asyncio.timeout(20):
        await asyncio.wait([serving])
    assert await pair.tokens() == good


async def test_a_request_with_little_time_offers_its_pages_for_as_long_as_others(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that runs out during a write ends the stream, and what others have on it."""
    receiver = pair.decode.engine._started.handover.receiver
    leases: list[float] = []
    expect = receiver.expect

    def note(peer: str, expected: Any) -> None:
        leases.append(expected.lease_seconds)
        expect(peer, expected)

    monkeypatch.setattr(receiver, "expect", note)
    _, short = pair.ask(timeout_seconds=0.02, max_tokens=4000)
    await pair.decode.end_of(short)
    assert len(await pair.tokens()) == 12
    assert leases[0] == leases[1]


async def test_a_closing_prefill_fails_what_decode_waits_for(start: Any) -> None:
    prefill, decode = await start(Role.PREFILL), await start(Role.DECODE)
    peer = prefill.description.kv_endpoint
    waiting = [decode.ask(room=room, peer=peer) for room in (1, 2, 3)]
    while not prefill.engine.open_rooms:  # noqa: ASYNC110 - an engine tells of no such event
        await asyncio.sleep(0.005)
    await prefill.engine.close()
    for number in waiting:
        (delta,) = await decode.end_of(number)
        assert isinstance(delta.error, KvTransferError)
        assert delta.retryable


async def test_requests_wait_for_room_in_the_pool_in_their_order(start: Any) -> None:
    prefill = await start(Role.PREFILL, max_total_tokens=64 * 3)
    decode = await start(Role.DECODE, max_total_tokens=64 * 6)  # two requests of three pages
    peer = prefill.description.kv_endpoint
    numbers = []
    for room in range(1, 31):
        numbers.append(decode.ask(room=room, peer=peer))
        prefill.ask(room=room)
    assert decode.engine.load().waiting_legs == 28
    for number in numbers:
        assert len(await decode.tokens_of(number)) == 12
    assert [number for number in decode.said if number in numbers] == numbers


async def test_a_thousand_requests_leave_nothing(start: Any) -> None:
    pair_prefill = await start(Role.PREFILL, step_ms=0, max_sequences=2000)
    decode = await start(Role.DECODE, step_ms=0, max_sequences=2000)
    tasks_before = len(asyncio.all_tasks())
    peer = pair_prefill.description.kv_endpoint
    numbers = []
    for room in range(1, 1001):
        pair_prefill.ask(PROMPT[: 1 + room % 150], room=room)
        numbers.append(decode.ask(PROMPT[: 1 + room % 150], room=room, peer=peer, max_tokens=5))
    for number in numbers:
        assert len(await decode.tokens_of(number)) == 5
    await pair_prefill.until(lambda: len(pair_prefill.said) == 1000)
    assert pair_prefill.idle
    assert decode.idle
    # The link between the two stays: its two ends are all that is new.
    assert len(asyncio.all_tasks()) - tasks_before <= 6


@pytest.mark.parametrize("order", ["prefill, decode", "decode, prefill", "together"])
async def test_engines_that_are_closed_hang_up_without_a_complaint(
    start: Any, caplog: pytest.LogCaptureFixture, order: str
) -> None:
    prefill, decode = await start(Role.PREFILL), await start(Role.DECODE)
    number = decode.ask(room=78, peer=prefill.description.kv_endpoint)
    prefill.ask(room=78)
    await decode.tokens_of(number)
    if order == "together":
        await asyncio.gather(prefill.engine.close(), decode.engine.close())
    else:
        engines = {"prefill": prefill.engine, "decode": decode.engine}
        for name in order.split(", "):
            await engines[name].close()
    for _ in range(10):  # what is left of the stream's handler
        await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records] == []
