"""Spans on their way to a collector: there, slow or away; and processes that trace nothing."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from prometheus_client import CollectorRegistry
from trace_collector import (
    ERROR,
    INTERNAL,
    SERVER,
    UNSET,
    Collector,
    collecting,
    collecting_by_grpc,
)

from tandem import ids, tracing
from tandem.errors import ConfigError, EngineError, InvalidRequestError
from tandem.ids import Traceparent
from tandem.tracing import otlp
from tandem.tracing.metrics import SpanCollector
from tandem.tracing.spans import Sampler, Span, SpanEvent, Tracer, Value

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
NOBODY = "127.0.0.1:9"
Collects = Callable[[], AbstractContextManager[Collector]]


def span(name: str = "work", **fields: object) -> Span:
    now = time.monotonic()
    given: dict[str, object] = {
        "trace_id": TRACE,
        "span_id": ids.new_span_id(),
        "parent_id": 7,
        "began": now - 0.5,
        "ended": now,
        "attributes": {},
        **fields,
    }
    return Span(name=name, **given)  # type: ignore[arg-type]


def exporting(url: str) -> AbstractContextManager[Tracer | None]:
    return tracing.exporting(url, service="tandem-test", instance="test-1")


@pytest.mark.promise("S5-759")
@pytest.mark.parametrize("collects", [collecting, collecting_by_grpc])
def test_a_span_reaches_the_collector_with_all_that_it_says(collects: Collects) -> None:
    attributes: dict[str, Value] = {"a": 1, "b": "two", "c": 0.5, "d": True, "e": ("x", "y")}
    with collects() as collector:
        with exporting(collector.url) as tracer:
            assert tracer is not None
            wall, now = time.time_ns(), time.monotonic()
            event = SpanEvent("half", now - 0.25, {"f": 3})
            times = {"began": now - 0.5, "ended": now, "events": [event]}
            tracer.record(span(span_id=2**63 - 1, attributes=attributes, **times))
        (got,) = collector.spans
    assert (got.trace_id, got.span_id, got.parent_id) == (TRACE, 2**63 - 1, 7)
    assert (got.name, got.kind, got.status) == ("work", SERVER, UNSET)
    assert got.attributes == {**attributes, "e": ["x", "y"]}
    assert got.events == [("half", {"f": 3})]
    assert got.ended - got.began == pytest.approx(0.5e9, abs=1e6)
    assert got.moments[0] - got.began == pytest.approx(0.25e9, abs=1e6)
    assert got.ended == pytest.approx(wall, abs=2e9)
    assert got.service == "tandem-test"
    assert got.resource["service.instance.id"] == "test-1"
    assert got.resource["service.namespace"] == "tandem"
    assert tracer.exported == 1
    assert tracer.dropped == 0


def until_exported(tracer: Tracer) -> None:
    """Wait until the exporter has read a collector's answer."""
    deadline = time.monotonic() + 60
    while not tracer.exported and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_span_without_a_parent_is_the_first_and_one_inside_is_internal() -> None:
    with collecting() as collector:
        with exporting(collector.url) as tracer:
            assert tracer is not None
            tracer.record(span("first", parent_id=0))
            tracer.record(span("inner", inside=True))
        kinds = {got.name: (got.parent_id, got.kind, got.trace_id) for got in collector.spans}
    assert kinds == {"first": (0, SERVER, TRACE), "inner": (7, INTERNAL, TRACE)}


@pytest.mark.promise("S6-146")
def test_a_span_of_a_stranger_is_linked_and_nothing_more() -> None:
    stranger = Traceparent("ab" * 16, 5, True)
    with collecting() as collector:
        with exporting(collector.url) as tracer:
            assert tracer is not None
            tracer.record(span(parent_id=0, link=stranger))
        (got,) = collector.spans
    assert (got.trace_id, got.parent_id, got.links) == (TRACE, 0, [("ab" * 16, 5)])


@pytest.mark.parametrize("collects", [collecting, collecting_by_grpc])
def test_a_fault_of_ours_is_an_error_and_a_client_s_mistake_is_noted(collects: Collects) -> None:
    with collects() as collector:
        with exporting(collector.url) as tracer:
            assert tracer is not None
            tracer.record(span("ours", error=EngineError("it broke")))
            tracer.record(span("theirs", error=InvalidRequestError("no such field")))
        found = {got.name: got for got in collector.spans}
    assert (found["ours"].status, found["ours"].message) == (ERROR, "it broke")
    assert found["ours"].attributes["error.type"] == "engine_error"
    assert found["theirs"].status == UNSET
    assert found["theirs"].attributes["error.type"] == "invalid_request"


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_collector_that_is_away_is_said_once_and_costs_bounded_memory_and_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setattr(otlp, "EXPORT_SECONDS", 2.5)
    monkeypatch.setattr(otlp, "BATCH_MILLIS", 10)
    caplog.set_level(logging.INFO)
    given = otlp.MAX_WAITING + 3 * otlp.BATCH_SPANS
    with exporting(f"{scheme}://{NOBODY}") as tracer:
        assert tracer is not None
        for _ in range(given):
            tracer.record(span())
        assert tracer.dropped > 0  # nothing waited for the collector
        assert given - tracer.dropped <= otlp.MAX_WAITING + otlp.BATCH_SPANS
    assert tracer.exported == 0
    lines = [record.getMessage() for record in caplog.records if record.name != "urllib3"]
    assert lines == [
        "the trace collector takes no spans: they are dropped",
        "spans were lost at shutdown",
    ]
    (away, _) = caplog.records
    assert away.__dict__["address"] == "127.0.0.1:9"
    assert "Connection refused" in away.__dict__["reason"]


@pytest.mark.promise("S5-759")
@pytest.mark.parametrize("collects", [collecting, collecting_by_grpc])
def test_a_collector_that_comes_back_is_said_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, collects: Collects
) -> None:
    monkeypatch.setattr(otlp, "BATCH_MILLIS", 10)
    caplog.set_level(logging.INFO)
    answers = iter([400, 400])
    with collects() as collector:
        asked = threading.Semaphore(0)

        def answer() -> int:
            asked.release()
            return next(answers, 200)

        collector.answer = answer
        with exporting(collector.url) as tracer:
            assert tracer is not None
            for _ in range(3):  # one batch after the other
                tracer.record(span())
                assert asked.acquire(timeout=60)
            until_exported(tracer)
    assert tracer.dropped == 2
    assert [record.getMessage() for record in caplog.records] == [
        "the trace collector takes no spans: they are dropped",
        "the trace collector takes spans again",
    ]


@pytest.mark.promise("S5-759")
@pytest.mark.parametrize("collects", [collecting, collecting_by_grpc])
def test_a_collector_that_does_not_answer_holds_no_shutdown_up(
    monkeypatch: pytest.MonkeyPatch,
    collects: Collects,
) -> None:
    monkeypatch.setattr(otlp, "FLUSH_SECONDS", 0.3)
    monkeypatch.setattr(otlp, "EXPORT_SECONDS", 60)
    asked = threading.Event()
    closed = threading.Event()

    def late() -> int:
        asked.set()
        assert closed.wait(60), "the shutdown waits for the answer"
        return 200

    with collects() as collector:
        collector.answer = late
        with exporting(collector.url) as tracer:
            assert tracer is not None
            tracer.record(span())
        assert asked.is_set()
        assert tracer.exported == 0
        closed.set()


def test_what_became_of_spans_is_counted() -> None:
    registry = CollectorRegistry()
    off = CollectorRegistry()
    off.register(SpanCollector(None))
    with collecting() as collector, exporting(collector.url) as tracer:
        registry.register(SpanCollector(tracer))
        assert tracer is not None
        tracer.record(span())
        until_exported(tracer)
        name = "tandem_trace_spans_total"
        assert registry.get_sample_value(name, {"outcome": "exported"}) == 1
        assert registry.get_sample_value(name, {"outcome": "dropped"}) == 0
        assert off.get_sample_value(name, {"outcome": "exported"}) == 0
        assert off.get_sample_value(name, {"outcome": "dropped"}) == 0


# --- who is traced ---------------------------------------------------------------------------


def test_without_a_parent_the_ratio_decides_by_the_trace_id() -> None:
    traces = [ids.new_trace_id() for _ in range(4000)]
    sampled = [each for each in traces if Sampler(0.25).samples(each, None)]
    assert len(sampled) == pytest.approx(1000, abs=200)
    assert all(Sampler(0.5).samples(each, None) for each in sampled)
    assert all(Sampler(1.0).samples(each, None) for each in traces)
    assert not any(Sampler(0.0).samples(each, None) for each in traces)


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_parent_s_own_decision_holds(ratio: float) -> None:
    for decision in (True, False):
        assert Sampler(ratio).samples(TRACE, Traceparent(TRACE, 5, decision)) is decision


def test_the_ratio_is_opentelemetry_s_own() -> None:
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

    ours, theirs = Sampler(0.1), TraceIdRatioBased(0.1)
    for _ in range(2000):
        trace_id = ids.new_trace_id()
        decision = theirs.should_sample(None, int(trace_id, 16), "name").decision
        assert ours.samples(trace_id, None) is decision.is_sampled()  # type: ignore[no-untyped-call]


# --- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("collector:4318", "http://collector:4318"),
        ("ftp://collector:4317", "grpc://collector:4317"),
        ("grpc://collector:4317/v1/traces", "no path"),
        ("http://key:secret@collector:4318", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://collector:4318/v1/traces", "without /v1/traces"),
    ],
)
def test_settings_that_cannot_serve_are_refused_with_the_mend(endpoint: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        tracing.check(endpoint)
    assert "secret" not in str(caught.value)


def test_an_endpoint_may_have_a_path_and_a_slash_at_its_end() -> None:
    tracing.check("https://gateway.example/otel/")
    with collecting() as collector:
        with exporting(f"{collector.url}/") as tracer:
            assert tracer is not None
            tracer.record(span())
        assert len(collector.spans) == 1


def test_without_the_packages_an_endpoint_is_refused_and_none_is_not() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None
from tandem import tracing
from tandem.errors import ConfigError
with tracing.exporting("", service="s", instance="i") as tracer:
    assert tracer is None
try:
    with tracing.exporting("http://127.0.0.1:9", service="s", instance="i"):
        raise SystemExit("it was taken")
except ConfigError as error:
    assert "tandem-serving[tracing]" in str(error), error
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_process_that_traces_nothing_imports_nothing_of_opentelemetry() -> None:
    code = """
import sys
import tandem_frontend.lifecycle, tandem_frontend.__main__
import tandem_router.__main__, tandem_router.server
import tandem_prefill_worker.__main__, tandem_decode_worker.__main__, tandem.worker.server
from tandem import tracing
with tracing.exporting("", service="s", instance="i"):
    pass
found = [name for name in sys.modules if name.startswith("opentelemetry")]
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
