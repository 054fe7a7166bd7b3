"""What a frontend consists of, built from its settings: nothing runs yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from tandem import sockets, story_pages
from tandem.admin import Admin, Document, from_loop
from tandem.byte_budget import ByteBudget
from tandem.certificates import CertificateFiles, ExpiryCollector
from tandem.complaints import Complaints
from tandem.errors import TandemError
from tandem.keys.file import KeyFile
from tandem.metrics import DrainMetrics, HeldMetrics
from tandem.story_book import StoryBook
from tandem.tracing.metrics import SpanCollector
from tandem.tracing.spans import Tracer
from tandem.upstream.demultiplexer import Demultiplexer
from tandem.upstream.routers import Routers
from tandem.wire import tls
from tandem.wire.tls import PeerTls
from tandem_frontend.app import App
from tandem_frontend.config import FrontendConfig
from tandem_frontend.gen_ai_metrics import GenAiMetrics
from tandem_frontend.http.call_story import CallStory
from tandem_frontend.http.draining import Draining
from tandem_frontend.http.server import HttpServer
from tandem_frontend.metrics import Metrics, Slo
from tandem_frontend.openai.dialects import by_endpoint
from tandem_frontend.openai.endpoints import Endpoints
from tandem_frontend.openai.generation import Generation
from tandem_frontend.openai.moderations.endpoint import Moderations
from tandem_frontend.openai.prefix_store import PrefixStore
from tandem_frontend.openai.reading.bodies import BodyReading
from tandem_frontend.openai.reading.models import Models
from tandem_frontend.openai.reading.reader import field_rules
from tandem_frontend.openai.reading.readers import Readers
from tandem_frontend.openai.sessions import Sessions
from tandem_frontend.prices import Prices
from tandem_frontend.tenants import Tenants

log = logging.getLogger(__name__)

_OTHER_FILES = 512
"""File descriptors for refused connections and for the process itself, beside taken connections."""


class Parts:
    def __init__(
        self,
        config: FrontendConfig,
        tracer: Tracer | None = None,
        *,
        readers: Readers | None = None,
    ) -> None:
        """`readers`: of large bodies; None: processes. Raises ConfigError for useless settings."""
        self.config = config
        self.metrics = Metrics(
            slo=Slo(config.slo_ttft_seconds, config.slo_itl_seconds),
            endpoints=by_endpoint(),
            key_series=config.key_series,
        )
        self.budget = ByteBudget(config.max_held_bytes)
        self.complaints = Complaints(log)
        self.draining = Draining()
        self.drained = DrainMetrics("frontend")
        self.tenants = _tenants(config, self.metrics)
        self.readers = readers or Readers(config)
        self.moderations = Moderations(config, self.metrics, self.readers)
        self.routers = Routers(
            config.router,
            self.metrics.upstream,
            self.budget,
            most=config.max_routers,
            silence_seconds=config.router_silence_seconds,
            tls=PeerTls.of(config),
        )
        self.demultiplexer = Demultiplexer(
            self.metrics.upstream,
            self.complaints,
            self.budget,
            max_open=config.max_open_requests,
            max_request_bytes=config.max_request_bytes,
            max_backlog_bytes=config.max_backlog_bytes,
            router_wait_seconds=config.router_wait_seconds,
        )
        self.models = Models(config, self.demultiplexer, self.metrics)
        rules = field_rules(config)
        sessions = Sessions(config.session_headers, config.session_end_headers)
        prefixes = PrefixStore(config.prefix_store_mb * 2**20, self.metrics.prefixes)
        self.reading = BodyReading(
            self.models, self.readers, self.metrics, rules, sessions, prefixes
        )
        self.endpoints = Endpoints(
            self.models, self.reading, self.demultiplexer, self.draining, rules
        )
        self.https = _https(config)
        self.book = StoryBook(CallStory, config.max_stories, config.max_story_bytes)
        self.app = self._app(tracer)
        documents: dict[str, Callable[[str], Document]] = {
            "/debug/requests": lambda _: story_pages.requests(self.book),
            "/debug/requests/": lambda trace_id: story_pages.request(trace_id, (), self.book),
        }
        self.admin = Admin(
            self.metrics.registry, ready=lambda: self.endpoints.serving, documents=documents
        )
        self._watch(tracer)

    def _app(self, tracer: Tracer | None) -> App:
        gen_ai = GenAiMetrics(self.metrics.registry) if self.config.gen_ai_metrics else None
        generation = Generation(
            self.reading,
            self.demultiplexer,
            self.metrics,
            prices=Prices(self.config.prices),
            keep_alive_seconds=self.config.sse_keep_alive_seconds,
            gen_ai=gen_ai,
        )
        return App(
            self.config,
            self.tenants,
            self.endpoints,
            generation,
            self.moderations,
            self.metrics,
            budget=self.budget,
            complaints=self.complaints,
            book=self.book,
            tracer=tracer,
        )

    def server(self) -> HttpServer:
        """The server of the API's port. Asks the system for as many open files as it needs."""
        return HttpServer(
            self.app,  # type: ignore[arg-type]  # its types are plain dicts
            bounds=replace(self.config, max_connections=_max_connections(self.config)),
            budget=self.budget,
            draining=self.draining,
            on_refused=self._count_refused,
            keep_alive_seconds=self.config.keep_alive_seconds,
            https=self.https,
        )

    def _watch(self, tracer: Tracer | None) -> None:
        """Have a scrape read what the parts hold."""
        loop, demultiplexer = asyncio.get_running_loop(), self.demultiplexer
        self.metrics.watch(
            open_requests=lambda: demultiplexer.open_requests,
            backlog_bytes=from_loop(loop, lambda: demultiplexer.backlog_bytes),
            ready=lambda: self.endpoints.serving,
            draining=lambda: self.draining.began,
            waiting_bodies={
                "middling": lambda: self.readers.waiting("middling"),
                "large": lambda: self.readers.waiting("large"),
            },
        )
        certificates = {**tls.files(self.config), "https_cert": self.config.https_cert}
        for collector in (
            HeldMetrics("frontend", self.budget),
            self.drained,
            SpanCollector(tracer),
            ExpiryCollector(certificates),
        ):
            self.metrics.registry.register(collector)

    def _count_refused(self, error: TandemError, peer: str) -> None:
        self.metrics.count_refused(error)
        self.complaints.warn("connection refused", error.code, peer=peer, reason=error.message)


def _tenants(config: FrontendConfig, metrics: Metrics) -> Tenants:
    """Raises ConfigError where the file of keys cannot be used."""
    return Tenants(
        config.api_keys,
        KeyFile(config.api_keys_file) if config.api_keys_file else None,
        metrics.keys,
        frontends=config.key_limit_shares,
        max_open=config.max_open_requests,
    )


def _max_connections(config: FrontendConfig) -> int:
    """As many as were asked for, or as files may be open."""
    wanted = config.max_connections + _OTHER_FILES
    missing = wanted - sockets.allow_files(wanted)
    if not missing:
        return config.max_connections
    most = max(1, config.max_connections - missing)
    log.warning("the process may not open enough files for max_connections", extra={"count": most})
    return most


def _https(config: FrontendConfig) -> CertificateFiles | None:
    if not config.https_cert:
        return None
    return CertificateFiles(cert=config.https_cert, key=config.https_key)
