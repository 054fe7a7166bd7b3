"""The frontend's Prometheus metrics. Every series is there, at 0, from the start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tandem import errors
from tandem.metrics import REQUEST_SECONDS, new_registry
from tandem.upstream.metrics import UpstreamMetrics
from tandem_frontend import read_steps
from tandem_frontend.http import errors as http_errors
from tandem_frontend.key_metrics import KeyMetrics
from tandem_frontend.model_metrics import ModelMetrics, NamesMetrics
from tandem_frontend.read_steps import ReadStep
from tandem_frontend.slo import Slo, SloCounts

_BESIDE = ("tokenize", "detokenize", "moderations")
"""Endpoints of no dialect."""
Fault = Literal["none", "client", "server"]
SUCCESS = "success"
OTHER_FIELD = "_other"
_BELOW_REQUESTS = (
    errors.InvalidRequestError,
    http_errors.HeadTooLargeError,
    http_errors.ReceiveTimeoutError,
    http_errors.TooManyConnectionsError,
)


class Metrics:
    """The Prometheus series of one frontend process."""

    def __init__(self, *, slo: Slo, endpoints: Iterable[str], key_series: int = 100) -> None:
        """`endpoints`: those of the dialects. `key_series`: keys with series of their own."""
        registry = self.registry = new_registry("frontend")
        self.models = ModelMetrics(registry)
        self.prefixes = PrefixMetrics(registry)
        self.reading = ReadingMetrics(registry)
        self.names = NamesMetrics(registry)
        self.slo = SloCounts(slo, registry)
        self.upstream = UpstreamMetrics(registry)
        self.keys = KeyMetrics(registry, most=key_series)
        requests = Counter(
            "tandem_frontend_requests",
            "Requests that ended, by how: success, or the code of their error; and by whose fault:"
            " nobody's, the client's, or the server's (status 5xx, and queue_full).",
            ["endpoint", "outcome", "fault"],
            registry=registry,
        )
        self._requests = {
            (endpoint, outcome): requests.labels(endpoint, outcome, fault)
            for endpoint in (*endpoints, *_BESIDE)
            for outcome, fault in _FAULTS.items()
        }
        self._refused = _refused_connections(registry)
        self.request_seconds = Histogram(
            "tandem_frontend_request_seconds",
            "Time from a generating request's arrival to its end.",
            buckets=REQUEST_SECONDS,
            registry=registry,
        )
        self.ttft_seconds = Histogram(
            "tandem_frontend_ttft_seconds",
            "Time from a generating request's arrival to its first output.",
            buckets=REQUEST_SECONDS,
            registry=registry,
        )
        self.prompt_tokens = _counter("prompt_tokens", "Prompt tokens submitted.", registry)
        self._ignored_fields = Counter(
            "tandem_frontend_ignored_fields",
            "Fields and tools that requests had and answers do without, by name; `_other`: all that"
            " are in no table of dropped fields and tools.",
            ["field"],
            registry=registry,
        )
        self._ignored_fields.labels(OTHER_FIELD)
        self._calls = _counter(
            "tool_calls", "Calls of tools that answers were found to hold.", registry
        )
        self._broken_calls = _counter(
            "broken_tool_calls",
            "Texts that began like a call of a tool and were none: they were shown as text.",
            registry,
        )
        self.slow_clients = _counter(
            "slow_clients", "Requests cancelled because their client did not read.", registry
        )
        self.disconnects = _counter(
            "disconnects", "Requests cancelled because their client went away.", registry
        )

    def count_request(self, endpoint: str, error: errors.TandemError | None) -> None:
        self._requests[endpoint, error.code if error else SUCCESS].inc()
        if isinstance(error, errors.SlowClientError):
            self.slow_clients.inc()
        elif isinstance(error, errors.CancelledError):
            self.disconnects.inc()

    def count_ignored(self, field: str) -> None:
        """`field`: of a set that clients do not add to; or OTHER_FIELD."""
        self._ignored_fields.labels(field).inc()

    def count_calls(self, calls: int, *, broken: int) -> None:
        """Count the calls that one answer holds; `broken`: calls that could not be read."""
        if calls:
            self._calls.inc(calls)
        if broken:
            self._broken_calls.inc(broken)

    def count_refused(self, error: errors.TandemError) -> None:
        """What was answered before it was a request, or too many connections."""
        self._refused[error.code].inc()

    def watch_connections(self, connections: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        name, text = "tandem_frontend_connections", "Connections of clients that are open now."
        Gauge(name, text, registry=self.registry).set_function(connections)

    def watch(
        self,
        *,
        open_requests: Callable[[], float],
        backlog_bytes: Callable[[], float],
        ready: Callable[[], float],
        draining: Callable[[], float],
        waiting_bodies: Mapping[str, Callable[[], float]],
    ) -> None:
        """Gauges that are read when they are asked for. `waiting_bodies`: by their size."""
        waiting = Gauge(
            "tandem_frontend_waiting_bodies",
            "Bodies that wait for a process which reads them: middling ones have up to 256 KiB.",
            ["size"],
            registry=self.registry,
        )
        for size, count in waiting_bodies.items():
            waiting.labels(size).set_function(count)
        for name, text, value in (
            ("open_requests", "Requests at the router now.", open_requests),
            ("backlog_bytes", "Output that waits for clients to read.", backlog_bytes),
            ("ready", "1 while a request would be served.", ready),
            ("draining", "1 while this process shuts down.", draining),
        ):
            Gauge(f"tandem_frontend_{name}", text, registry=self.registry).set_function(value)


class PrefixMetrics:
    """What the store of earlier prompts holds, and saves."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.held_bytes = Gauge(
            "tandem_frontend_prefix_store_bytes",
            "Memory of the store of earlier prompts.",
            registry=registry,
        )
        self.known_tokens = _counter(
            "known_prompt_tokens",
            "Prompt tokens that were not read again: an earlier prompt began with them.",
            registry,
        )
        checks = Counter(
            "tandem_frontend_prefix_checks",
            "Prompts with a known beginning that were read as a whole and compared, by result:"
            " same, or different, after which prompts of that model are read as a whole.",
            ["result"],
            registry=registry,
        )
        self.checks = {result: checks.labels(result) for result in ("same", "different")}


class ReadingMetrics:
    """What reading the bodies of requests takes, by step."""

    def __init__(self, registry: CollectorRegistry) -> None:
        seconds = Counter(
            "tandem_frontend_reading_cpu_seconds",
            "CPU time of the steps in which requests were read, in this process and in those that"
            " read bodies for it: parse (JSON), render (chat template), find (what of the prompt is"
            " known), tokenize and hash (the numbers of the prompt's blocks).",
            ["step"],
            registry=registry,
        )
        self._seconds = {name: seconds.labels(name) for name in read_steps.NAMES}

    def count(self, steps: Iterable[ReadStep]) -> None:
        """Count the steps of one request."""
        for step in steps:
            self._seconds[step.name].inc(step.cpu_seconds)


def _refused_connections(registry: CollectorRegistry) -> dict[str, Counter]:
    """A counter for each code with which a connection is refused."""
    refused = Counter(
        "tandem_frontend_refused_connections",
        "Connections that were answered without a request, and closed: too many, not in time,"
        " or no HTTP.",
        ["code"],
        registry=registry,
    )
    return {each.code: refused.labels(each.code) for each in _BELOW_REQUESTS}


def _counter(name: str, text: str, registry: CollectorRegistry) -> Counter:
    return Counter(f"tandem_frontend_{name}", text, registry=registry)


def _fault(error: type[errors.TandemError]) -> Fault:
    """A full queue is ours: more workers would have taken the request."""
    if issubclass(error, errors.RequestError):
        return "client"
    ours = error.http_status >= 500 or issubclass(error, errors.QueueFullError)
    return "server" if ours else "client"


def _faults(base: type[errors.TandemError]) -> dict[str, Fault]:
    """By the codes of a branch of the error tree."""
    found = {base.code: _fault(base)}
    for child in base.__subclasses__():
        found |= _faults(child)
    return found


assert issubclass(http_errors.NotFoundError, errors.TandemError)  # HTTP's own are in the tree
_FAULTS: dict[str, Fault] = {SUCCESS: "none", **_faults(errors.TandemError)}
