"""What frontends, plain callers and workers say to a router."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from google.protobuf.message import DecodeError

from fuzzing.messages import spoil_message
from fuzzing.router_bench import TRACE, VOUCHERS, AbortedError, Context, RouterBench, once
from fuzzing.target import MODEL, FoundError, Target
from tandem.prefix_blocks import packed
from tandem.v1 import common_pb2, router_pb2, worker_pb2
from tandem_router.core.values import Phase

_PATIENCE_SECONDS = 60.0


class RouterSubject:
    """Each input is said on a stream of its own; beside it a good request goes on."""

    def __init__(self, bench: RouterBench) -> None:
        self.bench = bench
        self._started = False

    async def give(self, data: bytes) -> None:
        if not self._started:
            self._started = True
            await self.bench.start_good()
        try:
            await self.say(data)
        except DecodeError:
            return  # gRPC ends the stream before we see it
        await self.bench.settle()
        self.bench.check_good()
        if self.bench.open:
            raise FoundError("leak", "a sequence outlives its frontend")

    async def say(self, data: bytes) -> None:
        raise NotImplementedError

    async def left_open(self) -> int:
        return self.bench.open


class FrontendsSubject(RouterSubject):
    async def say(self, data: bytes) -> None:
        message = router_pb2.FrontendMessage.FromString(data)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self.bench.servicer.Connect(once(message), Context())  # type: ignore[arg-type]
        except AbortedError:
            return


class CallersSubject(RouterSubject):
    async def say(self, data: bytes) -> None:
        request = router_pb2.GenerateRequest.FromString(data)
        calling = asyncio.get_running_loop().create_task(self._call(request))
        await self.bench.settle()
        calling.cancel()
        await asyncio.wait({calling}, timeout=_PATIENCE_SECONDS)
        if not calling.cancelled() and (error := calling.exception()) is not None:
            raise error

    async def _call(self, request: router_pb2.GenerateRequest) -> None:
        try:
            async for answer in self.bench.servicer.Generate(request, Context()):  # type: ignore[arg-type]
                answer.SerializeToString()
        except AbortedError:
            return


class WorkersSubject(RouterSubject):
    """Frames of the worker that runs the sequences of a second frontend."""

    async def say(self, data: bytes) -> None:
        frame = worker_pb2.WorkerFrame.FromString(data)
        bench = self.bench
        submits = [*(_submit(first) for first in (1, 4)), _submit(7, n=1, context_only=True)]
        message = router_pb2.FrontendMessage(submit=submits)
        stream = bench.servicer.Connect(_open_stream(message, bench, frame), Context())  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await stream
        except AbortedError:
            return


async def _open_stream(message, bench, frame):  # type: ignore[no-untyped-def]
    yield message
    await bench.settle()
    # A worker may end its own legs, and the good one's are among them.
    events = [event for event in frame.events if event.leg not in bench.good_legs]
    del frame.events[:]
    frame.events.extend(events)
    for worker in Phase:
        bench.relay.frame(worker.value, frame)
    await bench.settle()


def _task(**fields: object) -> common_pb2.Task:
    sampling = common_pb2.SamplingParams(max_tokens=8, top_p=1.0, top_k=-1, repetition_penalty=1.0)
    given = {"trace_id": TRACE, "model": MODEL, "sampling": sampling, "streaming": True}
    return common_pb2.Task(**given | {"want_text": True} | fields)  # type: ignore[arg-type]


def _submit(first: int, **fields: object) -> router_pb2.Submit:
    task = _task(prompt_token_ids=[5, 6, 7]).SerializeToString()
    given = {"first_sequence": first, "n": 2, "trace_id": TRACE, "model": MODEL}
    return router_pb2.Submit(**given | {"timeout_ms": 60_000, "task": task} | fields)  # type: ignore[arg-type]


def _messages() -> Sequence[bytes]:
    forced = common_pb2.LogitsProcessor(name="forced_sequence", args_json='{"token_ids":[5]}')
    logits = common_pb2.LogitsSpec(processors=[forced])
    task = _task(prompt_text="p", logits=logits, want_report=True, metadata={"a": "b"})
    kinds = (
        [_submit(1)],
        [_submit(1, n=3, priority=2, want_report=True, tenant="t", weight=4, parent_span=9)],
        [_submit(1), _submit(7, task=task.SerializeToString())],
        [_submit(1, prompt_blocks=packed(range(64)), session=5, resume=True)],
    )
    messages = [router_pb2.FrontendMessage(submit=submits) for submits in kinds]
    messages.append(router_pb2.FrontendMessage(submit=[_submit(1)], cancel=[1, 9]))
    voucher = common_pb2.Voucher(room=5, kv_peer="127.0.0.1:9", model=MODEL, task_digest=bytes(32))
    signed = VOUCHERS.signed(voucher, lease_seconds=1e6)
    halves = [_submit(1, n=1, context_only=True), _submit(2, n=1, voucher=signed)]
    messages.append(router_pb2.FrontendMessage(submit=halves))
    return [message.SerializeToString() for message in messages]


def _calls() -> Sequence[bytes]:
    tasks = (_task(prompt_text="p"), _task(prompt_token_ids=[5], want_token_ids=True))
    tasks[1].sampling.stop_words.add(token_id=[5, 6])
    tasks[1].sampling.prompt_logprobs = 2
    tasks[1].embedding_bias.token_ids, tasks[1].embedding_bias.values = b"\5\0\0\0", b"\0" * 4
    calls = [router_pb2.GenerateRequest(task=task, n=2, timeout_ms=1000) for task in tasks]
    return [call.SerializeToString() for call in calls]


def _frames() -> Sequence[bytes]:
    columns = common_pb2.TokenColumns(
        sequence=[1, 2],
        offset=[0, 0],
        token_count=[1, 2],
        text=["a", "b"],
        finish=[
            common_pb2.Finish(
                sequence=1, reason=common_pb2.FINISH_REASON_STOP, rows=1, stop_tokens=[5, 6]
            )
        ],
        report=[common_pb2.PhaseReport(sequence=1, worker="w")],
    )
    envelope = worker_pb2.Envelope(destination=2, payload=columns.SerializeToString())
    again = common_pb2.Task(regeneration=common_pb2.Regeneration(count=1, temperature=0.5))
    closed = worker_pb2.LegClosed(
        outcome=worker_pb2.LegClosed.OUTCOME_REGENERATE, overlay=again.SerializeToString()
    )
    failed = worker_pb2.LegClosed(
        outcome=worker_pb2.LegClosed.OUTCOME_FAILED,
        error=common_pb2.Error(code="kv_transfer_failed", message="m"),
        retryable=True,
    )
    finished = worker_pb2.LegClosed(outcome=worker_pb2.LegClosed.OUTCOME_FINISHED)
    parked = worker_pb2.LegParked(
        token_ids=[5], logprobs=[-0.5], task_digest=bytes(32), lease_ms=1000
    )
    events = [
        worker_pb2.LegEvent(leg=3, started=worker_pb2.LegStarted(kv_bytes=5, kv_seconds=0.1)),
        worker_pb2.LegEvent(leg=4, verdict=worker_pb2.LegVerdict(terminate=True, reason="r")),
        *(worker_pb2.LegEvent(leg=5, closed=each) for each in (closed, failed, finished)),
        worker_pb2.LegEvent(leg=5, parked=parked),
    ]
    load = worker_pb2.Load(open_legs=2, kv_tokens_used=3, kv_tokens_total=9)
    frames = [
        worker_pb2.WorkerFrame(envelopes=[envelope]),
        worker_pb2.WorkerFrame(envelopes=[envelope], events=events, load=load),
        *(worker_pb2.WorkerFrame(events=[event]) for event in events),
    ]
    return [frame.SerializeToString() for frame in frames]


@contextmanager
def _subject(kind: type[RouterSubject]) -> Iterator[RouterSubject]:
    bench = RouterBench()
    yield kind(bench)
    bench.close()


FRONTENDS = Target(
    name="router-frontends",
    goal=200_000,
    corpus=_messages,
    spoil=partial(spoil_message, router_pb2.FrontendMessage),
    subject=partial(_subject, FrontendsSubject),
)
CALLERS = Target(
    name="router-callers",
    goal=100_000,
    corpus=_calls,
    spoil=partial(spoil_message, router_pb2.GenerateRequest),
    subject=partial(_subject, CallersSubject),
)
WORKERS = Target(
    name="router-workers",
    goal=200_000,
    corpus=_frames,
    spoil=partial(spoil_message, worker_pb2.WorkerFrame),
    subject=partial(_subject, WorkersSubject),
)
