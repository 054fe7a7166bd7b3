"""KV that is parked in a sim engine, over real NIXL: used once, for a time, within bounds."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.engine.base import Ending, ParkingLimits, Role
from tandem.errors import ParkingFullError, TandemError, VoucherError
from tandem.v1 import kv_pb2
from tandem_sim.kv_transfer.sender import Export, Sender

PROMPT = tuple(range(100, 250))
PAGE_BYTES = 64 * 64
PROMPT_BYTES = 3 * PAGE_BYTES
LONG = 600.0


async def park(running: Any, room: int, *, seconds: float = LONG, **sampling: Any) -> int:
    """Parks a prompt's KV in a room; returns the request's number."""
    number: int = running.ask(PROMPT, room=room, park_seconds=seconds, **sampling)
    (delta,) = await running.end_of(number)
    assert (delta.end, len(delta.token_ids)) == (Ending.LENGTH, 1)
    return number


def fetch(pair: Any, room: int, **sampling: Any) -> int:
    peer = pair.prefill.description.kv_endpoint
    number: int = pair.decode.ask(PROMPT, room=room, peer=peer, parked=True, **sampling)
    return number


async def refusal(running: Any, number: int) -> Any:
    (delta,) = await running.end_of(number)
    assert delta.end is Ending.FAILED
    assert not delta.retryable
    return delta.error


async def until(holds: Any) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - the engine says nothing of what it frees
            await asyncio.sleep(0.005)


@pytest.mark.promise("S2-082")
@pytest.mark.parametrize("seed", [None, 7])
async def test_the_second_half_is_what_both_halves_at_once_are(pair: Any, seed: Any) -> None:
    sampling = {} if seed is None else {"temperature": 1.0, "seed": seed}
    whole = await pair.tokens(PROMPT, **sampling)
    number = await park(pair.prefill, 5, **sampling)
    assert pair.prefill.said[number][0].token_ids == (whole[0],)
    assert pair.prefill.engine.load().open_legs == 0
    assert pair.prefill.engine.figures().parked == 1
    assert pair.prefill.engine.figures().parked_bytes == PROMPT_BYTES
    assert await pair.decode.tokens_of(fetch(pair, 5, **sampling)) == whole
    await until(lambda: pair.idle)
    assert pair.prefill.engine.figures().parked == 0


@pytest.mark.promise("S6-190")
async def test_parked_kv_is_used_once(pair: Any) -> None:
    await park(pair.prefill, 5)
    await pair.decode.tokens_of(fetch(pair, 5))
    assert isinstance(await refusal(pair.decode, fetch(pair, 5)), VoucherError)
    await until(lambda: pair.idle)


@pytest.mark.promise("S6-190")
async def test_of_two_at_once_one_gets_it(start: Any, pairing: Any) -> None:
    prefill = await start(Role.PREFILL)
    pairs = [pairing(prefill, await start(Role.DECODE)) for _ in range(2)]
    await park(prefill, 5)
    numbers = [fetch(pair, 5) for pair in pairs]
    ends = [await pair.decode.end_of(n) for pair, n in zip(pairs, numbers, strict=True)]
    good = [each for each in ends if each[-1].error is None]
    bad = [each for each in ends if each[-1].error is not None]
    assert (len(good), len(bad)) == (1, 1)
    assert isinstance(bad[0][-1].error, VoucherError)


async def test_two_at_once_on_one_decode_engine(pair: Any) -> None:
    await park(pair.prefill, 5)
    first = fetch(pair, 5)
    with pytest.raises(VoucherError):
        fetch(pair, 5)
    await pair.decode.tokens_of(first)


class Link:
    """A decode engine's stream, as the sender needs it. Its writes end when they are told to."""

    def __init__(self) -> None:
        self.moving = 0
        self.done = False
        self.landed: list[Any] = []
        self.failed: list[tuple[int, TandemError]] = []

    def write(self, pages: Any, remote_pages: Any) -> Link:
        return self

    def settled(self) -> bool:
        return self.done

    def release(self) -> None:
        """The write is over."""

    def notify(self) -> None:
        """Answers leave at once."""

    def land(self, landed: Any) -> None:
        self.landed.append(landed)

    def fail(self, room: int, error: TandemError) -> None:
        self.failed.append((room, error))


async def test_whoever_came_too_late_does_not_end_the_first_by_giving_up() -> None:
    memory: Any = SimpleNamespace(
        describe=lambda token_bytes: kv_pb2.KvMemory(page_bytes=8), transport=lambda: "shm"
    )
    sender = Sender(memory, token_bytes=8, on_crash=pytest.fail)
    first, late = Link(), Link()
    results: list[Any] = []
    landed = kv_pb2.KvLanded(room=5)
    sender.export(Export(landed=landed, pages=[0], wait_seconds=LONG, settle=results.append))
    offer = kv_pb2.KvOffer(room=5, pages=[0], lease_ms=60_000, parked=True)
    sender.on_offer(first, offer)  # type: ignore[arg-type]
    sender.on_offer(late, offer)  # type: ignore[arg-type]
    ((room, error),) = late.failed
    assert (room, type(error)) == (5, VoucherError)
    sender.on_abort(late, 5)  # type: ignore[arg-type]
    first.done = True
    await until(lambda: results)
    assert results == first.landed == [landed]
    assert first.failed == []
    sender.on_offer(late, offer)  # type: ignore[arg-type]
    assert [type(error) for _, error in late.failed] == [VoucherError] * 2
    assert len(sender) == 0
    await sender.close()


@pytest.mark.promise("S6-190")
async def test_what_nobody_fetches_is_freed_when_its_time_is_over(pair: Any) -> None:
    await park(pair.prefill, 5, seconds=0.05)
    await until(lambda: pair.prefill.idle)
    assert pair.prefill.engine.figures().parked == 0
    assert isinstance(await refusal(pair.decode, fetch(pair, 5)), VoucherError)


async def test_a_cancel_frees_it(pair: Any) -> None:
    number = await park(pair.prefill, 5)
    pair.prefill.engine.cancel(number)
    assert pair.prefill.idle
    assert len(pair.prefill.said[number]) == 1


async def test_the_deadline_of_the_first_half_does_not_free_it(pair: Any) -> None:
    number = pair.prefill.ask(PROMPT, room=5, park_seconds=LONG, timeout_seconds=0.2)
    await pair.prefill.end_of(number)
    await asyncio.sleep(0.3)
    assert await pair.decode.tokens_of(fetch(pair, 5))


@pytest.mark.parametrize(
    "limits",
    [ParkingLimits(prompts=2), ParkingLimits(bytes=2 * PROMPT_BYTES + PAGE_BYTES)],
)
async def test_one_more_than_may_be_parked_is_refused(
    start: Any, pairing: Any, limits: ParkingLimits
) -> None:
    pair = pairing(await start(Role.PREFILL, parking=limits), await start(Role.DECODE))
    first = await park(pair.prefill, 5)
    second = pair.prefill.ask(PROMPT, room=6, park_seconds=LONG)  # it has not parked yet
    with pytest.raises(ParkingFullError):
        pair.prefill.ask(PROMPT, room=7, park_seconds=LONG)
    await pair.prefill.end_of(second)
    assert await pair.tokens()  # others are not bounded by that
    pair.prefill.engine.cancel(first)
    await park(pair.prefill, 8)
    assert await pair.decode.tokens_of(fetch(pair, 6))
    await park(pair.prefill, 9)


async def test_a_first_half_that_fails_gives_its_place_back(start: Any) -> None:
    prefill = await start(
        Role.PREFILL, parking=ParkingLimits(prompts=1), prefill_base_ms=50, step_ms=1
    )
    for room in range(5, 9):
        number = prefill.ask(PROMPT, room=room, park_seconds=LONG)
        prefill.engine.cancel(number)
        (delta,) = await prefill.end_of(number)
        assert delta.end is Ending.CANCELLED
    assert prefill.idle


async def test_a_prefill_engine_that_closes_leaves_a_typed_error(start: Any, pairing: Any) -> None:
    pair = pairing(await start(Role.PREFILL), await start(Role.DECODE))
    await park(pair.prefill, 5)
    await pair.prefill.engine.close()
    assert pair.prefill.idle
    (delta,) = await pair.decode.end_of(fetch(pair, 5))
    assert delta.end is Ending.FAILED
