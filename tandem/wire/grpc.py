"""gRPC channels and servers as every component opens them: one set of limits, health everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tandem.message_limits import MAX_MESSAGE_BYTES, MAX_REQUEST_MESSAGE_BYTES
from tandem.wire.bounded import BoundedMessages
from tandem.wire.callers import CallerCheck
from tandem.wire.tls import PeerRole, PeerTls

_RECEIVED = "grpc.max_receive_message_length"
_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    (_RECEIVED, MAX_MESSAGE_BYTES),
    # Find a silent peer (a lost node, a dropped connection) within about 15 s, also while no
    # request runs.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_SETTLE_SECONDS = 0.05
_SERVER_OPTIONS = [
    *(option for option in _OPTIONS if option[0] != _RECEIVED),
    (_RECEIVED, MAX_REQUEST_MESSAGE_BYTES),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),
]
_CHANNEL_OPTIONS = [
    *_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # What gRPC gives a connection with its TLS handshake, whatever the name says: a refused one
    # is tried again by the two settings beside it.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),
]


async def settled() -> None:
    """Call it before an event loop is closed while others of the process go on. gRPC says what
    became of a cancelled call a moment later, and what it cannot say to a closed loop is an error
    in the log of another.
    """
    await asyncio.sleep(_SETTLE_SECONDS)


def open_channel(
    address: str, tls: PeerTls | None = None, *, role: PeerRole = "router"
) -> grpc.aio.Channel:
    """A channel to "host:port"; it connects on first use and reconnects by itself, with the
    certificate that it was opened with. With `tls` only a server of that role is believed; without
    it is plaintext.
    """
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
    name = ("grpc.ssl_target_name_override", tls.name_of(role))
    return grpc.aio.secure_channel(
        address, tls.channel_credentials(), options=[*_CHANNEL_OPTIONS, name]
    )


REFLECTION_HELP = (
    "Tell whoever asks on the gRPC port which calls there are (server reflection, for grpcurl)."
)


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
    ) -> None:
        """`caller`: the one role that may call anything here, health and reflection too; None:
        nobody. Without `tls` it is plaintext, and anybody may. `reflects`: it tells which calls it
        has.
        """
        self._tls = tls
        self._reflects = reflects
        self._checks = () if tls is None else (CallerCheck(tls, caller),)
        interceptors = (*self._checks, BoundedMessages())
        self._server = grpc.aio.server(options=_SERVER_OPTIONS, interceptors=interceptors)
        self._health = health.aio.HealthServicer()
        self._names: list[str] = []
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    def add(self, register: Callable[[grpc.aio.Server], None], service: str) -> None:
        register(self._server)
        self._names.append(service)

    async def start(self, address: str) -> int:
        """Listen on "host:port" (port 0: any) and return the port. Not serving until `set_serving`.

        Raises OSError or RuntimeError where the address cannot be bound.
        """
        if self._reflects:
            names: Sequence[str] = (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        await self.set_serving(False)
        if self._tls is None:
            port = self._server.add_insecure_port(address)
        else:
            port = self._server.add_secure_port(address, self._tls.server_credentials())
        await self._server.start()
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
        await self._server.stop(grace_seconds)
        for check in self._checks:
            check.close()
