"""The registries of all components, built in this process without any I/O.

Every family needs a sample, because only samples tell a family's labels: so the worker has a hook
in a pool and a classifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from prometheus_client import Metric

from tandem import metrics
from tandem.byte_budget import ByteBudget
from tandem.certificates import ExpiryCollector
from tandem.engine.base import EngineFigures, EngineUnit, RankLoad, UnitState
from tandem.hooks.classifiers.counters import ClassifierCounters
from tandem.hooks.runner.processes.pool import HookPool
from tandem.hooks.settings import HookEntry, HookSettings
from tandem.logits.forms.workshop import FormPlan, Workshop, WorkshopLimits
from tandem.logits.model import Model
from tandem.metrics import DrainMetrics, HeldMetrics
from tandem.tracing.metrics import SpanCollector
from tandem.v1 import worker_pb2
from tandem.wire.prompt_chunks import ChunkMetrics, ChunkRoom
from tandem.worker.core.ledger import Taken
from tandem.worker.counters import WorkerCounters
from tandem.worker.hook_metrics import classifier_metrics
from tandem.worker.hooks import WorkerHooks
from tandem.worker.metrics import WorkerCollector
from tandem.worker.start_metrics import StartCollector
from tandem_frontend.metrics import Metrics as FrontendMetrics
from tandem_frontend.metrics import Slo
from tandem_router import metrics as router_metrics
from tandem_router.config import RouterConfig
from tandem_router.core import events
from tandem_router.core.values import Fingerprint, Phase, Profile
from tandem_router.discovery import Listed
from tandem_router.discovery.static import StaticDiscovery
from tandem_router.relay import Relay
from tandem_router.server import build_core
from tandem_router.workers import Workers
from tandem_tools.certificate_keeping import KeptCollector


def families() -> Iterator[Metric]:
    """The metric families of all components. A family of several components comes several times."""
    yield from _frontend()
    yield from _router()
    yield from _worker()
    for drain in (
        DrainMetrics("frontend"),
        DrainMetrics("router"),
        DrainMetrics("worker", phase="decode"),
    ):
        yield from drain.collect()
    for held in (
        HeldMetrics("frontend", ByteBudget()),
        HeldMetrics("router", ByteBudget()),
        HeldMetrics("worker", ByteBudget(), phase="decode"),
        ChunkMetrics("router", ChunkRoom(0)),
        ChunkMetrics("worker", ChunkRoom(0), phase="decode"),
    ):
        yield from held.collect()
    yield from SpanCollector(None).collect()
    yield from ExpiryCollector({"tls_cert": "any"}).collect()
    yield from KeptCollector(lambda: True).collect()


def _frontend() -> Iterator[Metric]:
    frontend = FrontendMetrics(slo=Slo(ttft=1, itl=1), endpoints=())
    frontend.models.loaded("any", ready=lambda: 1)
    frontend.upstream.watch_waiting(lambda _: 0)
    frontend.keys.series("any")
    frontend.watch(
        open_requests=lambda: 0,
        backlog_bytes=lambda: 0,
        ready=lambda: 0,
        draining=lambda: 0,
        waiting_bodies={"large": lambda: 0},
    )
    frontend.watch_connections(lambda: 0)
    yield from frontend.registry.collect()


def _router() -> Iterator[Metric]:
    relay = Relay(build_core(RouterConfig()))
    workers = Workers(StaticDiscovery(prefill=(), decode=()), relay, silence_seconds=1)
    # Straight to the core: the relay would want a link to carry out what comes of it.
    relay.core.handle(0.0, [_worker_up()])
    listed = (Listed("any", Phase.DECODE),)
    reading = replace(router_metrics.read(relay, workers), workers=listed)
    yield from router_metrics.new_registry(lambda: reading).collect()


def _worker_up() -> events.WorkerUp:
    fingerprint = Fingerprint(**dict.fromkeys(Fingerprint._fields, "any"))  # type: ignore[arg-type]
    profile = Profile(
        name="any", phase=Phase.DECODE, fingerprint=fingerprint, max_sequences=1, context_length=1
    )
    return events.WorkerUp(worker="any", listed_as=Phase.DECODE, profile=profile)


def _worker() -> Iterator[Metric]:
    yield from metrics.new_registry("decode_worker").collect()
    yield from of_engine(
        lambda: worker_pb2.Load(step_age_ms=0),
        lambda: EngineFigures(
            open_handovers=0,
            retractions=0,
            ranks=(RankLoad(**dict.fromkeys(RankLoad.__dataclass_fields__, 1)),),
            units=(EngineUnit(name="any", promise="any", state=UnitState.KEPT),),
        ),
    )
    yield from classifier_metrics("decode", {"any": ClassifierCounters()})
    yield from StartCollector(
        "decode", model="any", started=lambda: True, ready=lambda: False
    ).collect()


def of_engine(
    load: Callable[[], worker_pb2.Load], figures: Callable[[], EngineFigures]
) -> Iterator[Metric]:
    """The families of a decode worker whose engine says this of itself."""
    settings = HookSettings(chain=(HookEntry(path="any", name="any"),), workers=1)
    pool = HookPool(settings, phase="decode", model="any")
    plan = FormPlan(compiler="any:Any", arguments={}, used_here=frozenset())
    yield from WorkerCollector(
        phase="decode",
        counters=WorkerCounters(),
        hooks=WorkerHooks(pool, pool.hooks),
        classifiers=None,
        forms=Workshop(plan, Model(vocabulary=1), WorkshopLimits()),
        load=load,
        figures=figures,
        taken=lambda: Taken(0.0, {"any": (0.0, 0.0, 0.0)}),
    ).collect()
