"""gRPC channels and servers as every component opens them: one set of limits, health everywhere.
tandem_loop_grpc carries them.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from tandem import sockets
from tandem.byte_budget import ByteBudget
from tandem.complaints import Complaints
from tandem.message_limits import MAX_MESSAGE_BYTES, MAX_REQUEST_MESSAGE_BYTES
from tandem.wire.bounded import bounded
from tandem.wire.callers import CallerCheck
from tandem.wire.standing import watch
from tandem.wire.tls import PeerRole, PeerTls
from tandem_loop_grpc.client import SILENCE_SECONDS, UNIX, RpcChannel
from tandem_loop_grpc.connections import ConnectionLimits
from tandem_loop_grpc.frames import ProtocolError
from tandem_loop_grpc.server import Listener

log = logging.getLogger(__name__)

_BACKLOG: Final = 1024
Handlers = Mapping[str, Any]
"""Handlers of the methods of a service, by the names of the methods."""


def open_channel(
    address: str,
    tls: PeerTls | None = None,
    *,
    role: PeerRole = "router",
    silence_seconds: float = SILENCE_SECONDS,
) -> grpc.aio.Channel:
    """A channel to "host:port"; it connects on first use, with the certificate that it was opened
    with. With `tls` only a server of that role is believed; without it is plaintext. One whose
    process says nothing for `silence_seconds` is given up; one whose machine is lost, after 15.

    It is a channel of tandem_loop_grpc, and has of grpc.aio's what stubs ask for.
    """
    channel = RpcChannel(
        address,
        None if tls is None else tls.client_context(),
        name="" if tls is None else tls.name_of(role),
        most_bytes=MAX_MESSAGE_BYTES,
        silence_seconds=silence_seconds,
    )
    if tls is not None:
        watch(channel, tls)
    return cast(grpc.aio.Channel, channel)


def answering_bytes(server: Any, method: str) -> Any:
    """A server for generated code to add a service to, of which one method's answers are bytes
    already: its servicer serialises them.
    """

    def answer(handlers: Handlers) -> Handlers:
        return {**handlers, method: handlers[method]._replace(response_serializer=bytes)}

    return _Registry(server, answer)


def _bounded(handlers: Handlers) -> Handlers:
    """`handlers`, refusing to parse a request that takes long to parse."""
    return {
        name: each._replace(
            request_deserializer=bounded(each.request_deserializer, streams=each.request_streaming)
        )
        for name, each in handlers.items()
    }


class _Registry:
    """A server for generated code to add a service to, whose handlers are changed on the way."""

    def __init__(self, into: Any, change: Callable[[Handlers], Handlers]) -> None:
        self._into, self._change = into, change

    def add_generic_rpc_handlers(self, _: object) -> None:
        """Pass over the methods, which come by the next way too."""

    def add_registered_method_handlers(self, service: str, handlers: Handlers) -> None:
        self._into.add_registered_method_handlers(service, self._change(handlers))


class Server:
    """A gRPC server with grpc.health.v1 and, where it is asked for, reflection.

    `add` registers a servicer: pass the generated `add_XServicer_to_server` and the service's full
    name.
    """

    def __init__(
        self,
        tls: PeerTls | None = None,
        *,
        caller: PeerRole | None = None,
        reflects: bool = False,
        limits: ConnectionLimits | None = None,
        budget: ByteBudget | None = None,
    ) -> None:
        """`caller`: the one role that may call anything here, health and reflection too; None:
        nobody. Without `tls` it is plaintext, and anybody may. `reflects`: it tells which calls it
        has. `limits`: of its clients' connections. What it received and nobody has read takes of
        `budget`: where there is no room, the holder of the most is ended; a connection is closed.
        """
        self._reflects = reflects
        self._check = None if tls is None else CallerCheck(tls, caller)
        self._complaints = Complaints(log)
        self._listener = Listener(
            None if tls is None else tls.server_context(),
            admit=None if self._check is None else self._check.admit,
            most_bytes=MAX_REQUEST_MESSAGE_BYTES,
            limits=limits,
            budget=budget,
            complain=self._complain,
        )
        self._tls = tls
        self._health = health.aio.HealthServicer()
        self._names: list[str] = []
        self.add(partial(health_pb2_grpc.add_HealthServicer_to_server, self._health))

    def add(self, register: Callable[[Any], None], service: str = "") -> None:
        register(_Registry(self._listener, _bounded))
        if service:
            self._names.append(service)

    async def start(self, address: str, *, setting: str = "listen") -> int:
        """Listen on "host:port" (port 0: any), or "unix:path", and return the port. Not serving
        until `set_serving`. Raises ConfigError, which names the setting, where that cannot be.
        """
        if self._reflects:
            names: Sequence[str] = (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflected = reflection.aio.ReflectionServicer(names)
            self.add(partial(reflection_pb2_grpc.add_ServerReflectionServicer_to_server, reflected))
        await self.set_serving(False)
        if self._tls is not None:
            watch(self._listener, self._tls)
        if address.startswith(UNIX):
            await self._listener.start(_unix(address.removeprefix(UNIX)))
            return 0
        listening = sockets.listen(address, setting=setting, backlog=_BACKLOG)
        await self._listener.start(listening)
        port: int = listening.getsockname()[1]
        return port

    async def set_serving(self, serving: bool) -> None:
        """What grpc.health.v1 answers, for the server as a whole and for each service."""
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if serving
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ("", *self._names):
            await self._health.set(name, status)

    async def stop(self, grace_seconds: float) -> None:
        """Refuse new calls, give open ones `grace_seconds`, then cancel them."""
        await self._listener.stop(grace_seconds)
        self._complaints.close()
        if self._check is not None:
            self._check.close()

    def _complain(self, peer: str, error: ProtocolError) -> None:
        self._complaints.warn(
            "connection ended: the peer broke the protocol",
            error.code.name,
            peer=peer,
            reason=str(error),
        )


def check_address(address: str, *, setting: str) -> None:
    """Raises ConfigError, as `Server.start` does, for what is no address on any machine."""
    if not address.startswith(UNIX):
        sockets.check(address, setting=setting)


def _unix(path: str) -> socket.socket:
    """A socket that listens at that path. Raises OSError."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(path)
    listening.listen(_BACKLOG)
    return listening
