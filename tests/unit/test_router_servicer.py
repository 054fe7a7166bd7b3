"""The router over real gRPC, between a scripted prefill worker, a scripted decode worker and
frontends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc.aio
import pytest
from fake_fleet import FINISHED, SECONDS, soon, until
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.errors import HookError
from tandem.v1 import common_pb2, router_pb2, router_pb2_grpc, worker_pb2, worker_pb2_grpc
from tandem.wire.frames import Draft
from tandem.wire.grpc import Server, open_channel
from tandem_router.config import RouterConfig
from tandem_router.server import RunningRouter, running
from tandem_router.servicer import RouterServicer

TASK = common_pb2.Task(prompt_text="hello").SerializeToString()
NEWER_TASK = TASK + b"\xc2\x3e\x03new"
"""With a text in field 1000."""


class FakeWorker(worker_pb2_grpc.WorkerServicer):
    """Says what the test tells it to say, and hands on what the router commands."""

    def __init__(self, phase: common_pb2.Phase.ValueType, **profile: Any) -> None:
        page_size = profile.pop("page_size", 16)
        self.description = worker_pb2.WorkerDescription(
            name="fake",
            phase=phase,
            fingerprint=common_pb2.Fingerprint(model="tiny", page_size=page_size),
            kv_endpoint="10.0.0.1:9000",
            limits=worker_pb2.Limits(max_sequences=4, context_length=100, vocabulary=50),
            logits_processors=["forced", f"only-{phase}"],
            **profile,
        )
        self.starts: asyncio.Queue[worker_pb2.StartLeg] = asyncio.Queue()
        self.releases: asyncio.Queue[int] = asyncio.Queue()
        self.cancels: asyncio.Queue[worker_pb2.CancelLeg] = asyncio.Queue()
        self.silent = False
        self.asked: list[str] = []
        self.address = ""
        self._outgoing: asyncio.Queue[worker_pb2.WorkerFrame | None] = asyncio.Queue()
        self._load = worker_pb2.Load()
        self._server = Server()

    async def start(self, address: str = "127.0.0.1:0") -> None:
        self._server = Server()
        self._server.add(
            lambda into: worker_pb2_grpc.add_WorkerServicer_to_server(self, into),
            "tandem.v1.Worker",
        )
        self.address = f"127.0.0.1:{await self._server.start(address)}"

    async def stop(self) -> None:
        await self._server.stop(0)

    def say(self, *events: worker_pb2.LegEvent, **payloads: bytes) -> None:
        """A frame; payloads are named by destination: `to_1=b"..."`."""
        envelopes = [
            worker_pb2.Envelope(destination=int(name.removeprefix("to_")), payload=payload)
            for name, payload in payloads.items()
        ]
        self._outgoing.put_nowait(worker_pb2.WorkerFrame(envelopes=envelopes, events=events))

    def report(self, load: worker_pb2.Load) -> None:
        self._load = load
        self._outgoing.put_nowait(worker_pb2.WorkerFrame(load=load))

    def end_stream(self) -> None:
        self._outgoing.put_nowait(None)

    async def Describe(self, request: Any, context: Any) -> worker_pb2.WorkerDescription:
        self.asked.append("Describe")
        return self.description

    async def Connect(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        self.asked.append("Connect")
        await context.write(worker_pb2.WorkerFrame(load=self._load))
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(self._read(request_iterator))
            while (frame := await self._next()) is not None:
                await context.write(frame)
            reader.cancel()
        self._outgoing = asyncio.Queue()

    async def _next(self) -> worker_pb2.WorkerFrame | None:
        """A load report where the test says nothing for a while, as real workers send."""
        while True:
            try:
                return await asyncio.wait_for(self._outgoing.get(), 0.2)
            except TimeoutError:
                if not self.silent:
                    return worker_pb2.WorkerFrame(load=self._load)

    async def _read(self, commands: AsyncIterator[worker_pb2.WorkerCommand]) -> None:
        async for command in commands:
            for start in command.start:
                self.starts.put_nowait(start)
            for leg in command.release:
                self.releases.put_nowait(leg)
            for cancel in command.cancel:
                self.cancels.put_nowait(cancel)


class Frontend:
    """One Connect stream."""

    def __init__(self, stub: router_pb2_grpc.RouterAsyncStub) -> None:
        self.call = stub.Connect()

    async def submit(self, first: int = 1, **fields: Any) -> None:
        fields = {"n": 1, "model": "tiny", "timeout_ms": 30_000, "task": TASK, **fields}
        submit = router_pb2.Submit(first_sequence=first, **fields)
        await self.call.write(router_pb2.FrontendMessage(submit=[submit]))

    async def cancel(self, first: int) -> None:
        await self.call.write(router_pb2.FrontendMessage(cancel=[first]))

    async def message(self) -> router_pb2.RouterMessage:
        message = await soon(self.call.read())
        assert isinstance(message, router_pb2.RouterMessage)
        return message

    async def ready(self, pairs: int = 1) -> router_pb2.ServedModel:
        """Until the router announces so many pairs."""
        while True:
            message = await self.message()
            for model in message.fleet.models:
                if model.ready_pairs == pairs:
                    return model

    async def payload(self, size: int) -> bytes:
        """The next payload bytes, from however many messages."""
        got = b""
        while len(got) < size:
            got += (await self.message()).payload
        return got

    async def end(self) -> router_pb2.SequenceEnd:
        while True:
            message = await self.message()
            if message.ends:
                return message.ends[0]


class Stack:
    """A router with its workers, and as many frontends as the test opens."""

    def __init__(self, router: RunningRouter, prefill: FakeWorker, decode: FakeWorker) -> None:
        self.router = router
        self.prefill = prefill
        self.decode = decode
        self.channel = open_channel(f"127.0.0.1:{router.port}")
        self.stub: router_pb2_grpc.RouterAsyncStub = router_pb2_grpc.RouterStub(self.channel)

    def frontend(self) -> Frontend:
        return Frontend(self.stub)

    async def ready(self) -> Frontend:
        """A frontend that knows of the pair."""
        frontend = self.frontend()
        await frontend.ready()
        return frontend

    async def opened(
        self, first: int = 1, **fields: Any
    ) -> tuple[Frontend, worker_pb2.StartLeg, worker_pb2.StartLeg]:
        """A frontend, and the legs of what it has submitted."""
        frontend = await self.ready()
        await frontend.submit(first, **fields)
        return frontend, *await self.legs()

    async def cancelled(self, prefill: worker_pb2.StartLeg, decode: worker_pb2.StartLeg) -> None:
        """Until the workers are told to cancel these legs."""
        assert (await soon(self.prefill.cancels.get())).leg == prefill.leg
        assert (await soon(self.decode.cancels.get())).leg == decode.leg

    async def legs(self) -> tuple[worker_pb2.StartLeg, worker_pb2.StartLeg]:
        return await soon(self.prefill.starts.get()), await soon(self.decode.starts.get())

    async def settled(self) -> None:
        """Until the core holds nothing any longer."""
        await until(lambda: self.router.relay.core.idle)


@asynccontextmanager
async def stack(*, prefill: FakeWorker | None = None, **settings: Any) -> AsyncIterator[Stack]:
    prefill = prefill or FakeWorker(common_pb2.PHASE_PREFILL)
    decode = FakeWorker(common_pb2.PHASE_DECODE)
    async with AsyncExitStack() as exits:
        for worker in (prefill, decode):
            await worker.start()
            exits.push_async_callback(worker.stop)
        config = RouterConfig(
            listen="127.0.0.1:0", prefill=(prefill.address,), decode=(decode.address,), **settings
        )
        router = await exits.enter_async_context(running(config))
        made = Stack(router, prefill, decode)
        exits.push_async_callback(made.channel.close)
        yield made


async def failure(answer: Awaitable[object]) -> grpc.aio.AioRpcError:
    """What a call fails with, instead of this answer."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await soon(answer)
    return caught.value


def closed(leg: int, outcome: Any = FINISHED, **fields: Any) -> worker_pb2.LegEvent:
    return worker_pb2.LegEvent(leg=leg, closed=worker_pb2.LegClosed(outcome=outcome, **fields))


def verdict(leg: int) -> worker_pb2.LegEvent:
    return worker_pb2.LegEvent(leg=leg, verdict=worker_pb2.LegVerdict())


def started(leg: int) -> worker_pb2.LegEvent:
    return worker_pb2.LegEvent(leg=leg, started=worker_pb2.LegStarted())


# --- a frontend's stream ---------------------------------------------------------------------


async def test_a_frontend_is_greeted_with_the_fleet_and_told_when_it_changes() -> None:
    async with stack() as s:
        frontend = s.frontend()
        model = await frontend.ready()
        assert (model.name, model.limits.context_length) == ("tiny", 100)
        assert list(model.logits_processors) == ["forced"]
        s.decode.report(worker_pb2.Load(draining=True))
        await frontend.ready(pairs=0)
        s.decode.report(worker_pb2.Load(draining=False))
        await frontend.ready(pairs=1)


async def test_a_sequence_runs_as_two_legs_joined_by_a_room() -> None:
    async with stack() as s:
        _, prefill, decode = await s.opened(41, task=NEWER_TASK, timeout_ms=5_000)
        assert prefill.room == decode.room != 0
        assert prefill.leg != decode.leg
        assert prefill.sequence == decode.sequence == 41
        assert prefill.task == decode.task == NEWER_TASK
        assert decode.kv_peer == "10.0.0.1:9000"
        assert 4_000 < decode.timeout_ms <= 5_000
        assert not decode.hold_output


async def test_payload_bytes_reach_their_frontend_unopened_and_in_order() -> None:
    async with stack() as s:
        first, second = s.frontend(), s.frontend()
        await first.ready()
        await second.ready()
        await first.submit()
        _, one = await s.legs()
        await second.submit()
        _, two = await s.legs()
        garbage = bytes(range(256))
        s.decode.say(**{f"to_{one.destination}": garbage, f"to_{two.destination}": b"other"})
        s.decode.say(**{f"to_{one.destination}": b"\x00more"})
        assert await first.payload(261) == garbage + b"\x00more"
        assert await second.payload(5) == b"other"


async def test_a_large_backlog_leaves_in_messages_below_the_limit_of_grpc() -> None:
    async with stack() as s:
        frontend, _, decode = await s.opened()
        chunk = b"x" * 3_000_000
        for _ in range(8):
            s.decode.say(**{f"to_{decode.destination}": chunk})
        s.decode.say(closed(decode.leg, worker_pb2.LegClosed.OUTCOME_FAILED))
        got, ends = 0, 0
        while not ends:
            message = await frontend.message()
            got += len(message.payload)
            ends += len(message.ends)
        assert got == 24_000_000, "the end comes after all payload"


async def test_a_finished_sequence_leaves_nothing_behind() -> None:
    async with stack() as s:
        _, prefill, decode = await s.opened()
        s.prefill.say(closed(prefill.leg))
        s.decode.say(started(decode.leg), closed(decode.leg), to_1=b"")
        await s.settled()
        assert s.router.relay.core.state.counts.requests == {"finished": 1}


async def test_output_is_held_until_the_prefill_hook_has_judged() -> None:
    worker = FakeWorker(common_pb2.PHASE_PREFILL, has_hook=True)
    async with stack(prefill=worker) as s:
        _, prefill, decode = await s.opened()
        assert decode.hold_output
        s.prefill.say(verdict(prefill.leg))
        assert await soon(s.decode.releases.get()) == decode.leg


async def test_a_failing_prefill_hook_ends_the_sequence_and_cancels_decode() -> None:
    worker = FakeWorker(common_pb2.PHASE_PREFILL, has_hook=True)
    async with stack(prefill=worker) as s:
        frontend, prefill, decode = await s.opened()
        error = HookError("it raised", phase=common_pb2.PHASE_PREFILL).to_proto()
        s.prefill.say(closed(prefill.leg, worker_pb2.LegClosed.OUTCOME_FAILED, error=error))
        assert (await frontend.end()).error == error
        cancel = await soon(s.decode.cancels.get())
        assert (cancel.leg, cancel.reason) == (decode.leg, "hook_failed")
        assert s.decode.releases.empty()


async def test_a_cancel_reaches_both_workers() -> None:
    async with stack() as s:
        frontend, prefill, decode = await s.opened(7)
        await frontend.cancel(7)
        await s.cancelled(prefill, decode)


@pytest.mark.promise("S6-149")
async def test_a_frontend_that_goes_away_has_its_sequences_cancelled() -> None:
    async with stack() as s:
        frontend, prefill, decode = await s.opened()
        frontend.call.cancel()
        await s.cancelled(prefill, decode)
        cancelled = worker_pb2.LegClosed.OUTCOME_CANCELLED
        s.prefill.say(closed(prefill.leg, cancelled))
        s.decode.say(closed(decode.leg, cancelled))
        await s.settled()


@pytest.mark.promise("S6-170")
async def test_a_deadline_ends_a_sequence_whose_workers_say_nothing() -> None:
    async with stack() as s:
        frontend, prefill, decode = await s.opened(timeout_ms=300)
        assert (await frontend.end()).error.code == "deadline_exceeded"
        await s.cancelled(prefill, decode)


@pytest.mark.promise("S6-169")
async def test_a_frontend_that_does_not_read_is_cut_off_alone() -> None:
    async with stack(max_backlog_bytes=1_000_000) as s:
        slow, other = s.frontend(), s.frontend()
        await slow.ready()
        await other.ready()
        await slow.submit()
        prefill, decode = await s.legs()
        for _ in range(40):
            s.decode.say(**{f"to_{decode.destination}": b"x" * 500_000})
        await s.cancelled(prefill, decode)
        await other.submit()
        _, second = await s.legs()
        s.decode.say(**{f"to_{second.destination}": b"alive"})
        assert await other.payload(5) == b"alive"
        assert (await failure(slow.end())).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.promise("S6-166")
async def test_a_frontend_that_reuses_an_open_number_is_refused() -> None:
    async with stack() as s:
        frontend, prefill, _ = await s.opened(1)
        await frontend.submit(1)
        assert (await failure(frontend.end())).code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await soon(s.prefill.cancels.get())).leg == prefill.leg


# --- workers that come and go ----------------------------------------------------------------


@pytest.mark.promise("S6-170")
async def test_a_worker_that_is_lost_ends_its_sequences_and_is_taken_back() -> None:
    async with stack() as s:
        frontend, prefill, _ = await s.opened()
        s.decode.end_stream()
        assert (await frontend.end()).error.code == "worker_lost"
        assert (await soon(s.prefill.cancels.get())).leg == prefill.leg
        await frontend.ready()


async def test_a_worker_that_restarts_on_its_address_is_found_again() -> None:
    async with stack() as s:
        frontend = await s.ready()
        await s.decode.stop()
        await frontend.ready(pairs=0)
        await s.decode.start(s.decode.address)
        await frontend.ready(pairs=1)


async def test_a_worker_is_asked_what_it_is_only_once_its_stream_is_there() -> None:
    """Else the answer may be of a process that another one has taken the place of meanwhile."""
    prefill = FakeWorker(common_pb2.PHASE_PREFILL)
    async with stack(prefill=prefill) as s:
        await s.ready()
    assert prefill.asked == ["Connect", "Describe"]


@pytest.mark.parametrize("where", ["commands", "frames"])
async def test_a_worker_is_dialled_again_after_a_fault_of_the_router(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with stack() as s:
        frontend = await s.ready()

        def broken(*_: object) -> NoReturn:
            monkeypatch.undo()  # the next stream works
            raise ValueError("a fault of ours")

        relay = s.router.relay
        if where == "commands":
            monkeypatch.setattr(relay._workers[s.decode.address].outbox, "_take", broken)
            await frontend.submit()
        else:
            monkeypatch.setattr(relay, "frame", broken)
            s.decode.report(worker_pb2.Load())
        await frontend.ready(0)
        await frontend.ready()
        said = {"commands": "commands to a worker could not be sent", "frames": "a fault of ours"}
        assert said[where] in caplog.text
        assert all(each.connected for each in s.router.workers.statuses())


@pytest.mark.promise("S6-170")
async def test_a_silent_worker_is_lost() -> None:
    async with stack(worker_silence_seconds=0.6) as s:
        frontend, *_ = await s.opened()
        s.decode.silent = True
        end = await frontend.end()
        assert end.error.code == "worker_lost"
        assert "sent nothing for 0.6 seconds" in end.error.message


@pytest.mark.promise("S6-170")
async def test_what_workers_said_while_the_router_stood_still_is_no_silence() -> None:
    async with stack(worker_silence_seconds=0.6) as s:
        await s.opened()
        links = dict(s.router.relay._workers)
        for _ in range(3):
            time.sleep(0.8)  # noqa: ASYNC251 - the whole process stands still, and so do its workers
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.5)  # and what they go on to say is heard
        assert s.router.relay._workers == links, "a stream was opened again"


@pytest.mark.promise("S6-170")
async def test_a_frontend_that_is_told_nothing_hears_that_the_router_lives() -> None:
    async with stack() as s:
        frontend = s.frontend()
        greeting = await frontend.message()
        assert greeting.beat_ms == 1000
        for _ in range(3):
            assert (await frontend.message()).HasField("fleet")


async def test_a_mismatched_worker_is_shown_with_the_field_that_differs() -> None:
    worker = FakeWorker(common_pb2.PHASE_PREFILL, page_size=1)
    async with stack(prefill=worker, pair_wait_seconds=0.2) as s:
        async with asyncio.timeout(SECONDS):
            while True:
                shown = await s.stub.Describe(router_pb2.DescribeRouterRequest())
                if all(each.connected for each in shown.workers) and len(shown.workers) == 2:
                    break
                await asyncio.sleep(0.01)
        assert "page_size is 1, but 16 on decode worker" in shown.workers[0].refused
        assert shown.models[0].ready_pairs == 0
        assert s.router.relay.core.state.counts.pairs_rejected == {"page_size": 1}
        call = s.stub.Generate(generate_request())
        assert (await failure(call.read())).code() is grpc.StatusCode.UNAVAILABLE


async def test_an_absent_worker_is_shown_as_not_connected() -> None:
    async with running(RouterConfig(listen="127.0.0.1:0", prefill=("127.0.0.1:1",))) as router:
        async with open_channel(f"127.0.0.1:{router.port}") as channel:
            stub = router_pb2_grpc.RouterStub(channel)
            async with asyncio.timeout(SECONDS):
                while True:
                    shown = await stub.Describe(router_pb2.DescribeRouterRequest())
                    if shown.workers and shown.workers[0].refused != "not reached yet":
                        break
                    await asyncio.sleep(0.01)
        assert not shown.workers[0].connected
        assert "127.0.0.1:1" in shown.workers[0].refused


# --- health and drain ------------------------------------------------------------------------


async def _health(s: Stack, wanted: health_pb2.HealthCheckResponse.ServingStatus.ValueType) -> None:
    stub = health_pb2_grpc.HealthStub(s.channel)
    async with asyncio.timeout(SECONDS):
        while True:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service="tandem.v1.Router"))
            if answer.status == wanted:
                return
            await asyncio.sleep(0.01)


async def test_health_follows_the_pairs_and_the_drain() -> None:
    serving = health_pb2.HealthCheckResponse.SERVING
    not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
    async with stack() as s:
        await _health(s, serving)
        s.prefill.report(worker_pb2.Load(draining=True))
        await _health(s, not_serving)
        s.prefill.report(worker_pb2.Load(draining=False))
        await _health(s, serving)
        await s.opened()
        draining = asyncio.ensure_future(s.router.drain(0.5))
        await _health(s, not_serving)
        await soon(draining)


async def test_a_drain_refuses_what_is_new_and_waits_for_what_is_open() -> None:
    async with stack() as s:
        frontend, prefill, decode = await s.opened(1)
        draining = asyncio.ensure_future(s.router.drain(SECONDS))
        await asyncio.sleep(0)
        await frontend.submit(2)
        end = await frontend.end()
        assert (end.sequence, end.error.code) == (2, "draining")
        assert not draining.done()
        s.prefill.say(closed(prefill.leg))
        s.decode.say(closed(decode.leg), **{f"to_{decode.destination}": b"last"})
        assert await frontend.payload(4) == b"last"
        await soon(draining)
        assert not isinstance(await soon(frontend.call.read()), router_pb2.RouterMessage)


async def test_a_drain_that_runs_out_ends_what_is_open_with_an_error() -> None:
    async with stack() as s:
        frontend, prefill, _ = await s.opened()
        await soon(s.router.drain(0.05))
        assert s.router.drained.aborted == 1
        assert 0.05 <= s.router.drained.seconds < 10
        assert (await frontend.end()).error.code == "router_lost"
        assert (await soon(s.prefill.cancels.get())).leg == prefill.leg


async def test_a_drain_is_said_once_on_every_stream_before_its_first_refusal() -> None:
    async with stack() as s:
        frontends = [s.frontend(), s.frontend()]
        for frontend in frontends:
            await frontend.ready()
        await frontends[0].submit(1)
        await s.legs()
        draining = asyncio.ensure_future(s.router.drain(0.3))
        await asyncio.sleep(0)
        await frontends[1].submit(2)
        said = await frontends[1].message()
        assert said.draining
        if not said.ends:
            said = await frontends[1].message()
            assert not said.draining
        assert (said.ends[0].sequence, said.ends[0].error.code) == (2, "draining")
        began = await frontends[0].message()
        assert list(began.run_sequence) == [1]
        assert (await frontends[0].message()).draining
        await soon(draining)


async def test_a_draining_router_says_so_as_it_greets() -> None:
    async with stack() as s:
        await s.ready()
        draining = asyncio.ensure_future(s.router.drain(0))
        await asyncio.sleep(0)
        greeting = await s.frontend().message()
        assert greeting.draining
        assert greeting.HasField("fleet")
        await soon(draining)


async def test_what_waits_when_a_drain_runs_out_is_refused_so_that_another_router_takes_it() -> (
    None
):
    async with stack() as s:
        frontend = await s.ready()
        for first in range(1, 5):
            await frontend.submit(first)
            await s.legs()
        await frontend.submit(5)
        await until(lambda: len(s.router.relay.core.state.waiting) == 1)
        await soon(s.router.drain(0.05))
        ends: list[router_pb2.SequenceEnd] = []
        while len(ends) < 5:
            ends += (await frontend.message()).ends
        codes = {end.sequence: end.error.code for end in ends}
        assert codes == {**dict.fromkeys(range(1, 5), "router_lost"), 5: "draining"}


# --- Generate --------------------------------------------------------------------------------


def generate_request(n: int = 1, **task: Any) -> router_pb2.GenerateRequest:
    task = {"model": "tiny", "prompt_text": "hello", **task}
    sampling = common_pb2.SamplingParams(max_tokens=4)
    return router_pb2.GenerateRequest(task=common_pb2.Task(sampling=sampling, **task), n=n)


def rows(*texts: tuple[int, str], offset: int = 0, finish: Mapping[int, int] = {}) -> bytes:
    """`finish`: sequences that end here, with the rows that each has had."""
    draft = Draft()
    for sequence, text in texts:
        draft.add(sequence, offset, 1, text)
    for sequence, count in finish.items():
        draft.rest.finish.append(
            common_pb2.Finish(sequence=sequence, completion_tokens=1, rows=count)
        )
    return draft.serialize()


async def test_generate_streams_texts_and_the_finish_of_each_output() -> None:
    async with stack() as s:
        await s.ready()
        call = s.stub.Generate(generate_request(n=2))
        (_, one), (_, two) = await s.legs(), await s.legs()
        assert (one.output_index, two.output_index) == (0, 1)
        to = f"to_{one.destination}"
        s.decode.say(**{to: rows((1, "a"), (2, "x"))})
        first = [await soon(call.read()), await soon(call.read())]
        assert [(each.output_index, each.text) for each in first] == [(0, "a"), (1, "x")]
        s.decode.say(
            closed(one.leg), closed(two.leg), **{to: rows((2, "y"), offset=1, finish={2: 2, 1: 1})}
        )
        rest = [await soon(call.read()), await soon(call.read())]
        assert await soon(call.read()) is grpc.aio.EOF
        assert [(each.output_index, each.text) for each in rest] == [(1, "y"), (0, "")]
        assert all(each.HasField("finish") for each in rest)
        task = common_pb2.Task.FromString(one.task)
        assert task.streaming
        assert task.want_text
        assert len(task.trace_id) == 32
        assert (task.sampling.top_p, task.sampling.top_k) == (1.0, -1)


@pytest.mark.promise("S0-038")
@pytest.mark.parametrize("prompt", [{}, {"prompt_text": "", "prompt_token_ids": [1, 2, 3]}])
async def test_generate_counts_what_prefills_hook_terminated(prompt: dict[str, Any]) -> None:
    """And its prompt, of each output: in text only a worker has counted it."""
    guarded = FakeWorker(common_pb2.PHASE_PREFILL, has_hook=True, propagate_terminate=True)
    async with stack(prefill=guarded) as s:
        await s.ready()
        call = s.stub.Generate(generate_request(n=2, **prompt))
        leg, _ = await s.legs()
        told = worker_pb2.LegVerdict(
            terminate=True, reason="no", completion_tokens=1, prompt_tokens=3
        )
        s.prefill.say(worker_pb2.LegEvent(leg=leg.leg, verdict=told), closed(leg.leg))
        first, second = [(await soon(call.read())).finish for _ in range(2)]
        assert (first.stop_reason, first.completion_tokens, first.withheld) == ("no", 1, True)
        assert (second.stop_reason, second.completion_tokens, second.withheld) == ("no", 0, True)
        assert first.prompt_tokens == second.prompt_tokens == 3
        assert await soon(call.read()) is grpc.aio.EOF


async def test_generate_ends_with_the_status_and_code_of_the_error() -> None:
    async with stack() as s:
        await s.ready()
        for request, status, code in (
            (generate_request(model="other"), grpc.StatusCode.NOT_FOUND, "model_not_found"),
            (generate_request(n=500), grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"),
            (generate_request(n=9999), grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"),
        ):
            error = await failure(s.stub.Generate(request).read())
            assert error.code() is status
            assert error.details().startswith(code)
            assert dict(error.trailing_metadata())["tandem-code"] == code


async def test_cancelling_generate_cancels_both_legs() -> None:
    async with stack() as s:
        await s.ready()
        call = s.stub.Generate(generate_request())
        prefill, decode = await s.legs()
        call.cancel()
        await s.cancelled(prefill, decode)


async def test_generate_reports_a_worker_failure_in_mid_stream() -> None:
    async with stack() as s:
        await s.ready()
        call = s.stub.Generate(generate_request())
        _, decode = await s.legs()
        s.decode.say(started(decode.leg), **{f"to_{decode.destination}": rows((1, "half"))})
        assert (await soon(call.read())).text == "half"
        s.decode.end_stream()
        error = await failure(call.read())
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(error.trailing_metadata())["tandem-code"] == "worker_lost"


@pytest.mark.promise("S6-168")
async def test_generate_fails_where_a_worker_sends_what_is_no_payload() -> None:
    async with stack() as s:
        await s.ready()
        call = s.stub.Generate(generate_request())
        prefill, decode = await s.legs()
        s.decode.say(**{f"to_{decode.destination}": b"\xff\xff garbage"})
        assert (await failure(call.read())).code() is grpc.StatusCode.UNAVAILABLE
        assert (await soon(s.prefill.cancels.get())).leg == prefill.leg


# --- what is served ---------------------------------------------------------------------------


def _served(register: Callable[[Any], None]) -> dict[str, Any]:
    """The methods that are registered, by the name of their service."""
    served: dict[str, Any] = {}
    register(
        SimpleNamespace(
            add_generic_rpc_handlers=lambda _: None,
            add_registered_method_handlers=served.__setitem__,
        )
    )
    return served


def test_every_method_of_a_router_is_served_as_its_service_has_it() -> None:
    servicer = RouterServicer(RouterConfig(), None, None)  # type: ignore[arg-type]
    served = _served(servicer.add_to)
    generated = _served(lambda into: router_pb2_grpc.add_RouterServicer_to_server(servicer, into))
    service = router_pb2.DESCRIPTOR.services_by_name["Router"]
    assert list(served) == list(generated) == [service.full_name]
    methods, of_generated = served[service.full_name], generated[service.full_name]
    assert methods.keys() == {each.name for each in service.methods}
    connect = of_generated["Connect"]
    of_generated["Connect"] = connect._replace(response_serializer=bytes)
    assert methods == of_generated
