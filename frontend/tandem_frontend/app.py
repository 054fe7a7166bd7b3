"""The ASGI application: paths to handlers, keys, and failures to OpenAI's error shape."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tandem import errors
from tandem.byte_budget import ByteBudget
from tandem.complaints import Complaints
from tandem.story_book import StoryBook, log_line
from tandem.tracing.spans import Tracer
from tandem_frontend import playground
from tandem_frontend.config import FrontendConfig
from tandem_frontend.http.browsers import Browsers
from tandem_frontend.http.call_story import CallStory, story
from tandem_frontend.http.capacity import Capacity
from tandem_frontend.http.errors import HostNotAllowedError, MethodNotAllowedError, NotFoundError
from tandem_frontend.http.messages import Call, Receive, Scope, Send
from tandem_frontend.http.spans import CallSpans
from tandem_frontend.metrics import Metrics
from tandem_frontend.openai.dialects import COMPLETION, OPENAI_ERRORS, ErrorShape, spoken
from tandem_frontend.openai.endpoints import DOCS, MODELS, Endpoints
from tandem_frontend.openai.generation import Generation
from tandem_frontend.openai.moderations.endpoint import Moderations
from tandem_frontend.playground import PATH
from tandem_frontend.scrapes import Scrapes
from tandem_frontend.tenants import Tenant, Tenants

log = logging.getLogger(__name__)

_BESIDE = {
    PATH: "A page to chat on",
    "/metrics": "Metrics, as Prometheus reads them",
    "/ping": "The same as /ready",
}
"""What the index says of paths that the operator may name, beside those of the API."""
Handler = Callable[[Call], Awaitable[errors.TandemError | None]]


class Route(NamedTuple):
    method: str
    handler: Handler
    secured: bool = False
    """Wants an API key, where the deployment has any."""
    counted: str | None = None
    """The name under which its requests are counted."""

    @property
    def methods(self) -> tuple[str, ...]:
        """HEAD is GET without a body: the server sends none."""
        return (self.method, "HEAD") if self.method == "GET" else (self.method,)


class App:
    """Serves every path of docs/api.md."""

    def __init__(
        self,
        config: FrontendConfig,
        tenants: Tenants,
        endpoints: Endpoints,
        generation: Generation,
        moderations: Moderations,
        metrics: Metrics,
        *,
        budget: ByteBudget,
        complaints: Complaints,
        book: StoryBook[CallStory],
        tracer: Tracer | None,
    ) -> None:
        """`book`: keeps the stories of ended requests. `tracer`: None: no request is traced."""
        self._book = book
        self._ends_at = logging.INFO if config.log_requests else logging.DEBUG
        """The level of the line that holds a request's story."""
        self._metrics = metrics
        self._browsers = Browsers(config)
        self._capacity = Capacity(max_requests=config.max_open_requests, budget=budget)
        self._complaints = complaints
        ratio = config.trace_sample_ratio
        self._spans = None if tracer is None else CallSpans(tracer, sample_ratio=ratio)
        self._trust_traceparent = config.trust_traceparent
        self._tenants = tenants
        own = (each for each in spoken() if each.errors is not OPENAI_ERRORS)
        self._own_errors = [(f"{each.path}/", each.errors) for each in own]
        """Paths, each with the shape of its errors, of dialects whose errors are not OpenAI's."""
        get, post = "GET", "POST"
        self._model = Route(get, endpoints.model, secured=True)
        self._routes = {
            **_of_dialects(endpoints, generation),
            "/v1/moderations": Route(post, moderations.serve, True, "moderations"),
            "/tokenize": _reads(endpoints, "tokenize"),
            "/detokenize": _reads(endpoints, "detokenize"),
            "/v1/models": Route(get, endpoints.models, secured=True),
            "/health": Route(get, endpoints.ready),
            "/ready": Route(get, endpoints.ready),
            "/ready/pair": Route(get, endpoints.paired),
            "/live": Route(get, endpoints.live),
            "/version": Route(get, endpoints.version),
            "/openapi.json": Route(get, endpoints.openapi),
            DOCS: Route(get, endpoints.docs),
            **_beside(endpoints, metrics, config),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive, send, trust_traceparent=self._trust_traceparent)
        call.headers = self._browsers.headers(call)
        shape = self._error_shape(call.path)
        if shape.request_id_header:
            call.headers = (*call.headers, (shape.request_id_header, call.trace_id.encode()))
        error: errors.TandemError | None
        try:
            error = await self._serve(call)
        except errors.TandemError as failure:
            error = failure
            await _answer_error(call, error, shape)
        except Exception:
            if not call.started:
                error = errors.InternalError("The frontend failed; see its log")
                await _answer_error(call, error, shape)
            raise  # uvicorn logs it
        if error is not None:
            self._complain(call, error)

    async def _serve(self, call: Call) -> errors.TandemError | None:
        """The failure after a first byte; raises one where nothing has been sent yet."""
        self._browsers.check_host(call)
        route = self._route(call.path)
        if preflight := self._browsers.preflight(call, route.method):
            await call.respond_empty(preflight)
            return None
        if call.method not in route.methods:
            allowed = ", ".join(route.methods)
            raise MethodNotAllowedError(call.path[:200], given=call.method, allowed=allowed)
        self._browsers.check_body(call)
        if route.counted is None:
            self._authenticate(call, route)
            return await route.handler(call)
        return await self._count(call, route, route.counted)

    def _route(self, path: str) -> Route:
        route = self._routes.get(path)
        if route is None:
            if not path.startswith(MODELS):
                raise NotFoundError(_not_found(path))
            route = self._model
        return route

    def _error_shape(self, path: str) -> ErrorShape:
        for root, shape in self._own_errors:
            if f"{path}/".startswith(root):
                return shape
        return OPENAI_ERRORS

    def _authenticate(self, call: Call, route: Route) -> Tenant | None:
        """The tenant whose key a call sends; None: the path needs no key."""
        if not (self._tenants.asked and route.secured):
            return None
        given = _given_key(call)
        if not given:
            raise errors.AuthenticationError(
                "An API key is needed: `Authorization: Bearer KEY` or `x-api-key: KEY`"
            )
        tenant = self._tenants.find(given)
        if tenant is None:
            raise errors.AuthenticationError("The API key is wrong")
        call.grant = tenant.grant
        return tenant

    def _enter(self, call: Call, tenant: Tenant) -> None:
        """Let a request in that came with a key, within the key's limits."""
        now = time.monotonic()
        try:
            self._tenants.enter(tenant, now)
            call.tenant = tenant
        finally:
            call.headers = (*call.headers, *tenant.headers(now))

    async def _count(self, call: Call, route: Route, endpoint: str) -> errors.TandemError | None:
        """Serve a request and count it by how it ended."""
        if self._spans is not None:
            call.span = self._spans.begin(
                call.trace_id,
                call.parent,
                link=None if call.parent else call.client_span,
                method=route.method,
                route=call.path,
            )
        error: errors.TandemError | None = errors.InternalError("a fault of ours")
        full = call.connection.full_seconds
        try:
            tenant = self._authenticate(call, route)
            if tenant is not None:
                self._enter(call, tenant)
            with self._capacity.request() as call.allotment:
                error = await route.handler(call)
            return error
        except errors.TandemError as failure:
            error = failure
            raise
        finally:
            self._metrics.count_request(endpoint, error)
            if call.tenant is not None:
                self._tenants.leave(call.tenant, error)
            if call.span is not None:
                call.span.end(error, streamed=call.started)
            call.times.blocked = call.connection.full_seconds - full
            self._tell(call, endpoint, error)

    def _tell(self, call: Call, endpoint: str, error: errors.TandemError | None) -> None:
        """Keep and log the story of a request, without error messages: they may quote clients."""
        told = story(
            call.times,
            trace_id=call.trace_id,
            endpoint=endpoint,
            tenant="" if call.grant is None else call.grant.name,
            outcome="finished" if error is None else error.code,
        )
        self._book.add(told, refused=not call.times.submitted)
        if log.isEnabledFor(self._ends_at):
            named = {"client_request_id": call.client_request_id or None}
            log.log(self._ends_at, "request ended", extra={**log_line(told), **named})

    def _complain(self, call: Call, error: errors.TandemError) -> None:
        """Log what an operator should see: faults of ours, and strangers at the door."""
        ours = error.http_status >= 500 and not isinstance(error, errors.RequestError)
        if ours or isinstance(error, errors.AuthenticationError | HostNotAllowedError):
            self._complaints.warn(
                "request failed",
                error.code,
                trace_id=call.trace_id,
                client_request_id=call.client_request_id or None,
                peer=call.connection.peer,
                reason=error.message,
            )


def _beside(endpoints: Endpoints, metrics: Metrics, config: FrontendConfig) -> dict[str, Route]:
    """The index, and what it lists beside the API."""
    files = playground.files() if config.playground else {}
    operators: dict[str, Handler] = {
        "/metrics": Scrapes(metrics.registry).answer,
        "/ping": endpoints.ready,
    }
    handlers = {path: operators[path] for path in config.operator_paths}
    handlers |= {path: file.serve for path, file in files.items()}
    pages = {path: says for path, says in _BESIDE.items() if path in handlers}
    home = PATH if PATH in files else DOCS
    handlers["/"] = functools.partial(endpoints.index, home, pages)
    return {path: Route("GET", handler) for path, handler in handlers.items()}


def _given_key(call: Call) -> bytes:
    """The key that a request came with; empty: none."""
    scheme, _, given = (call.header(b"authorization") or b"").partition(b" ")
    bearer = given.strip() if scheme.lower() == b"bearer" else b""
    return bearer or (call.header(b"x-api-key") or b"").strip()


def _of_dialects(endpoints: Endpoints, generation: Generation) -> dict[str, Route]:
    routes: dict[str, Route] = {}
    for each in spoken():
        serve = functools.partial(generation.serve, each)
        routes[each.path] = Route("POST", serve, True, each.endpoint)
        if each.counting is not None:
            routes[each.counting.path] = _reads(endpoints, each.counting.endpoint)
    return routes


def _reads(endpoints: Endpoints, endpoint: str) -> Route:
    return Route("POST", functools.partial(endpoints.read, endpoint), True, endpoint)


def _not_found(path: str) -> str:
    for each in spoken():
        if each.below and path.startswith(f"{each.path}/"):
            return each.below
    *others, last = sorted((each.path for each in spoken()), key=COMPLETION.path.__eq__)
    return (
        f"There is no {path[:200]} here; answers are generated at {', '.join(others)} and {last},"
        " and / lists all paths"
    )


async def _answer_error(call: Call, error: errors.TandemError, shape: ErrorShape) -> None:
    """Tell the client, unless it has gone. What it may still be sending is not read."""
    if isinstance(error, errors.CancelledError | errors.SlowClientError):
        call.connection.abort()
        return
    headers: list[tuple[bytes, bytes]] = []
    if isinstance(error, errors.AuthenticationError):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodNotAllowedError):
        headers.append((b"allow", error.allowed.encode()))
    if isinstance(error, errors.RefusedError):
        headers.append((b"retry-after", b"1"))
    if isinstance(error, errors.RateLimitError):
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after_seconds)))
    if isinstance(error, errors.HookError | errors.DeadlineError | errors.NotConfiguredError):
        headers.append((b"x-should-retry", b"false"))  # as OpenAI's own client libraries read it
    if isinstance(error, errors.TooLargeError | errors.DrainingError):
        headers.append((b"connection", b"close"))
    body = shape.body(error, call.trace_id)
    await call.respond(shape.status(error), body, headers=headers)
