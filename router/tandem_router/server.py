"""The router as a whole: built from its settings, run, drained."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, fields
from functools import partial

from tandem import ids, sockets
from tandem.admin import Admin, Document, from_loop
from tandem.byte_budget import ByteBudget
from tandem.certificates import ExpiryCollector
from tandem.metrics import DrainMetrics, HeldMetrics
from tandem.settled import settle
from tandem.story_book import StoryBook
from tandem.tracing.metrics import SpanCollector
from tandem.tracing.spans import Tracer
from tandem.wire import tls
from tandem.wire.grpc import Server
from tandem.wire.prompt_chunks import ChunkMetrics, ChunkRoom
from tandem.wire.tls import PeerTls
from tandem_router import debug, metrics, translate, vouchers
from tandem_router.choosing import Choosing
from tandem_router.config import RouterConfig
from tandem_router.core import events
from tandem_router.core.machine import RouterCore
from tandem_router.core.story import Story
from tandem_router.core.values import Bounds
from tandem_router.discovery import Discovery, make_discovery, make_share
from tandem_router.relay import Relay
from tandem_router.servicer import RouterServicer
from tandem_router.workers import Workers

log = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 1.0
"""For errors to reach frontends and cancels to reach workers, once the drain is over."""


@dataclass(slots=True)
class RunningRouter:
    relay: Relay
    server: Server
    drained: DrainMetrics
    workers: Workers
    port: int = 0
    """The port of gRPC, once it listens."""

    @property
    def ready(self) -> bool:
        """Whether the router listens, has tried each worker of its first list, and does not drain.
        Whether a pair takes work is another question: health and metrics answer it.
        """
        return self.workers.known and not self.relay.core.draining

    async def drain(self, seconds: float) -> None:
        """Refuse what is new, let what is open finish for so long, then end it with an error."""
        relay = self.relay
        self.drained.begin()
        relay.drain()
        with suppress(TimeoutError):
            await asyncio.wait_for(relay.idle.wait(), seconds)
        if not relay.idle.is_set():
            self.drained.aborted = relay.core.snapshot().open_sequences
            log.warning("drain ran out of time", extra={"count": self.drained.aborted})
            relay.handle(events.Abandon())
            with suppress(TimeoutError):
                await asyncio.wait_for(relay.idle.wait(), LAST_WORDS_SECONDS)
        self.drained.end()
        relay.close_frontends()


def build_choosing(config: RouterConfig) -> Choosing:
    """Raises LoadError where it names a policy that cannot be had."""
    return Choosing(config.prefill_policy, config.decode_policy, seconds=config.policy_seconds)


def build_core(config: RouterConfig, choosing: Choosing | None = None) -> RouterCore:
    """`choosing`: None: by the policies that the settings name."""
    policies = choosing or build_choosing(config)
    return RouterCore(
        budget=ByteBudget(config.max_held_bytes),
        prefix_bytes=config.prefix_index_bytes,
        bounds=_bounds(config),
        prefill_policy=policies.prefill,
        decode_policy=policies.decode,
        new_room=ids.new_room,
        promptless=translate.promptless,
        canary_task=translate.canary_task,
        disaggregate=config.disaggregate,
    )


def _bounds(config: RouterConfig) -> Bounds:
    """The settings of the same names."""
    names = [each.name for each in fields(Bounds) if hasattr(config, each.name)]
    models = frozenset(config.expected_models)
    return Bounds(**{name: getattr(config, name) for name in names} | {"expected_models": models})


@asynccontextmanager
async def running(
    config: RouterConfig,
    *,
    discovery: Discovery | None = None,
    tracer: Tracer | None = None,
    with_admin: bool = False,
) -> AsyncIterator[RunningRouter]:
    """A router that serves within the block. Raises StartError where an address is taken, or there
    is no policy of a name.
    """
    choosing = build_choosing(config)
    relay = Relay(
        build_core(config, choosing),
        tracer=tracer,
        vouchers=vouchers.load(config.voucher_key_file),
        book=StoryBook(Story, config.max_stories, config.max_story_bytes) if with_admin else None,
        log_requests=config.log_requests,
        chunk_room=ChunkRoom(config.prompt_chunks_mb * 2**20),
    )
    peer_tls = PeerTls.of(config)
    workers = Workers(
        discovery or make_discovery(config),
        relay,
        share=make_share(config),
        tls=peer_tls,
        silence_seconds=config.worker_silence_seconds,
    )
    server = Server(
        peer_tls,
        caller="frontend",
        reflects=config.grpc_reflection,
        limits=config.connection_limits,
        budget=relay.budget,
    )
    servicer = RouterServicer(config, relay, workers)
    server.add(servicer.add_to, "tandem.v1.Router")
    router = RunningRouter(relay, server, DrainMetrics("router"), workers)
    admin = _admin(config, router, choosing)
    async with admin.serving(config.metrics_listen) if with_admin else nullcontext():
        router.port = await server.start(config.listen)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(relay.keep_time()),
                group.create_task(workers.run()),
                group.create_task(_keep_health(relay, server)),
            ]
            try:
                yield router
            finally:
                await server.stop(LAST_WORDS_SECONDS)
                choosing.close()
                relay.complaints.close()
                for task in tasks:
                    task.cancel()


async def check(config: RouterConfig) -> None:
    """Raises StartError for what `running` would refuse of its settings on any machine."""
    build_choosing(config).close()
    vouchers.load(config.voucher_key_file)
    PeerTls.of(config)


async def serve(config: RouterConfig, stop: asyncio.Event, tracer: Tracer | None = None) -> None:
    """Serve until `stop` is set, then drain."""
    async with running(config, tracer=tracer, with_admin=True) as router:
        settle()
        log.info("serving", extra={"address": sockets.bound(config.listen, router.port)})
        await stop.wait()
        log.info("router is draining")
        await router.drain(config.drain_seconds)


def _admin(config: RouterConfig, router: RunningRouter, choosing: Choosing) -> Admin:
    loop = asyncio.get_running_loop()
    read = from_loop(loop, lambda: metrics.read(router.relay, router.workers, choosing))
    registry = metrics.new_registry(read)
    registry.register(router.drained)
    registry.register(HeldMetrics("router", router.relay.budget))
    registry.register(ChunkMetrics("router", router.relay.chunk_room))
    registry.register(SpanCollector(router.relay.tracer))
    registry.register(ExpiryCollector(tls.files(config)))
    documents: dict[str, Callable[[str], Document]] = {
        "/debug/requests": lambda _: debug.requests(router.relay),
        "/debug/requests/": partial(debug.request, router.relay),
        "/debug/fleet": lambda _: debug.fleet(router.relay, router.workers),
        "/debug/lost-hits": lambda _: debug.lost_hits(router.relay),
    }
    return Admin(registry, ready=lambda: router.ready, documents=documents)


async def _keep_health(relay: Relay, server: Server) -> None:
    """grpc.health.v1 says SERVING while a pair is ready and the router does not drain."""
    serving: bool | None = None
    while True:
        if relay.ready is not serving:
            serving = relay.ready
            await server.set_serving(serving)
        await relay.fleet_changed.wait()
        relay.fleet_changed.clear()
