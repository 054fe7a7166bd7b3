"""The frontend's Prometheus metrics. Every series is there, at 0, from the start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tandem import errors
from tandem.metrics import REQUEST_SECONDS, new_registry
from tandem.upstream.metrics import UpstreamMetrics
from tandem_frontend import read_steps
from tandem_frontend.http import errors as http_errors
from tandem_frontend.key_metrics import KeyMetrics
from tandem_frontend.read_steps import ReadStep

_BESIDE = ("tokenize", "detokenize", "moderations")
"""Endpoints of no dialect."""
Fault = Literal["none", "client", "server"]
SUCCESS = "success"
OTHER = "_other"
"""The series of models, fields and tools that have none of their own."""
MOST_SERIES = 100
"""Models with requests of their own, over the life of the process."""
_BELOW_REQUESTS = (
    errors.InvalidRequestError,
    http_errors.HeadTooLargeError,
    http_errors.ReceiveTimeoutError,
    http_errors.TooManyConnectionsError,
)


class Metrics:
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
        requests = _counter(
            "requests",
            "Requests that ended, by how: success, or the code of their error; and by whose fault:"
            " nobody's, the client's, or the server's (status 5xx, and queue_full).",
            registry,
            *("endpoint", "outcome", "fault"),
        )
        self._requests = {
            (endpoint, outcome): requests.labels(endpoint, outcome, fault)
            for endpoint in (*endpoints, *_BESIDE)
            for outcome, fault in _FAULTS.items()
        }
        refused = _counter(
            "refused_connections",
            "Connections that were answered without a request, and closed: too many, not in time,"
            " or no HTTP.",
            registry,
            "code",
        )
        self._refused = {each.code: refused.labels(each.code) for each in _BELOW_REQUESTS}
        self.request_seconds, self.ttft_seconds = (
            Histogram(
                f"tandem_frontend_{name}_seconds",
                f"Time from a generating request's arrival to its {end}.",
                buckets=REQUEST_SECONDS,
                registry=registry,
            )
            for name, end in (("request", "end"), ("ttft", "first output"))
        )
        self.prompt_tokens = _counter("prompt_tokens", "Prompt tokens submitted.", registry)
        self._ignored_fields = _counter(
            "ignored_fields",
            "Fields and tools that requests had and answers do without, by name; `_other`: all that"
            " are in no table of dropped fields and tools.",
            registry,
            "field",
        )
        self._ignored_fields.labels(OTHER)
        self._calls = _counter(
            "tool_calls", "Calls of tools that answers were found to hold.", registry
        )
        self._broken_calls = _counter(
            "broken_tool_calls",
            "Texts that began like a call of a tool and were none: they were shown as text.",
            registry,
        )
        self.slow_clients, self.disconnects = (
            _counter(name, f"Requests cancelled because their client {did}.", registry)
            for name, did in (("slow_clients", "did not read"), ("disconnects", "went away"))
        )

    def count_request(self, endpoint: str, error: errors.TandemError | None) -> None:
        self._requests[endpoint, error.code if error else SUCCESS].inc()
        if isinstance(error, errors.SlowClientError):
            self.slow_clients.inc()
        elif isinstance(error, errors.CancelledError):
            self.disconnects.inc()

    def count_ignored(self, field: str) -> None:
        """`field`: of a set that clients do not add to; or OTHER."""
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
        gauge = _gauge("connections", "Connections of clients that are open now.", self.registry)
        gauge.set_function(connections)

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
        waiting = _gauge(
            "waiting_bodies",
            "Bodies that wait for a process which reads them: middling ones have up to 256 KiB.",
            self.registry,
            "size",
        )
        for size, count in waiting_bodies.items():
            waiting.labels(size).set_function(count)
        for name, text, value in (
            ("open_requests", "Requests at the router now.", open_requests),
            ("backlog_bytes", "Output that waits for clients to read.", backlog_bytes),
            ("ready", "1 while a request would be served.", ready),
            ("draining", "1 while this process shuts down.", draining),
        ):
            _gauge(name, text, self.registry).set_function(value)


class PrefixMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.held_bytes = _gauge(
            "prefix_store_bytes", "Memory of the store of earlier prompts.", registry
        )
        self.known_tokens = _counter(
            "known_prompt_tokens",
            "Prompt tokens that were not read again: an earlier prompt began with them.",
            registry,
        )
        checks = _counter(
            "prefix_checks",
            "Prompts with a known beginning that were read as a whole and compared, by result:"
            " same, or different, after which prompts of that model are read as a whole.",
            registry,
            "result",
        )
        self.checks = {result: checks.labels(result) for result in ("same", "different")}


class ReadingMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        seconds = _counter(
            "reading_cpu_seconds",
            "CPU time of the steps in which requests were read, in this process and in those that"
            " read bodies for it: parse (JSON), render (chat template), find (what of the prompt is"
            " known), tokenize and hash (the numbers of the prompt's blocks).",
            registry,
            "step",
        )
        self._seconds = {name: seconds.labels(name) for name in read_steps.NAMES}

    def count(self, steps: Iterable[ReadStep]) -> None:
        """Count the steps of one request."""
        for step in steps:
            self._seconds[step.name].inc(step.cpu_seconds)


class ModelMetrics:
    """What is counted by model; of many that come and go, the last are counted together."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._info = _gauge(
            "served_model_info", "Always 1: a model whose files are loaded.", registry, "model"
        )
        self._ready = _gauge(
            "model_ready", "1 while a request for the model would be served.", registry, "model"
        )
        self._requests = _counter(
            "model_requests",
            "Requests that went to a router and ended, by the model they went to, whatever they"
            " called it; and by how: success, or failed.",
            registry,
            *("model", "outcome"),
        )
        self._counted: set[str] = set()

    def loaded(self, model: str, *, ready: Callable[[], float]) -> None:
        """A model is there. `ready` is read when it is asked for."""
        self._info.labels(model).set(1)
        self._ready.labels(model).set_function(ready)
        for failed in (False, True):
            self._counter(model, failed)

    def unloaded(self, model: str) -> None:
        """Take a model out of the gauges; its counters stay."""
        self._info.remove(model)
        self._ready.remove(model)

    def count(self, model: str, *, failed: bool) -> None:
        """Count a request for a model that is or was there; the request is over."""
        self._counter(model, failed).inc()

    def _counter(self, model: str, failed: bool) -> Counter:
        if model not in self._counted and len(self._counted) < MOST_SERIES:
            self._counted.add(model)
        series = model if model in self._counted else OTHER
        return self._requests.labels(series, "failed" if failed else "success")


class NamesMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.stale = _gauge(
            "model_names_file_stale",
            "1 while the names of models in use are not those of their file: the file cannot be"
            " used, or has only just changed.",
            registry,
        )
        self.failures = _counter(
            "model_names_file_failures",
            "Times that the file of names of models had changed and could not be used.",
            registry,
        )


class Slo(NamedTuple):
    """Latency objectives: seconds that a request may take."""

    ttft: float
    """To its first token."""
    itl: float
    """Between its tokens, in the mean."""


class SloCounts:
    """Whether each request met the objectives, counted exactly. A histogram can say that only where
    the objective is one of its bounds, and never for two objectives of the same request together,
    which is what goodput asks.
    """

    def __init__(self, slo: Slo, registry: CollectorRegistry) -> None:
        self._slo = slo
        seconds = _gauge(
            "slo_seconds",
            "The latency objectives: time to first token, mean time between tokens.",
            registry,
            "objective",
        )
        for name, value in slo._asdict().items():
            seconds.labels(name).set(value)
        requests = _counter(
            "slo_requests",
            "Requests that succeeded, by whether each latency objective was met or missed.",
            registry,
            *("ttft", "itl"),
        )
        words = {True: "met", False: "missed"}
        self._requests = {
            (ttft, itl): requests.labels(words[ttft], words[itl]) for ttft in words for itl in words
        }

    def count(self, *, ttft_seconds: float, itl_seconds: float) -> None:
        """One request. `itl_seconds` is its mean time between tokens."""
        met = ttft_seconds <= self._slo.ttft, itl_seconds <= self._slo.itl
        self._requests[met].inc()


def _counter(name: str, text: str, registry: CollectorRegistry, *labels: str) -> Counter:
    return Counter(f"tandem_frontend_{name}", text, labels, registry=registry)


def _gauge(name: str, text: str, registry: CollectorRegistry, *labels: str) -> Gauge:
    return Gauge(f"tandem_frontend_{name}", text, labels, registry=registry)


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
