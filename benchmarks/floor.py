"""What the machine charges for the parts that nothing can save, measured beside the rest.

A streamed token crosses two gRPC hops, shared by all tokens of its step, and is written to one
socket of its own. This measures both bare: one message each step through one stream, and one write
for each client of the bytes of an event. The same Python, gRPC and loop, and none of Tandem. A
virtual machine's speed changes from hour to hour; the ratio to this floor does not.

    python benchmarks/floor.py
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import grpc.aio
import uvloop

STEP_SECONDS = 0.01
MESSAGES = 300
MESSAGE = b"x" * 600
EVENT = b"x" * 250
CLIENTS = 64
METHOD = "/floor/stream"


@dataclass(frozen=True)
class Floor:
    """What the cheapest possible message and write cost here, in CPU microseconds."""

    message: float
    """One message a step on one stream: both processes, all threads."""
    write: float
    """One event of 250 bytes written to one of 64 sockets that are read elsewhere."""

    def per_token(self, streams: int) -> float:
        """A token's share at so many streams: its part of two hops, and its own write."""
        return 2 * self.message / streams + self.write


def measure() -> Floor:
    """The floor of this machine, now. It takes about eight seconds."""
    return Floor(message=_message(), write=_write())


def _message() -> float:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    sender = context.Process(target=_run, args=(_send, there))
    sender.start()
    port = here.recv()
    receiver = context.Process(target=_run, args=(_receive, there, port))
    receiver.start()
    total = float(here.recv()) + float(here.recv())
    for process in (sender, receiver):
        process.join(10)
    return total


def _run(role: Callable[..., Any], *arguments: Any) -> None:
    uvloop.run(role(*arguments))


async def _send(pipe: Connection) -> None:
    done = asyncio.Event()

    async def stream(_: Any, context: Any) -> AsyncIterator[bytes]:
        yield MESSAGE
        spent, due = time.process_time(), time.monotonic()
        for _number in range(MESSAGES):
            due += STEP_SECONDS
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            yield MESSAGE
        pipe.send((time.process_time() - spent) / MESSAGES * 1e6)
        done.set()

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(stream)
    service = grpc.method_handlers_generic_handler("floor", {"stream": handler})
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pipe.send(port)
    await asyncio.wait_for(done.wait(), 60)
    await server.stop(1)


async def _receive(pipe: Connection, port: int) -> None:
    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.sleep(60)
        yield b""

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(METHOD)(nothing())
        await call.read()
        spent = time.process_time()
        for _ in range(MESSAGES):
            await call.read()
        pipe.send((time.process_time() - spent) / MESSAGES * 1e6)
        call.cancel()


def _write() -> float:
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader = context.Process(target=_drain, args=(listener.getsockname(),))
        reader.start()
        clients = [listener.accept()[0] for _ in range(CLIENTS)]
    cost: float = uvloop.run(_write_steps(clients))
    for client in clients:
        client.close()
    reader.join(10)
    return cost


async def _write_steps(clients: list[socket.socket]) -> float:
    loop = asyncio.get_running_loop()
    transports = []
    for client in clients:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, client)
        transports.append(transport)
    spent, due = time.process_time(), time.monotonic()
    for _ in range(MESSAGES):
        due += STEP_SECONDS
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        for transport in transports:
            transport.write(EVENT)
    cost = (time.process_time() - spent) / (MESSAGES * len(transports)) * 1e6
    for transport in transports:
        transport.close()
    return cost


def _drain(address: tuple[str, int]) -> None:
    async def read() -> None:
        streams = [await asyncio.open_connection(*address) for _ in range(CLIENTS)]

        async def one(reader: asyncio.StreamReader) -> None:
            while await reader.read(65536):
                pass

        await asyncio.gather(*(one(reader) for reader, _ in streams))
        for _, writer in streams:
            writer.close()

    uvloop.run(read())


if __name__ == "__main__":
    floor = measure()
    print(f"one gRPC message, both sides: {floor.message:.0f} us")
    print(f"one event written to a socket: {floor.write:.1f} us")
    for streams in (8, 64, 256):
        print(f"floor of a token at {streams} streams: {floor.per_token(streams):.1f} us")
