"""Every server answers health checks, and reflection where it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from raw_peer import dialled

from tandem.errors import ConfigError
from tandem.v1 import router_pb2_grpc
from tandem.wire import grpc as wire
from tandem_loop_grpc.client import RpcChannel
from tandem_loop_grpc.frames import Code

SERVICE = "tandem.v1.Router"


async def _serve(*, reflects: bool = False) -> tuple[wire.Server, RpcChannel]:
    server = wire.Server(reflects=reflects)
    servicer = router_pb2_grpc.RouterServicer()
    server.add(lambda s: router_pb2_grpc.add_RouterServicer_to_server(servicer, s), SERVICE)
    port = await server.start("127.0.0.1:0")
    return server, wire.open_channel(f"127.0.0.1:{port}")


@pytest.mark.parametrize("name", ["", SERVICE])
async def test_health_follows_what_the_component_says(name: str) -> None:
    server, channel = await _serve()
    stub = health_pb2_grpc.HealthStub(channel)
    status = health_pb2.HealthCheckResponse
    request = health_pb2.HealthCheckRequest(service=name)
    assert (await stub.Check(request, timeout=5)).status == status.NOT_SERVING
    await server.set_serving(True)
    assert (await stub.Check(request, timeout=5)).status == status.SERVING
    await channel.close()
    await server.stop(0)


@pytest.mark.promise("S6-165")
async def test_reflection_is_off_unless_it_is_asked_for() -> None:
    server, channel = await _serve()
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    call = stub.ServerReflectionInfo(timeout=5)
    await call.write(request)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await channel.close()
    await server.stop(0)


async def test_reflection_lists_the_service() -> None:
    server, channel = await _serve(reflects=True)
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    call = stub.ServerReflectionInfo(timeout=5)
    await call.write(request)
    await call.done_writing()
    answers = [answer async for answer in call]
    names = {service.name for service in answers[0].list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names
    await channel.close()
    await server.stop(0)


async def test_a_client_that_breaks_the_protocol_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, channel = await _serve()
    port = int(channel.address.rpartition(":")[2])
    async with dialled(port, greets=False) as peer:
        peer.send(b"GET / HTTP/1.1\r\n\r\n")
        assert await peer.ending() == Code.PROTOCOL_ERROR
    (line,) = [vars(each) for each in caplog.records]
    assert line["message"] == "connection ended: the peer broke the protocol"
    assert (line["code"], line["reason"]) == ("PROTOCOL_ERROR", "the peer does not speak HTTP/2")
    assert line["peer"].startswith("ipv4:127.0.0.1:")
    await channel.close()
    await server.stop(0)


async def test_an_address_in_use_is_an_error() -> None:
    first, second = wire.Server(), wire.Server()
    port = await first.start("127.0.0.1:0")
    with pytest.raises(ConfigError, match="listen"):
        await second.start(f"127.0.0.1:{port}")
    await first.stop(0)


SLOW = 0.4
"""Seconds that the first answer of a far or busy host takes."""


@asynccontextmanager
async def _slowed(port: int) -> AsyncIterator[int]:
    """The port of a relay to that port, which holds back what a connection is answered first."""

    async def relay(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            sink.write(data)
        sink.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, to_server = await asyncio.open_connection("127.0.0.1", port)
        asking = asyncio.create_task(relay(reader, to_server))
        await asyncio.sleep(SLOW)
        await relay(behind, writer)
        await asking

    listening = await asyncio.start_server(accepted, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


async def test_a_slow_host_is_connected_to_at_the_first_attempt() -> None:
    """A call that does not wait for a connection fails with the attempt that it came to."""
    server = wire.Server()
    await server.set_serving(True)
    port = await server.start("127.0.0.1:0")
    async with _slowed(port) as slow, wire.open_channel(f"127.0.0.1:{slow}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
    await server.stop(0)
