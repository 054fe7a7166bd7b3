"""Strangers that send bytes to the ports of a component."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from random import Random

import grpc
import psutil

from chaotic.fleet import Fleet
from chaotic.process_faults import COMPONENTS
from chaotic.trial import Kind

_STRANGERS = 60
_TOGETHER = 10
_SECONDS = 0.3
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_CONNECT = {"prefill": "/tandem.v1.Worker/Connect", "decode": "/tandem.v1.Worker/Connect"} | {
    "router": "/tandem.v1.Router/Connect"
}


async def stray_bytes(fleet: Fleet, rng: Random, *, name: str) -> None:
    """To every port on which the process listens, or one of its own processes."""
    fleet.struck()
    for port in _ports(fleet.stack.components[name].pid):
        for _ in range(_STRANGERS // _TOGETHER):
            await asyncio.gather(*(_bother(port, garbage) for garbage in _garbage(rng)))


async def stray_messages(fleet: Fleet, rng: Random, *, name: str, method: str) -> None:
    """To the gRPC port, by a client that speaks HTTP/2 well."""
    fleet.struck()
    async with grpc.aio.insecure_channel(fleet.launch(name).address) as channel:
        call = channel.stream_stream(method)
        for _ in range(_STRANGERS):
            messages = [rng.randbytes(rng.randint(0, 200)) for _ in range(5)]
            with suppress(grpc.aio.AioRpcError, TimeoutError):
                async with asyncio.timeout(_SECONDS):
                    async for _ in call(iter(messages)):
                        pass


def _ports(pid: int) -> list[int]:
    process = psutil.Process(pid)
    return sorted(
        {
            each.laddr.port
            for one in (process, *process.children(recursive=True))
            for each in one.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN
        }
    )


def _garbage(rng: Random) -> Iterator[bytes]:
    for _ in range(_TOGETHER - 4):
        yield rng.randbytes(rng.randint(1, 4000))
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield b"\x16\x03\x01\x02\x00" + rng.randbytes(512)  # as a TLS hello begins
    yield _PREFACE + rng.randbytes(1000)
    yield b""


async def _bother(port: int, garbage: bytes) -> None:
    """Send it, read what is answered for a moment, and go away."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(garbage)
                await reader.read()
            finally:
                writer.close()


KINDS: tuple[Kind, ...] = (
    *(
        Kind(
            name=f"stray bytes on all ports: {component}",
            strike=partial(stray_bytes, name=name),
        )
        for component, name in COMPONENTS.items()
    ),
    *(
        Kind(
            name=f"stray messages on the gRPC port: {component}",
            strike=partial(stray_messages, name=COMPONENTS[component], method=method),
        )
        for component, method in _CONNECT.items()
    ),
)
