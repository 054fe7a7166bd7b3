"""What a router does with the workers that discovery lists, over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from fake_fleet import SECONDS, FakeDiscovery, FakeWorker, soon, until
from prometheus_client import generate_latest

from tandem.v1 import common_pb2, router_pb2, router_pb2_grpc, worker_pb2
from tandem.wire.grpc import open_channel
from tandem_router import metrics
from tandem_router.config import RouterConfig
from tandem_router.connection import MOST_EVENTS, UNLISTED
from tandem_router.core import events
from tandem_router.core.values import Phase
from tandem_router.discovery import Listed
from tandem_router.server import RunningRouter, running


class Fleet:
    """A router, one worker of each phase that is listed, and what tests ask of them."""

    def __init__(self, exits: AsyncExitStack) -> None:
        self._exits = exits
        self.discovery = FakeDiscovery()
        self.prefill: FakeWorker
        self.decode: FakeWorker
        self.router: RunningRouter
        self._stub: router_pb2_grpc.RouterAsyncStub

    async def worker(self, phase: Phase, **settings: Any) -> FakeWorker:
        made = FakeWorker(phase, **settings)
        await made.listen()
        self._exits.push_async_callback(made.stop)
        return made

    async def begin(self, **settings: Any) -> None:
        config = RouterConfig(listen="127.0.0.1:0", **settings)
        self.router = await self._exits.enter_async_context(
            running(config, discovery=self.discovery)
        )
        self._stub = await self._dial(self.router)

    async def _dial(self, router: RunningRouter) -> router_pb2_grpc.RouterAsyncStub:
        channel = open_channel(f"127.0.0.1:{router.port}")
        self._exits.push_async_callback(channel.close)
        stub: router_pb2_grpc.RouterAsyncStub = router_pb2_grpc.RouterStub(channel)
        return stub

    async def second_router(self, **settings: Any) -> Fleet:
        """Of the same workers."""
        other = Fleet(self._exits)
        other.prefill, other.decode = self.prefill, self.decode
        await other.begin(**settings)
        other.discovery.say(self.prefill, self.decode)
        await until(lambda: other.router.relay.ready)
        return other

    def generate(self) -> Any:
        """A request's call; it ends when both its legs are closed."""
        task = common_pb2.Task(
            model="tiny",
            prompt_token_ids=[1],
            sampling=common_pb2.SamplingParams(max_tokens=1),
        )
        return self._stub.Generate(router_pb2.GenerateRequest(task=task, timeout_ms=30_000))

    def status(self, worker: FakeWorker) -> router_pb2.WorkerStatus:
        found = self.router.workers.statuses()
        return next(each for each in found if each.address == worker.address)

    async def statuses(self) -> dict[str, router_pb2.WorkerStatus]:
        described = await soon(self._stub.Describe(router_pb2.DescribeRouterRequest()))
        return {each.address: each for each in described.workers}


@asynccontextmanager
async def fleet(*, slots: int = 4, **settings: Any) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as exits:
        made = Fleet(exits)
        made.prefill = await made.worker(Phase.PREFILL, slots=slots)
        made.decode = await made.worker(Phase.DECODE, slots=slots)
        await made.begin(**settings)
        made.discovery.say(made.prefill, made.decode)
        await until(lambda: made.router.relay.ready)
        yield made


async def _status_of(call: Any) -> grpc.StatusCode:
    """At the call's end, which comes only to those who read it."""
    async with asyncio.timeout(SECONDS):
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


# --- workers that leave the list -------------------------------------------------------------


@pytest.mark.promise("S5-123")
async def test_a_worker_that_leaves_the_list_finishes_what_is_open_and_is_then_left() -> None:
    async with fleet() as f:
        call = f.generate()
        prefill, decode = await f.prefill.stream(), await f.decode.stream()
        first, second = await prefill.start(), await decode.start()
        f.discovery.say(f.decode)
        await until(lambda: not f.router.relay.ready)
        assert (await f.statuses())[f.prefill.address].refused == UNLISTED
        late = f.generate()
        reports = prefill.reports
        await until(lambda: prefill.reports > reports + 2)
        assert f.prefill.live == [prefill]
        prefill.finish(first)
        await until(lambda: not f.prefill.live)
        decode.finish(second)
        assert await _status_of(call) is grpc.StatusCode.OK
        assert f.prefill.address not in await f.statuses()
        assert not late.done(), "it waits for another pair"
        late.cancel()
        assert len(f.prefill.streams) == 1


async def test_an_idle_worker_that_leaves_the_list_is_left_within_a_report() -> None:
    async with fleet() as f:
        f.discovery.say(f.prefill)
        await until(lambda: not f.decode.live)
        assert list(await f.statuses()) == [f.prefill.address]
        trust = f.router.relay.core.snapshot().trusts[f.decode.address]
        assert not trust.faults, "nothing is held against it"


async def test_a_worker_that_left_the_list_and_breaks_is_not_dialled_again() -> None:
    async with fleet() as f:
        call = f.generate()
        await (await f.prefill.stream()).start()
        f.discovery.say(f.decode)
        await until(lambda: not f.router.relay.ready)
        (await f.prefill.stream()).outgoing.put_nowait(None)
        await until(lambda: len(f.router.workers.statuses()) == 1)
        assert len(f.prefill.streams) == 1
        assert not call.done(), "its leg had not begun to be shown: it waits for another pair"


async def test_a_worker_that_is_listed_again_in_time_goes_on_with_its_stream() -> None:
    async with fleet() as f:
        f.generate()
        prefill = await f.prefill.stream()
        await prefill.start()
        f.discovery.say(f.decode)
        await until(lambda: not f.router.relay.ready)
        f.discovery.say(f.prefill, f.decode)
        await until(lambda: f.router.relay.ready)
        f.generate()
        await prefill.start()
        assert len(f.prefill.streams) == 1


async def test_a_worker_that_is_listed_again_later_is_dialled_again() -> None:
    async with fleet() as f:
        f.discovery.say(f.decode)
        await until(lambda: not f.prefill.live)
        f.discovery.say(f.decode, f.prefill)
        await until(lambda: f.router.relay.ready)
        assert len(f.prefill.streams) == 2


async def test_a_worker_that_cannot_be_reached_is_forgotten_with_the_list() -> None:
    async with fleet() as f:
        absent = Listed("127.0.0.1:1", Phase.DECODE)
        f.discovery.say(f.prefill, f.decode, absent)
        await until(lambda: f.router.workers.discovered()[Phase.DECODE] == 2)
        f.discovery.say(f.prefill, f.decode)
        await until(lambda: len(f.router.workers.statuses()) == 2)
        assert f.router.relay.ready


async def test_a_leg_that_nobody_waits_for_does_not_keep_an_unlisted_worker() -> None:
    async with fleet(settle_seconds=0.2) as f:
        f.prefill.ignores_cancels = True
        call = f.generate()
        await (await f.prefill.stream()).start()
        call.cancel()
        f.discovery.say(f.decode)
        await until(lambda: not f.prefill.live)


async def test_an_address_that_changes_its_phase_is_left_and_dialled_as_the_other() -> None:
    async with fleet() as f:
        f.discovery.say(f.prefill, Listed(f.decode.address, Phase.PREFILL))
        await until(lambda: len(f.decode.streams) == 2)
        await until(lambda: f.status(f.decode).connected)
        status = f.status(f.decode)
        assert status.refused == "it is a decode worker, listed as prefill"


async def test_an_address_listed_under_both_phases_is_dialled_once() -> None:
    async with fleet() as f:
        absent = Listed("127.0.0.1:1", Phase.DECODE)
        f.discovery.say(f.prefill, f.decode, Listed(f.decode.address, Phase.PREFILL), absent)
        await until(lambda: len(f.router.workers.statuses()) == 3)
        assert f.router.workers.discovered() == {Phase.PREFILL: 1, Phase.DECODE: 2}
        assert f.router.relay.ready
        assert len(f.decode.streams) == 1


# --- what a worker is told -------------------------------------------------------------------


async def test_a_worker_is_told_once_a_stream_that_a_pair_uses_it() -> None:
    async with fleet() as f:
        prefill, decode = await f.prefill.stream(), await f.decode.stream()
        await until(lambda: (prefill.paired, decode.paired) == (1, 1))
        decode.outgoing.put_nowait(None)
        again = await f.decode.stream(2)
        await until(lambda: again.paired == 1)
        f.generate()
        await prefill.start()
        assert (prefill.paired, decode.paired, again.paired) == (1, 1, 1)


async def test_a_worker_without_a_counterpart_is_connected_and_not_told() -> None:
    async with fleet() as f:
        alone = await f.worker(Phase.DECODE)
        alone.description.fingerprint.deployment_revision = "2"
        f.discovery.say(f.prefill, f.decode, alone)
        stream = await alone.stream()
        await until(lambda: f.status(alone).connected)
        newer = await f.worker(Phase.PREFILL)
        newer.description.fingerprint.deployment_revision = "2"
        assert not stream.paired
        f.discovery.say(f.prefill, f.decode, alone, newer)
        await until(lambda: stream.paired == 1)


# --- workers whose engine stands -------------------------------------------------------------


@pytest.mark.promise("S5-211")
async def test_what_runs_on_a_worker_whose_engine_stands_goes_on_elsewhere() -> None:
    """Its stream is given up, and opened again: there it gets nothing new until it makes a step."""
    async with fleet(stall_seconds=2.0, stall_failover_seconds=4.0) as f:
        call = f.generate()
        prefill, stuck = await f.prefill.stream(), await f.decode.stream()
        first, _ = await prefill.start(), await stuck.start()
        other = await f.worker(Phase.DECODE)
        f.discovery.say(f.prefill, f.decode, other)
        sound = await other.stream()
        await until(lambda: f.status(other).connected)
        f.decode.step_age_ms = 4_000
        leg = await sound.start()
        prefill.finish(await prefill.start())
        sound.finish(leg)
        assert await _status_of(call) is grpc.StatusCode.OK
        assert first.leg not in prefill.open, "it was cancelled with the attempt"
        again = await f.decode.stream(2)
        await until(lambda: f.status(f.decode).connected)
        assert f.status(f.decode).refused == "its engine has work and makes no step"
        await until(lambda: again.reports > 2)
        assert len(f.decode.live) == 1, "it holds nothing: it is not given up again"
        f.decode.step_age_ms = 0
        await until(lambda: f.status(f.decode).refused == "")


async def test_what_waits_does_not_start_on_a_worker_that_comes_with_a_standing_engine() -> None:
    async with fleet(slots=1) as f:
        calls = [f.generate(), f.generate()]
        prefill, decode = await f.prefill.stream(), await f.decode.stream()
        prefill.finish(await prefill.start())
        first = await decode.start()
        await until(lambda: len(f.router.relay.core.state.waiting) == 1)
        stuck = await f.worker(Phase.DECODE, slots=1)
        stuck.step_age_ms = 15_000
        f.discovery.say(f.prefill, f.decode, stuck)
        stream = await stuck.stream()
        await until(lambda: f.status(stuck).connected)
        await until(lambda: stream.reports > 2)
        assert stream.starts.empty()
        decode.finish(first)
        prefill.finish(await prefill.start())
        decode.finish(await decode.start())
        assert [await _status_of(each) for each in calls] == [grpc.StatusCode.OK] * 2


# --- workers whose output cannot be read -----------------------------------------------------


NO_FRAME = worker_pb2.WorkerFrame(events=[worker_pb2.LegEvent()] * (MOST_EVENTS + 1))
"""No worker has so much to say at once."""


@pytest.mark.promise("S6-181")
async def test_a_worker_whose_output_cannot_be_read_is_left_alone_while_it_is_listed() -> None:
    async with fleet(eject_after_faults=2, eject_seconds=600.0) as f:
        for number in (1, 2):
            stream = await f.decode.stream(number)
            await until(lambda: f.status(f.decode).connected)
            stream.outgoing.put_nowait(NO_FRAME)
            await until(lambda: not f.status(f.decode).connected)
        why = "ejected for 600 s: its output could not be read"
        await until(lambda: f.status(f.decode).refused == why)
        assert len(f.decode.streams) == 2
        f.discovery.say(f.prefill)
        await until(lambda: len(f.router.workers.statuses()) == 1)
        f.discovery.say(f.prefill, f.decode)
        await until(lambda: f.router.relay.ready)
        assert len(f.decode.streams) == 3, "whoever is listed there now may be another"


async def test_a_worker_that_was_ejected_for_its_output_is_dialled_when_its_time_is_over() -> None:
    async with fleet(eject_after_faults=1, eject_seconds=1.0) as f:
        (await f.decode.stream()).outgoing.put_nowait(NO_FRAME)
        await until(lambda: not f.router.relay.ready)
        began = asyncio.get_running_loop().time()
        await f.decode.stream(2)
        assert asyncio.get_running_loop().time() - began > 0.9
        await until(lambda: f.router.relay.ready)


async def test_a_worker_whose_first_words_cannot_be_read_is_left_alone_too() -> None:
    async with fleet(eject_after_faults=2, eject_seconds=600.0) as f:
        strange = await f.worker(Phase.DECODE)
        strange.first = NO_FRAME
        f.discovery.say(f.prefill, f.decode, strange)
        await strange.stream(2)
        why = "ejected for 600 s: its output could not be read"
        await until(lambda: f.status(strange).refused == why)
        assert len(strange.streams) == 2


# --- several routers -------------------------------------------------------------------------


async def test_two_routers_share_the_slots_of_a_worker() -> None:
    async with fleet(slots=1) as first:
        second = await first.second_router()
        mine = first.generate()
        prefill, decode = await first.prefill.stream(), await first.decode.stream()
        legs = await prefill.start(), await decode.start()
        other = second.router.relay.core.state.fleet.workers[first.prefill.address]
        await until(lambda: other.other_legs == 1)
        theirs = second.generate()
        await until(lambda: len(second.router.relay.core.state.waiting) == 1)
        prefill.finish(legs[0])
        decode.finish(legs[1])
        assert await _status_of(mine) is grpc.StatusCode.OK
        for worker in (first.prefill, first.decode):
            stream = await worker.stream(2)
            stream.finish(await stream.start())
        assert await _status_of(theirs) is grpc.StatusCode.OK
        assert not second.router.relay.core.state.counts.requeued, "it never tried in vain"


async def test_a_request_that_finds_another_router_s_in_its_slot_waits_and_is_served() -> None:
    async with fleet(slots=1, max_retries=0) as first:
        second = await first.second_router(max_retries=0)
        counts = second.router.relay.core.state.counts
        mine = first.generate()
        prefill, decode = await first.prefill.stream(), await first.decode.stream()
        legs = await prefill.start(), await decode.start()
        known = second.router.relay.core.state.fleet
        await until(lambda: all(worker.other_legs for worker in known.workers.values()))
        # As if the other router's legs had come since the last report.
        for worker in known.workers.values():
            worker.other_legs = 0
            known.place(worker)
        theirs = second.generate()
        await until(lambda: counts.requeued > 0)
        prefill.finish(legs[0])
        decode.finish(legs[1])
        assert await _status_of(mine) is grpc.StatusCode.OK
        both = await first.prefill.stream(2), await first.decode.stream(2)
        await until(lambda: both[0].rooms() == both[1].rooms() != set())
        for stream in both:
            for start in list(stream.open.values()):
                stream.finish(start)
        assert await _status_of(theirs) is grpc.StatusCode.OK
        assert counts.requests == {"finished": 1}


# --- what it tells of itself -----------------------------------------------------------------


async def test_a_router_is_ready_once_it_knows_the_workers_and_until_it_drains() -> None:
    async with AsyncExitStack() as exits:
        f = Fleet(exits)
        await f.begin()
        assert not f.router.ready
        f.discovery.say()
        await until(lambda: f.router.ready)
        assert not f.router.relay.ready, "it has no pair, which is another question"
        f.discovery.say(Listed("127.0.0.1:1", Phase.DECODE))
        await until(lambda: len(f.router.workers.statuses()) == 1)
        assert f.router.ready, "whoever joins later changes nothing"
        f.router.relay.handle(events.Drain())
        assert not f.router.ready


async def test_a_router_is_not_ready_before_it_has_tried_the_workers_of_its_first_list() -> None:
    async with AsyncExitStack() as exits:
        f = Fleet(exits)
        slow = await f.worker(Phase.DECODE)
        slow.described.clear()
        await f.begin()
        f.discovery.say(slow, Listed("127.0.0.1:1", Phase.PREFILL))
        await until(lambda: len(f.router.workers.statuses()) == 2)
        await until(lambda: "not reached yet" not in f.router.workers.statuses()[1].refused)
        assert not f.router.ready
        slow.described.set()
        await until(lambda: f.router.ready)
        assert f.status(slow).connected


async def test_a_worker_unlisted_before_it_was_dialled_does_not_keep_a_router_unready() -> None:
    async with AsyncExitStack() as exits:
        f = Fleet(exits)
        f.discovery.say(Listed("127.0.0.1:1", Phase.PREFILL))
        f.discovery.say()
        await f.begin()
        await until(lambda: f.router.ready)


async def test_a_worker_unlisted_while_it_is_described_is_given_nothing_that_waits() -> None:
    async with fleet() as f:
        slow = await f.worker(Phase.DECODE)
        slow.described.clear()
        f.discovery.say(f.prefill, slow)
        stream = await slow.stream()
        await until(lambda: not f.router.relay.ready)
        call = f.generate()
        await until(lambda: not f.router.relay.core.idle)
        f.discovery.say(f.prefill)
        await until(lambda: f.router.workers.discovered()[Phase.DECODE] == 0)
        slow.described.set()
        await until(lambda: not slow.live)
        assert stream.starts.empty()
        call.cancel()


async def test_metrics_tell_what_is_discovered_and_how_fresh_it_is() -> None:
    async with fleet() as f:
        f.discovery.say(f.prefill, f.decode, Listed("127.0.0.1:1", Phase.DECODE))
        await until(lambda: f.router.workers.discovered()[Phase.DECODE] == 2)
        registry = metrics.new_registry(lambda: metrics.read(f.router.relay, f.router.workers))
        text = generate_latest(registry).decode()
        assert 'tandem_router_discovered_workers{phase="prefill"} 1.0' in text
        assert 'tandem_router_discovered_workers{phase="decode"} 2.0' in text
        age = float(text.split("\ntandem_router_discovery_age_seconds ")[1].split("\n")[0])
        assert 0 < age < 10
