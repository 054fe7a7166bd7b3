"""Which functions one message of a router passes in an executor, until the program has read all of
it: eight sequences have a token each. It is what a step of an engine costs a program.

The executor is fed without a router and without gRPC, one message after the other, so that the
counts are the same on every machine, whatever else it does. Every call of our functions is counted
in all threads; a coroutine that is woken counts as a call. What a program calls of a response
(`has_error`, `result`) is counted, the loop around it is not.

    python benchmarks/executor_calls.py
    python benchmarks/executor_calls.py --asyncio --streams 64
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any
from unittest import mock

from against import ROOT

from tandem.upstream import router_link
from tandem.upstream.rows import WITH_TOKEN_IDS
from tandem.v1 import common_pb2, router_pb2, worker_pb2
from tandem_executor import AsyncExecutor, Executor, Request, Response

STREAMS, MESSAGES, WARM = 8, 50, 5
WORKER = 7
SECONDS = 60.0
FIRST = WITH_TOKEN_IDS + 1
"""The first sequence that wants token ids."""


class FedCall:
    """A stream of messages that are put into it. Stands for a call of gRPC's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[router_pb2.RouterMessage] = asyncio.Queue()
        self._come: Callable[[router_pb2.RouterMessage], object] = self._queue.put_nowait

    def put(self, message: router_pb2.RouterMessage) -> None:
        """Let it come next. Any thread may call it."""
        self._loop.call_soon_threadsafe(self._come, message)

    async def read(self) -> router_pb2.RouterMessage:
        return await self._queue.get()

    async def hand_on(self, take: Callable[[router_pb2.RouterMessage], object]) -> None:
        while not self._queue.empty():
            take(self._queue.get_nowait())
        self._come = take
        await self._loop.create_future()

    def cancel(self) -> None:
        """There is nobody who is to be told."""


class FedChannel:
    """A channel whose streams are fed. The last one is `call`."""

    call: FedCall

    def stream_stream(self, *_: object, **__: object) -> Callable[[object], FedCall]:
        def connect(_: object) -> FedCall:
            self.call = FedCall()
            self.call.put(greeting())
            return self.call

        return connect

    unary_stream = unary_unary = stream_unary = stream_stream


def greeting() -> router_pb2.RouterMessage:
    limits = worker_pb2.Limits(context_length=2**20, vocabulary=2048)
    fleet = router_pb2.Fleet()
    fleet.models.add(name="tiny", limits=limits, ready_pairs=1)
    return router_pb2.RouterMessage(fleet=fleet)


def step(number: int, streams: int) -> router_pb2.RouterMessage:
    """One token of each sequence."""
    sequences = range(FIRST, FIRST + streams)
    columns = common_pb2.TokenColumns(
        sequence=sequences,
        offset=[number] * streams,
        token_count=[1] * streams,
        text=["word "] * streams,
        token_id=[100 + number] * streams,
    )
    payload = columns.SerializeToString()
    message = router_pb2.RouterMessage(
        payload=payload, part_worker=[WORKER], part_bytes=[len(payload)]
    )
    if number == 0:
        message.run_sequence.extend(sequences)
        message.run_worker.extend([WORKER] * streams)
    return message


class Calls:
    """Counts calls of our functions in all threads, between `start` and `stop`."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._counting = False
        self._root = f"{ROOT}/"

    def start(self) -> None:
        self._counting = True

    def stop(self) -> None:
        self._counting = False

    def called(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        path = code.co_filename
        if self._counting and event == "call" and path.startswith(self._root):
            self.counts[path.removeprefix(self._root), code.co_qualname] += 1


def tokens_of(responses: Sequence[Response]) -> int:
    return sum(len(each.result.output_token_ids[0]) for each in responses if not each.has_error())


def requests(streams: int) -> list[Request]:
    return [Request([300, 301, 302], max_tokens=4096, streaming=True) for _ in range(streams)]


@contextmanager
def fed() -> Iterator[FedChannel]:
    channel = FedChannel()
    with mock.patch.object(router_link, "open_channel", return_value=nullcontext(channel)):
        yield channel


def feed(channel: FedChannel, streams: int, calls: Calls) -> Iterator[None]:
    """One message after the other, each once the one before it was read; the first do not count."""
    for number in range(WARM + MESSAGES):
        if number == WARM:
            calls.start()
        channel.call.put(step(number, streams))
        yield
    calls.stop()


def by_thread(streams: int, calls: Calls) -> None:
    with fed() as channel, Executor("127.0.0.1:1") as executor:
        executor.enqueue_requests(requests(streams))
        asyncio.run(submitted(executor, streams))
        for _ in feed(channel, streams, calls):
            left = streams
            while left:
                left -= tokens_of(executor.await_responses(timeout=SECONDS))


async def by_task(streams: int, calls: Calls) -> None:
    with fed() as channel:
        async with AsyncExecutor("127.0.0.1:1") as executor:
            executor.enqueue_requests(requests(streams))
            await submitted(executor, streams)
            for _ in feed(channel, streams, calls):
                left = streams
                while left:
                    left -= tokens_of(await executor.await_responses(timeout=SECONDS))


async def submitted(executor: Any, streams: int) -> None:
    """Until all requests are open at the router."""
    async with asyncio.timeout(SECONDS):
        while len(executor._backend._served) < streams:  # noqa: ASYNC110 - nobody says it
            await asyncio.sleep(0.005)


def counted(streams: int, *, by_asyncio: bool) -> Counter[tuple[str, str]]:
    """Calls of all messages, by file and function."""
    calls = Calls()
    threading.setprofile(calls.called)
    sys.setprofile(calls.called)
    try:
        if by_asyncio:
            asyncio.run(by_task(streams, calls))
        else:
            by_thread(streams, calls)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Counter({key: count for key, count in calls.counts.items() if _is_ours(key[0])})


def _is_ours(path: str) -> bool:
    return not path.startswith(("benchmarks/", "tandem/v1/", ".venv/"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--asyncio", action="store_true", help="AsyncExecutor instead of Executor")
    options = parser.parse_args()
    counts = counted(options.streams, by_asyncio=options.asyncio)
    for (path, function), count in sorted(counts.items()):
        print(f"{count / MESSAGES:7.2f}  {path}: {function}")
    total = sum(counts.values()) / MESSAGES
    print(
        f"{total:7.2f} calls of {len(counts)} functions for a message of {options.streams} tokens"
    )


if __name__ == "__main__":
    main()
