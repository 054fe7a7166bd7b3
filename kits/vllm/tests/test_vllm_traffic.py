"""What becomes of requests, with a stand-in for vLLM, and a real stream between the phases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import vllm_stand_ins as stand_in
from vllm_stand_ins import EOS, Side, computed, output, request, until

from tandem.engine.base import Ending, ParkingLimits, Role
from tandem.errors import (
    ContextLengthError,
    DeadlineError,
    EngineError,
    InvalidRequestError,
    KvCorruptError,
    KvTransferError,
    ParkingFullError,
    ProcessorError,
    RequestError,
    UnsupportedError,
    VoucherError,
)
from tandem_vllm.requests import LEASE_ENDS, LEASE_SECONDS, RELEASE, TRANSFER

STOP, LENGTH, ERROR = 0, 1, 3
ROOM = 77


class Pair:
    def __init__(self, prefill: Side, decode: Side, peer: str) -> None:
        self.prefill, self.decode, self.peer = prefill, decode, peer

    def submit(self, number: int = 1, *, room: int = ROOM, **given: Any) -> None:
        self.prefill.traffic.submit(request(number, room=room, **given))
        self.decode.traffic.submit(request(number, room=room, kv_peer=self.peer, **given))

    def prefilled(self, number: int = 1, *, lease: float = 60.0, token: int = 9) -> None:
        told = {
            "do_remote_prefill": True,
            "remote_block_ids": [[1]],
            LEASE_ENDS: time.monotonic() + lease,
        }
        self.prefill.vllm.put(output(number, token, end=LENGTH, kv_transfer_params=told))

    async def read(self, number: int = 1) -> Any:
        """Decode's request to vLLM, once prefill has said that it may read."""
        await until(lambda: f"tandem-{number}" in self.decode.vllm.names)
        return self.decode.vllm.added[self.decode.vllm.names.index(f"tandem-{number}")]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    prefill, decode = Side(Role.PREFILL), Side(Role.DECODE)
    assert prefill.server is not None
    peer = await prefill.server.start("127.0.0.1", 0)
    prefill.begin()
    decode.begin()
    yield Pair(prefill, decode, peer)
    await prefill.close()
    await decode.close()


@pytest.fixture
async def alone() -> AsyncIterator[Side]:
    side = Side(Role.AGGREGATED)
    side.begin()
    yield side
    await side.close()


def released(side: Side) -> list[str]:
    """Requests whose pages vLLM was told to free."""
    extra = [each.sampling_params.given["extra_args"] for each in side.vllm.added]
    return [each[TRANSFER][RELEASE] for each in extra if each and RELEASE in each[TRANSFER]]


@pytest.mark.promise("S5-725")
async def test_decode_repeats_prefills_token_and_both_end(pair: Pair) -> None:
    pair.submit(max_tokens=3)
    await until(lambda: pair.prefill.vllm.added)
    asked = pair.prefill.vllm.added[0].sampling_params.given
    assert asked["max_tokens"] == 1
    assert asked["stop_token_ids"] == []
    assert asked["extra_args"][TRANSFER][LEASE_SECONDS] == 65.0
    pair.prefilled()
    given = (await pair.read()).sampling_params.given
    assert given["extra_args"]["tandem"]["first"] == 9
    assert LEASE_ENDS not in given["extra_args"][TRANSFER]
    assert given["max_tokens"] == 3
    assert EOS in given["stop_token_ids"]
    pair.decode.vllm.put(output(1, 9, prefill_stats=computed(external=3)))
    await pair.prefill.ended()
    (first,) = pair.prefill.deltas
    assert (first.token_ids, first.end) == ([9], Ending.LENGTH)
    assert first.kv is not None
    assert (first.kv.bytes, first.kv.transport) == (1024, "nixl/ucx/unknown")
    pair.decode.vllm.put(output(1, 10))
    pair.decode.vllm.put(output(1, EOS, end=STOP))
    deltas = await pair.decode.ended()
    assert [each.token_ids for each in deltas] == [[9], [10], [EOS]]
    assert deltas[0].kv == first.kv
    assert deltas[-1].end is Ending.STOP
    assert released(pair.prefill) == []
    for side in (pair.prefill, pair.decode):
        assert len(side.traffic) == side.traffic.load().kv_tokens_used == 0


@pytest.mark.promise("S5-727")
async def test_kv_read_after_its_lease_is_no_answer(pair: Pair) -> None:
    """Both by the timer, and where the first token itself comes later than that."""
    pair.submit()
    pair.prefilled(lease=0.2)
    await pair.read()
    (failed,) = await pair.decode.ended()
    assert isinstance(failed.error, KvTransferError)
    assert failed.retryable
    assert pair.decode.vllm.aborted == ["tandem-1"]
    pair.decode.vllm.put(output(1, 9, prefill_stats=computed(external=3)))
    await asyncio.sleep(0.02)
    assert len(pair.decode.deltas) == 1
    pair.submit(2, room=8)
    pair.prefilled(2, lease=60)
    await pair.read(2)
    leg = pair.decode.traffic._legs[2]
    assert leg.readable is not None
    object.__setattr__(leg.readable, "until", time.monotonic() - 0.001)
    pair.decode.vllm.put(output(2, 9, prefill_stats=computed(external=3)))
    await pair.decode.ended(2)
    assert [each.token_ids for each in pair.decode.deltas] == [(), ()]
    assert "after its lease" in str(pair.decode.deltas[1].error)


@pytest.mark.promise("S5-692")
@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"token_ids": [5, 6, 8]}, "another prompt"),
        ({"cache_salt": "umbrella"}, "another cache salt"),
        ({"lora_adapter": "sql"}, "another LoRA adapter"),
        ({"made": [4]}, "another prompt"),
    ],
    ids=["prompt", "salt", "adapter", "made"],
)
async def test_kv_of_another_request_is_not_even_read(
    pair: Pair, other: dict[str, Any], said: str
) -> None:
    pair.prefill.traffic.submit(request(room=7))
    pair.decode.traffic.submit(request(room=7, kv_peer=pair.peer, **other))
    pair.prefilled()
    (failed,) = await pair.decode.ended()
    assert isinstance(failed.error, KvCorruptError)
    assert said in str(failed.error)
    assert failed.retryable
    assert not pair.decode.vllm.added
    await until(lambda: released(pair.prefill) == ["tandem-1"])


@pytest.mark.promise("S5-692")
@pytest.mark.parametrize("layouts", [(7, 8), (0, 7)], ids=["another", "no tag"])
async def test_kv_of_another_layout_is_not_even_read(layouts: tuple[int, int]) -> None:
    sides = Side(Role.PREFILL), Side(Role.DECODE)
    assert sides[0].server is not None
    pair = Pair(*sides, await sides[0].server.start("127.0.0.1", 0))
    for side, layout in zip(sides, layouts, strict=True):
        side.begin(layout)
    pair.submit()
    pair.prefilled()
    (failed,) = await pair.decode.ended()
    assert isinstance(failed.error, KvCorruptError)
    assert not pair.decode.vllm.added
    for side in sides:
        await side.close()


async def test_a_token_that_is_not_prefills_fails_the_request(pair: Pair) -> None:
    pair.submit()
    pair.prefilled(token=9)
    await pair.read()
    pair.decode.vllm.put(output(1, 10, prefill_stats=computed(external=3)))
    (failed,) = await pair.decode.ended()
    assert isinstance(failed.error, EngineError)
    await until(lambda: released(pair.prefill) == ["tandem-1"])


async def test_a_token_that_the_model_does_not_have_never_reaches_the_batch(pair: Pair) -> None:
    pair.submit()
    pair.prefilled(token=stand_in.VOCABULARY)
    (failed,) = await pair.decode.ended()
    assert isinstance(failed.error, KvTransferError)
    assert pair.decode.vllm.added == []
    await until(lambda: released(pair.prefill) == ["tandem-1"])


async def test_a_request_that_vllm_cannot_be_sent_ends_at_once(
    alone: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(request: Any) -> None:
        raise TypeError("cannot be encoded")

    monkeypatch.setattr(alone.vllm, "add_request_async", refuse)
    alone.traffic.submit(request(1))
    (failed,) = await alone.ended()
    assert isinstance(failed.error, EngineError)
    assert len(alone.traffic) == 0


async def test_pages_that_vllm_could_not_read_fail_the_request_on_both_sides(pair: Pair) -> None:
    pair.submit()
    pair.prefilled()
    await pair.read()
    pair.decode.vllm.put(output(1, end=ERROR))
    (decode,) = await pair.decode.ended()
    (prefill,) = await pair.prefill.ended()
    assert isinstance(decode.error, KvTransferError)
    assert isinstance(prefill.error, KvTransferError)
    assert decode.retryable
    assert prefill.retryable
    assert released(pair.prefill) == ["tandem-1"]


@pytest.mark.promise("S5-726")
async def test_a_cancelled_pair_holds_nothing(pair: Pair) -> None:
    pair.submit()
    pair.prefilled()
    await pair.read()
    pair.prefill.traffic.cancel(1)
    (prefill,) = await pair.prefill.ended()
    assert prefill.end is Ending.CANCELLED
    assert released(pair.prefill) == []  # decode may be reading
    pair.decode.traffic.cancel(1)
    (decode,) = await pair.decode.ended()
    assert decode.end is Ending.CANCELLED
    await until(lambda: released(pair.prefill) == ["tandem-1"])
    assert pair.prefill.traffic.load().kv_tokens_used == 0


@pytest.mark.promise("S5-726")
async def test_a_prompt_that_finished_as_it_was_dropped_is_released(pair: Pair) -> None:
    """vLLM keeps the pages of what has finished, and an abort does nothing any more."""
    pair.prefill.traffic.submit(request(1, room=ROOM))
    pair.prefill.traffic.cancel(1)
    pair.prefilled()
    await pair.prefill.ended()
    await until(lambda: released(pair.prefill) == ["tandem-1"])


async def test_a_decode_whose_prefill_is_cancelled_is_told(pair: Pair) -> None:
    pair.submit()
    pair.prefill.traffic.cancel(1)
    (failed,) = await pair.decode.ended()
    assert (failed.end, failed.retryable) == (Ending.FAILED, True)
    assert isinstance(failed.error, KvTransferError)


async def test_prefill_that_dies_ends_hand_on(pair: Pair) -> None:
    pair.prefill.vllm.die()
    await until(lambda: pair.prefill.failure is not None)
    assert isinstance(pair.prefill.failure, EngineError)


@pytest.mark.promise("S5-729")
async def test_a_processor_that_failed_ends_its_own_request_before_its_token_is_seen(
    alone: Side,
) -> None:
    alone.traffic.submit(request(1))
    alone.traffic.submit(request(2))
    alone.notes.failed["tandem-1"] = ProcessorError("it raised")
    alone.vllm.put(output(1, 50), output(2, 51))
    await alone.ended()
    assert [(each.request_id, each.token_ids) for each in alone.deltas] == [(2, [51]), (1, ())]
    assert isinstance(alone.deltas[1].error, ProcessorError)
    assert not alone.deltas[1].retryable
    assert alone.vllm.aborted == ["tandem-1"]


async def test_an_end_is_said_when_vllm_has_dropped_the_request(alone: Side) -> None:
    alone.traffic.submit(request(1))
    alone.vllm.put(output(1, 50))
    await until(lambda: alone.deltas)
    alone.vllm.answers = False
    alone.traffic.cancel(1)
    alone.vllm.put(output(1, 51))
    await asyncio.sleep(0.05)
    assert len(alone.deltas) == 1
    assert alone.traffic.load().kv_tokens_used == 4


async def test_a_deadline_ends_a_request(alone: Side) -> None:
    alone.traffic.submit(request(1, timeout_seconds=0.02))
    (failed,) = await alone.ended()
    assert isinstance(failed.error, DeadlineError)


async def test_tokens_made_elsewhere_are_context_and_in_no_delta(alone: Side) -> None:
    alone.traffic.submit(request(1, made=[40, 41], max_tokens=4, frequency_penalty=0.5))
    await until(lambda: alone.vllm.added)
    (asked,) = alone.vllm.added
    assert asked.prompt_token_ids == [5, 6, 7, 40, 41]
    assert asked.sampling_params.given["max_tokens"] == 2
    given = asked.sampling_params.given["extra_args"]["tandem"]
    assert (given["made"], given["penalties"]) == (2, [0.5, 0.0, 1.0])
    alone.vllm.put(output(1, 42, end=LENGTH, prefill_stats=computed(local=3)))
    (delta,) = await alone.ended()
    assert (delta.token_ids, delta.cached_tokens) == ([42], 3)


async def test_a_parked_prompt_ends_at_once_and_is_used_once(pair: Pair) -> None:
    prefill, decode = pair.prefill, pair.decode
    prefill.traffic.submit(request(1, room=ROOM, park_seconds=20.0))
    pair.prefilled()
    (delta,) = await prefill.ended()
    assert (delta.token_ids, delta.end) == ([9], Ending.LENGTH)
    assert (len(prefill.traffic.parking), prefill.traffic.parking.bytes) == (1, 1024)
    decode.traffic.submit(request(1, room=ROOM, kv_peer=pair.peer, parked=True))
    await pair.read()
    decode.vllm.put(output(1, 9, end=LENGTH, prefill_stats=computed(external=3)))
    await decode.ended()
    await until(lambda: not prefill.traffic.parking)
    decode.traffic.submit(request(2, room=ROOM, kv_peer=pair.peer, parked=True))
    await decode.ended(2)
    assert isinstance(decode.deltas[-1].error, VoucherError)
    assert not decode.deltas[-1].retryable
    prefill.traffic.submit(request(3, room=9, park_seconds=20.0))
    pair.prefilled(3)
    await until(lambda: len(prefill.traffic.parking) == 1)
    prefill.traffic.cancel(3)
    await until(lambda: released(prefill) == ["tandem-3"])
    assert prefill.traffic.load().kv_tokens_used == 0


async def test_parking_has_bounds() -> None:
    side = Side(Role.PREFILL, parking=ParkingLimits(prompts=2, bytes=2048))
    side.begin()
    try:
        with pytest.raises(ParkingFullError):
            side.traffic.submit(request(1, room=1, park_seconds=1.0, token_ids=list(range(5, 14))))
        side.traffic.submit(request(2, room=2, park_seconds=1.0))
        side.traffic.submit(request(3, room=3, park_seconds=1.0))
        with pytest.raises(ParkingFullError):
            side.traffic.submit(request(4, room=4, park_seconds=1.0))
    finally:
        await side.close()


@pytest.mark.parametrize(
    ("given", "error", "param"),
    [
        ({"token_ids": []}, InvalidRequestError, "prompt"),
        ({"token_ids": [stand_in.VOCABULARY]}, InvalidRequestError, "prompt"),
        ({"made": [stand_in.VOCABULARY]}, InvalidRequestError, "resume"),
        ({"max_tokens": 198}, ContextLengthError, None),
        ({"made": [4] * 8}, InvalidRequestError, "max_tokens"),
        ({"temperature": 2.5}, UnsupportedError, "temperature"),
        ({"temperature": 1.5}, InvalidRequestError, ""),
        ({"logprobs": 129}, InvalidRequestError, "logprobs"),
        ({"prompt_logprobs": 129}, UnsupportedError, "prompt_logprobs"),
        ({"room": 5}, RequestError, "room"),
    ],
)
async def test_what_can_never_run_is_refused_by_name(
    alone: Side, given: dict[str, Any], error: type[RequestError], param: str | None
) -> None:
    with pytest.raises(error) as refused:
        alone.traffic.submit(request(1, **given))
    assert param is None or refused.value.param == param
    assert len(alone.traffic) == 0
    alone.traffic.submit(request(1))
    with pytest.raises(InvalidRequestError):
        alone.traffic.submit(request(1))


async def test_decode_needs_a_peer(pair: Pair) -> None:
    for peer in ("", "nowhere"):
        with pytest.raises(RequestError):
            pair.decode.traffic.submit(request(1, room=1, kv_peer=peer))


async def test_load_says_where_requests_are(pair: Pair) -> None:
    pair.prefill.traffic.submit(request(1, room=1))
    pair.prefill.traffic.submit(request(2, room=2))
    pair.decode.traffic.submit(request(2, room=2, kv_peer=pair.peer))
    pair.decode.traffic.submit(request(3, room=3, kv_peer=pair.peer))
    load = pair.prefill.traffic.load()
    assert (load.running, load.queued, load.kv_tokens_used) == (2, 0, 8)
    assert pair.decode.traffic.load().transferring == 2
    pair.prefilled(1)
    pair.prefilled(2)
    await pair.read(2)
    load = pair.prefill.traffic.load()
    assert (load.preallocating, load.transferring, load.kv_tokens_used) == (1, 1, 8)
    pair.decode.vllm.put(waiting=1)
    await until(lambda: pair.decode.traffic.load().preallocating == 1)
    pair.decode.vllm.put(output(2, 9, prefill_stats=computed(external=3)))
    await until(lambda: pair.decode.traffic.load().running == 1)
    load = pair.decode.traffic.load()
    assert (load.transferring, load.kv_tokens_used) == (1, 4)
    assert load.kv_tokens_total == 400
