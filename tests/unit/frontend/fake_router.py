"""A router for tests of the frontend: a real gRPC server that answers by script, without workers.

A script is a coroutine function that is run for each Submit with a `Reply`, by which it says what a
router would say.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from tandem.errors import DrainingError
from tandem.v1 import common_pb2, router_pb2, router_pb2_grpc, worker_pb2
from tandem.wire.frames import Draft
from tandem.wire.grpc import Server
from tandem.wire.outbox import Outbox

WAIT_SECONDS = 60.0


class Reply:
    """Answers one Submit. Frames are sent as they come: `flush` ends one."""

    def __init__(self, stream: Stream, submit: router_pb2.Submit) -> None:
        self._stream = stream
        self.submit = submit
        self.task = common_pb2.Task.FromString(submit.task)
        self.first = submit.first_sequence
        self.cancelled = asyncio.Event()

    def text(self, text: str, *, output: int = 0, tokens: int = 1) -> None:
        self._stream.add_row(self.first + output, tokens, text)
        self._stream.outbox.notify()

    def token_ids(self, token_ids: Sequence[int], *, output: int = 0, text: str = "") -> None:
        self._stream.add_row(self.first + output, len(token_ids), text, token_ids)
        self._stream.outbox.notify()

    def logprobs(self, entry: common_pb2.TokenLogprobs, *, output: int = 0) -> None:
        """Of the row that was or will be added to the same frame."""
        entry.sequence = self.first + output
        self._stream.draft.rest.logprobs.append(entry)

    def prompt_logprobs(self, place: int, token_ids: Sequence[int], *, output: int = 0) -> None:
        """A part of them; a token's is its id as a negative number."""
        self._stream.draft.rest.prompt_logprobs.append(
            common_pb2.TokenLogprobs(
                sequence=self.first + output,
                place=place,
                token_id=token_ids,
                logprob=[-float(token_id) for token_id in token_ids],
            )
        )
        self._stream.outbox.notify()

    def report(self, report: common_pb2.PhaseReport, *, output: int = 0) -> None:
        report.sequence = self.first + output
        self._stream.draft.rest.report.append(report)

    def queue_wait(self, seconds: float, cause: str = "", *, output: int = 0) -> None:
        self._stream.queue_waits.append(
            router_pb2.QueueWait(sequence=self.first + output, seconds=seconds, cause=cause)
        )

    def waiting(self, what: str) -> None:
        self._stream.waiting.append(router_pb2.Waiting(sequence=self.first, what=what))
        self._stream.outbox.notify()

    def finish(
        self,
        *,
        output: int = 0,
        length: bool = False,
        stop_reason: str = "",
        stop_tokens: Sequence[int] = (),
        completion_tokens: int = 0,
        cached_tokens: int = 0,
        withheld: bool = False,
        external_scores: str = "",
    ) -> None:
        reason = common_pb2.FINISH_REASON_LENGTH if length else common_pb2.FINISH_REASON_STOP
        self._stream.draft.rest.finish.append(
            common_pb2.Finish(
                sequence=self.first + output,
                reason=reason,
                stop_reason=stop_reason,
                stop_tokens=stop_tokens,
                prompt_tokens=len(self.task.prompt_token_ids),
                completion_tokens=completion_tokens,
                cached_tokens=cached_tokens,
                withheld=withheld,
                external_scores=external_scores,
                rows=self._stream.rows[self.first + output],
            )
        )
        self._stream.outbox.notify()

    def end(
        self,
        *,
        output: int = 0,
        error: common_pb2.Error | None = None,
        stop_reason: str = "",
        voucher: bytes = b"",
        completion_tokens: int = 0,
    ) -> None:
        self._stream.ends.append(
            router_pb2.SequenceEnd(
                sequence=self.first + output,
                error=error,
                stop_reason=stop_reason,
                voucher=voucher,
                completion_tokens=completion_tokens,
            )
        )
        self._stream.outbox.notify()

    def break_frame(self) -> None:
        """A row without its text: no frame that a worker may send."""
        self._stream.draft.rest.sequence.append(self.first)
        self._stream.outbox.notify()

    async def flush(self) -> None:
        """Until all said so far has left as its own frame."""
        await self._stream.flushed()


Script = Callable[[Reply], Coroutine[Any, Any, None]]


class Stream:
    """One frontend's stream."""

    def __init__(self, fleet: router_pb2.Fleet, *, beat_ms: int, draining: bool) -> None:
        self.draft = Draft()
        self.rows: Counter[int] = Counter()
        self.ends: list[router_pb2.SequenceEnd] = []
        self.runs: list[int] = []
        self.queue_waits: list[router_pb2.QueueWait] = []
        self.waiting: list[router_pb2.Waiting] = []
        self.fleet: router_pb2.Fleet | None = fleet
        self.beat_ms = beat_ms
        self.draining = draining
        self.scripts: set[asyncio.Task[None]] = set()
        self.outbox = Outbox(self._take)
        self._taken = asyncio.Event()
        self.outbox.notify()

    def add_row(self, sequence: int, tokens: int, text: str, ids: Sequence[int] = ()) -> None:
        """The sequence's next one."""
        self.draft.add(sequence, self.rows[sequence], tokens, text, ids)
        self.rows[sequence] += 1

    async def flushed(self) -> None:
        def waits() -> bool:
            said = self.draft.sequences or self.draft.rest.ListFields()
            return bool(said or self.ends or self.waiting)

        while waits():
            self._taken.clear()
            self.outbox.notify()
            await asyncio.wait_for(self._taken.wait(), WAIT_SECONDS)

    def _take(self) -> router_pb2.RouterMessage | None:
        message = router_pb2.RouterMessage(
            payload=self.draft.serialize(),
            ends=self.ends,
            draining=self.draining,
            queue_wait=self.queue_waits,
            waiting=self.waiting,
        )
        self.queue_waits, self.waiting = [], []
        if self.runs:
            message.run_sequence.extend(self.runs)
            message.run_worker.extend([1] * len(self.runs))
            self.runs = []
        if self.fleet is not None:
            message.fleet.CopyFrom(self.fleet)
            message.beat_ms = self.beat_ms
        self.draft, self.ends, self.fleet, self.draining = Draft(), [], None, False
        self._taken.set()
        return message


class FakeRouter(router_pb2_grpc.RouterServicer):
    """Servicer and its record of what frontends said."""

    def __init__(self, script: Script, fleet: router_pb2.Fleet) -> None:
        self.script = script
        self.fleet = fleet
        self.begins = True
        """It says of what it gets that it runs; else all of that waits for a pair."""
        self.beat_ms = 0
        """It promises to say something so often, and does not keep that; 0: it does not."""
        self.replies: dict[int, Reply] = {}
        self.cancels: list[int] = []
        self.refused: list[int] = []
        self.streams: list[Stream] = []
        self._changed = asyncio.Event()
        self._drop = asyncio.Event()
        self.draining = False
        self.address = ""
        self._server: Server | None = None

    @property
    def last(self) -> Reply:
        """To the request that came last."""
        return list(self.replies.values())[-1]

    async def Connect(
        self,
        request_iterator: AsyncIterator[router_pb2.FrontendMessage],
        context: grpc.aio.ServicerContext[router_pb2.FrontendMessage, router_pb2.RouterMessage],
    ) -> None:
        stream = Stream(self.fleet, beat_ms=self.beat_ms, draining=self.draining)
        self.streams.append(stream)
        self._changed.set()
        self._drop.clear()
        try:
            async with asyncio.TaskGroup() as group:
                listening = group.create_task(self._listen(request_iterator, stream, group))
                dropping = group.create_task(self._end_on_drop(stream))
                async for message in stream.outbox.messages():
                    await context.write(message)
                for task in (listening, dropping, *stream.scripts):
                    task.cancel()
        finally:
            self.streams.remove(stream)
            self._changed.set()

    async def _listen(
        self,
        requests: AsyncIterator[router_pb2.FrontendMessage],
        stream: Stream,
        group: asyncio.TaskGroup,
    ) -> None:
        async for message in requests:
            for submit in message.submit:
                reply = Reply(stream, submit)
                if self.draining:
                    stream.draining = True
                    self.refuse(reply)
                    continue
                self.replies[submit.first_sequence] = reply
                if self.begins:
                    stream.runs.extend(range(reply.first, reply.first + submit.n))
                    stream.outbox.notify()
                task = group.create_task(self.script(reply))
                stream.scripts.add(task)
                task.add_done_callback(stream.scripts.discard)
            for first in message.cancel:
                self.cancels.append(first)
                if first in self.replies:
                    self.replies[first].cancelled.set()
            self._changed.set()
        stream.outbox.close()

    async def _end_on_drop(self, stream: Stream) -> None:
        await self._drop.wait()
        stream.outbox.close()

    async def stop_serving(self) -> None:
        """Be gone for good."""
        self.drop()
        if self._server is not None:
            await self._server.stop(0)

    def drain(self, *, late: bool = False) -> None:
        """Take nothing new, and say so on every stream; `late`: with its first refusal only, as if
        both had crossed on their way.
        """
        self.draining = True
        for stream in self.streams:
            stream.draining = not late
            stream.outbox.notify()

    def refuse(self, reply: Reply) -> None:
        self.refused.append(reply.first)
        for output in range(reply.submit.n):
            reply.end(output=output, error=DrainingError("the router is shutting down").to_proto())

    def drop(self) -> None:
        """End every stream, as a router that goes away does."""
        self._drop.set()

    def change_fleet(self, fleet: router_pb2.Fleet) -> None:
        self.fleet = fleet
        for stream in self.streams:
            stream.fleet = fleet
            stream.outbox.notify()

    async def until(self, condition: Callable[[FakeRouter], bool]) -> None:
        """Wait for something that a frontend says."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()


def fleet(
    *,
    model: str,
    tokenizer_sha256: str,
    ready_pairs: int = 1,
    context_length: int = 4096,
    vocabulary: int = 2048,
    logits_processors: Sequence[str] = (),
    waits: bool = False,
    **more: Any,
) -> router_pb2.Fleet:
    """`more`: other fields of its ServedModel."""
    limits = worker_pb2.Limits(
        max_sequences=256, context_length=context_length, vocabulary=vocabulary
    )
    return router_pb2.Fleet(
        models=[
            router_pb2.ServedModel(
                name=model,
                tokenizer_sha256=tokenizer_sha256,
                limits=limits,
                ready_pairs=ready_pairs,
                logits_processors=logits_processors,
                waits=waits,
                **more,
            )
        ]
    )


@asynccontextmanager
async def running(script: Script, fleet: router_pb2.Fleet) -> AsyncIterator[FakeRouter]:
    """A fake router on a free port; `address` says which."""
    router = FakeRouter(script, fleet)
    server = Server()
    server.add(
        lambda grpc_server: router_pb2_grpc.add_RouterServicer_to_server(router, grpc_server),
        "tandem.v1.Router",
    )
    router._server = server
    port = await server.start("127.0.0.1:0")
    await server.set_serving(True)
    router.address = f"127.0.0.1:{port}"
    try:
        yield router
    finally:
        router.drop()
        await server.stop(0.5)
