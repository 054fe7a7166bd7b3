"""Traces through the whole stack: one tree for a request, from the client's own span to the
hand-over of its KV cache.
"""

from __future__ import annotations

import itertools
import json
import re
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import switch_hook
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, http_attributes
from opentelemetry.semconv.attributes import error_attributes
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from stacks import MODEL, SIM_READY_SECONDS, Served, both_prefills_routable, options, until
from trace_collector import ERROR, INTERNAL, SERVER, UNSET, Collector, Received, collecting

from tandem.cli.plan import COMPONENTS
from tandem.cli.stack import Stack
from tandem.prefix_blocks import session_number, session_text
from tandem.tracing.otlp import FLUSH_SECONDS
from tandem_frontend.openai.reading.bodies import SMALL_BYTES

BODY: dict[str, Any] = {
    "model": MODEL,
    "prompt": "The for statement is used to",
    "max_tokens": 12,
    "temperature": 0,
    "ignore_eos": True,
}
CLIENT_SPAN = 0x00F067AA0BA902B7
STEPS = {"parse", "render", "find", "tokenize", "hash"}
"""What the reading of a chat's body consists of."""
OF_A_REQUEST = ["POST /v1/completions", "read", "parse", "tokenize", "hash"]
OF_A_SEQUENCE = ["route", "admission", "prefill", "decode", "kv_transfer"]
OF_ONE_SEQUENCE = [*OF_A_REQUEST, *OF_A_SEQUENCE]
SERVICES = {
    "POST /v1/completions": "tandem-frontend",
    "POST /v1/chat/completions": "tandem-frontend",
    **dict.fromkeys(("read", *STEPS), "tandem-frontend"),
    "route": "tandem-router",
    "admission": "tandem-router",
    "prefill": "tandem-prefill-worker",
    "decode": "tandem-decode-worker",
    "kv_transfer": "tandem-decode-worker",
}
_numbers = itertools.count(1)


def traced(collector: Collector, *, ratio: float = 0.0, **changes: Any) -> Any:
    """Options of a stack whose components export there."""
    flags = (f"--otlp-endpoint={collector.url}", f"--trace-sample-ratio={ratio}")
    return {"flags": dict.fromkeys(COMPONENTS, flags), **changes}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def served(
    collector: Collector,
    model_path: Path,
    hook_log: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    """Traces nothing by itself: only what a client's traceparent says is sampled."""
    run_dir = tmp_path_factory.mktemp("traced")
    changes = traced(collector)
    logs = ("--log-format=json", "--log-level=debug")
    changes["flags"] = {name: (*flags, *logs) for name, flags in changes["flags"].items()}
    with Stack(options("sim", model_path, **changes), run_dir=run_dir) as stack:
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        yield Served("sim", stack, hook_log)


def new_trace() -> str:
    """Of which the switch hook makes nothing."""
    return f"{0x5EED:016x}{time.time_ns() & 0xFFFFFFFF:08x}{next(_numbers):08x}"


def ask(
    served: Served,
    trace_id: str,
    *,
    sampled: bool = True,
    path: str = "completions",
    headers: Mapping[str, str] | None = None,
    **body: Any,
) -> httpx.Response:
    parent = f"00-{trace_id}-{CLIENT_SPAN:016x}-{'01' if sampled else '00'}"
    headers = {"traceparent": parent, **(headers or {})}
    url = f"{served.url}/v1/{path}"
    given = {name: value for name, value in (BODY | body).items() if value is not None}
    return httpx.post(url, json=given, headers=headers, timeout=60)


def until_spans(served: Served, component: str, outcome: str) -> None:
    """Wait until its exporter has read an answer, or given a batch up."""
    name = "tandem_trace_spans_total"
    until(lambda: served.metric(component, name, outcome=outcome), component)


def named(spans: list[Received], name: str) -> Received:
    (found,) = [span for span in spans if span.name == name]
    return found


def spans_of(
    served: Served, collector: Collector, trace_id: str = "", *, count: int = 0, **asked: Any
) -> list[Received]:
    """Of a request that is answered: those of one sequence, or `count`."""
    trace_id = trace_id or new_trace()
    answer = ask(served, trace_id, **asked)
    assert answer.status_code == 200, answer.text
    return collector.wait(trace_id, count or len(OF_ONE_SEQUENCE))


def check_tree(spans: list[Received]) -> None:
    """Each span hangs where it belongs, was made by whom it should be, and lies in its parent."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    parents = {"route": "POST", "prefill": "route", "decode": "route", "kv_transfer": "decode"}
    parents |= {"read": "POST", "admission": "route", **dict.fromkeys(STEPS, "read")}
    inside = {"read", "admission", "kv_transfer", *STEPS}
    for span in spans:
        assert span.service == SERVICES[span.name]
        assert span.kind == (INTERNAL if span.name in inside else SERVER)
        if span.name.startswith("POST"):
            assert span.parent_id == CLIENT_SPAN
            continue
        parent = by_id[span.parent_id]
        assert parent.name.startswith(parents[span.name])
        assert parent.began <= span.began + 1_000_000  # one machine, but four clocks' offsets
        if span.name != "prefill":  # it may hear of its acknowledgement after the last token
            assert span.ended <= parent.ended + 5_000_000


@pytest.mark.promise("S5-131")
@pytest.mark.parametrize("stream", [True, False])
def test_a_request_is_one_tree_with_all_its_hops(
    served: Served, collector: Collector, stream: bool
) -> None:
    spans = spans_of(served, collector, stream=stream)
    assert sorted(span.name for span in spans) == sorted(OF_ONE_SEQUENCE)
    check_tree(spans)
    assert all(span.status == UNSET for span in spans)

    request = named(spans, "POST /v1/completions")
    prompt_tokens = request.attributes["gen_ai.usage.input_tokens"]
    assert prompt_tokens > 0
    seconds = request.attributes.pop("gen_ai.response.time_to_first_chunk")
    assert 0 < seconds <= (request.ended - request.began) / 1e9
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "tandem",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.stream": stream,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.max_tokens": 12,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.usage.input_tokens": prompt_tokens,
        "gen_ai.usage.output_tokens": 12,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.model": MODEL,
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert [name for name, _ in request.events] == ["submitted", "first_token"]

    route = named(spans, "route")
    workers = {
        "tandem.prefill.worker": "prefill_worker-0",
        "tandem.decode.worker": "decode_worker-0",
        "tandem.way": "pair",
        "tandem.way.reason": "only",
    }
    assert route.attributes.pop("tandem.queue.seconds") >= 0
    assert route.attributes == {
        "gen_ai.request.model": MODEL,
        "tandem.output_index": 0,
        "tandem.outcome": "finished",
        "tandem.retries": 0,
        **workers,
    }
    assert route.events == [("pair_chosen", workers)]

    prefill, decode = named(spans, "prefill"), named(spans, "decode")
    for leg, tokens in ((prefill, 1), (decode, 12)):
        about = leg.attributes
        assert about["tandem.worker"] == f"{leg.name}_worker-0"
        assert about["tandem.outcome"] == "finished"
        assert about["gen_ai.usage.input_tokens"] == prompt_tokens
        assert about["gen_ai.usage.output_tokens"] == tokens
        assert about["tandem.hook.emitted"] == tokens
        assert about["tandem.hook.suppressed"] == about["tandem.hook.terminated"] == 0
        assert 0 < about["tandem.hook.seconds"] <= (leg.ended - leg.began) / 1e9
        assert about["tandem.intake.cpu_seconds"] > 0
        assert about["tandem.engine_input.cpu_seconds"] > 0
        assert 0 < about["tandem.first_token.seconds"] <= (leg.ended - leg.began) / 1e9
        assert [name for name, _ in leg.events] == ["first_token"]
    assert decode.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert decode.attributes["tandem.withheld"] is False

    admission = named(spans, "admission")
    assert admission.parent_id == route.span_id
    assert admission.began <= admission.ended <= prefill.began + 1_000_000

    transfer = named(spans, "kv_transfer")
    assert transfer.attributes["tandem.kv.bytes"] > 0
    assert transfer.attributes["tandem.kv.transport"].startswith("nixl")
    assert transfer.attributes["tandem.kv.seconds"] == pytest.approx(
        (transfer.ended - transfer.began) / 1e9, abs=1e-5
    )
    assert transfer.ended == pytest.approx(decode.moments[0], abs=1e4)


def test_every_output_of_a_request_has_its_own_branch(served: Served, collector: Collector) -> None:
    of_two = [*OF_A_REQUEST, *OF_A_SEQUENCE, *OF_A_SEQUENCE]
    spans = spans_of(served, collector, count=len(of_two), n=2)
    assert sorted(span.name for span in spans) == sorted(of_two)
    check_tree(spans)
    for name in ("route", "prefill", "decode"):
        found = [span for span in spans if span.name == name]
        assert sorted(span.attributes["tandem.output_index"] for span in found) == [0, 1]
    request = named(spans, "POST /v1/completions")
    assert request.attributes["gen_ai.response.finish_reasons"] == ["length", "length"]
    assert request.attributes["gen_ai.usage.output_tokens"] == 24


@pytest.mark.promise("S5-655")
@pytest.mark.parametrize("size", [0, SMALL_BYTES], ids=["on the loop", "in a process"])
def test_what_a_chat_s_reading_took_is_told_by_steps(
    served: Served, collector: Collector, size: int
) -> None:
    began = f"{size} " + "a secret word " * 150
    history = [{"role": "user", "content": began}, {"role": "assistant", "content": began}]
    known = []
    for turn in (history, [*history, {"role": "user", "content": "and now?"}]):
        about = {"messages": turn, "prompt": None, "user": "u" * size}
        count = len(OF_ONE_SEQUENCE) + 2
        spans = spans_of(served, collector, count=count, path="chat/completions", **about)
        check_tree(spans)
        request = named(spans, "POST /v1/chat/completions")
        assert request.attributes["http.route"] == "/v1/chat/completions"
        assert request.attributes["gen_ai.operation.name"] == "chat"
        read = named(spans, "read")
        known.append(read.attributes["tandem.known_tokens"])
        assert read.attributes["tandem.body.bytes"] > size + 2 * len(began)
        steps = [span for span in spans if span.parent_id == read.span_id]
        assert {span.name for span in steps} == STEPS
        assert all(read.began <= span.began <= span.ended <= read.ended for span in steps)
        ends = [span.ended for span in steps]
        assert ends == sorted(ends)
        assert sum(span.attributes["tandem.cpu.seconds"] for span in steps) > 0
    assert known[0] == 0
    assert known[1] > len(began) / 4
    total = sum(
        served.metric("frontend", "tandem_frontend_reading_cpu_seconds_total", step=step)
        for step in STEPS
    )
    assert total > 0


@pytest.mark.promise("S6-156")
def test_no_span_holds_a_word_of_prompt_or_output(served: Served, collector: Collector) -> None:
    trace_id = new_trace()
    prompt = "Xylophone quartet wombat"
    answer = ask(served, trace_id, prompt=prompt, stop=["zyzzyva"])
    output = answer.json()["choices"][0]["text"]
    said = str(collector.wait(trace_id, len(OF_ONE_SEQUENCE)))
    assert "wombat" not in said
    assert "zyzzyva" not in said
    assert output.strip()
    assert output.strip() not in said


def test_a_hook_s_terminate_is_told_by_verdicts_and_finish(
    served: Served, collector: Collector
) -> None:
    at_third = switch_hook.trace(switch_hook.TERMINATE_THIRD, "decode")
    spans = spans_of(served, collector, at_third, stream=True)
    check_tree(spans)
    assert named(spans, "route").attributes["tandem.outcome"] == "terminated"
    decode = named(spans, "decode")
    assert decode.attributes["tandem.outcome"] == "terminated"
    assert decode.attributes["tandem.hook.terminated"] == 1
    assert decode.attributes["tandem.hook.emitted"] == 2
    assert decode.attributes["tandem.withheld"] is True
    assert decode.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert all(span.status == UNSET for span in spans)


@pytest.mark.promise("S5-780")
@pytest.mark.parametrize(
    ("fields", "headers", "session"),
    [
        ({"user": "Ada"}, {"x-session-id": "Ada's"}, "Ada's"),
        ({"user": "Ada", "prompt_cache_key": "Ada's"}, {}, "Ada's"),
        ({"nvext": {"session_control": {"session_id": "Ada's"}}}, {}, "Ada's"),
        ({"user": "Ada"}, {}, None),
        ({"user": "Ada" + " " * SMALL_BYTES}, {}, None),
    ],
    ids=["header", "prompt_cache_key", "nvext", "user", "user, read in a process"],
)
def test_a_conversation_has_an_id_and_nobody_is_named(
    served: Served,
    collector: Collector,
    fields: dict[str, Any],
    headers: dict[str, str],
    session: str | None,
) -> None:
    spans = spans_of(served, collector, headers=headers, **fields)
    told = named(spans, "POST /v1/completions").attributes.get("gen_ai.conversation.id")
    assert told == (session_text(session_number(session)) if session else None)
    number = session_number(fields["user"]) if "user" in fields else 0
    for span in spans:
        values = list(map(str, span.attributes.values()))
        assert not [each for each in values if "Ada" in each or each == session_text(number)]


@pytest.mark.parametrize("stream", [True, False])
def test_a_failure_is_an_error_on_every_span_that_it_ended(
    served: Served, collector: Collector, stream: bool
) -> None:
    trace_id = switch_hook.trace(switch_hook.RAISE_SECOND, "decode")
    answer = ask(served, trace_id, stream=stream)
    spans = collector.wait(trace_id, len(OF_ONE_SEQUENCE))
    check_tree(spans)
    request = named(spans, "POST /v1/completions")
    assert request.attributes["http.response.status_code"] == answer.status_code
    for span in (request, named(spans, "route"), named(spans, "decode")):
        assert span.status == ERROR
        assert span.message
        assert span.attributes["error.type"] == "hook_failed"
    assert named(spans, "prefill").status == UNSET
    assert named(spans, "kv_transfer").status == UNSET


def test_a_client_s_mistake_is_a_span_of_its_own_and_no_error(
    served: Served, collector: Collector
) -> None:
    trace_id = new_trace()
    assert ask(served, trace_id, max_tokens=-1).status_code == 400
    (request,) = collector.wait(trace_id, 1)
    assert request.status == UNSET
    assert request.attributes["http.response.status_code"] == 400
    assert request.attributes["error.type"] == "invalid_request"
    assert "gen_ai.request.model" not in request.attributes


def test_a_retry_is_an_event_and_both_attempts_hang_on_the_route(
    collector: Collector, model_path: Path, hook_log: Path, tmp_path: Path
) -> None:
    """With requests that are traced by the frontend's own ratio, and come after a canary."""
    changes = traced(collector, ratio=1.0, prefill=2, hook_prefill="", hook_decode="")
    changes["flags"]["router"] += ("--prefill-policy=round_robin",)  # one of two meets the fault
    changes["flags"]["prefill_worker-0"] = ("--engine-options=fault_corrupt=nth:2",)
    with Stack(options("sim", model_path, **changes), run_dir=tmp_path) as stack:
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        served = Served("sim", stack, hook_log)
        both_prefills_routable(served)
        url = f"{stack.url}/v1/completions"
        answers = [httpx.post(url, json=BODY, timeout=60) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert served.metric("router", "tandem_router_retries_total") == 1
        traces = [answer.headers["x-tandem-trace-id"] for answer in answers]
        spans = max(
            (collector.wait(each, len(OF_ONE_SEQUENCE), settle=1.5) for each in traces), key=len
        )
    by_id = {span.span_id: span for span in spans}
    request, route = named(spans, "POST /v1/completions"), named(spans, "route")
    assert request.parent_id == 0
    assert route.parent_id == request.span_id
    assert [name for name, _ in route.events] == ["pair_chosen", "retry", "pair_chosen"]
    assert route.events[1][1] == {"error.type": "kv_corrupt"}
    assert route.attributes["tandem.retries"] == 1
    assert route.attributes["tandem.outcome"] == "finished"
    assert route.attributes["tandem.prefill.worker"] == "prefill_worker-1"
    decodes = [span for span in spans if span.name == "decode"]
    assert [span.status for span in decodes] == [ERROR, UNSET]
    prefills = [span for span in spans if span.name == "prefill"]
    workers = [span.attributes["tandem.worker"] for span in prefills]
    assert workers == ["prefill_worker-0", "prefill_worker-1"]
    assert all(by_id[span.parent_id] is route for span in (*decodes, *prefills))


@pytest.mark.promise("S5-131")
def test_what_is_not_sampled_exports_nothing(served: Served, collector: Collector) -> None:
    quiet, none, loud = new_trace(), new_trace(), new_trace()
    assert ask(served, quiet, sampled=False).status_code == 200
    url = f"{served.url}/v1/completions"
    plain = httpx.post(url, json=BODY, headers={"traceparent": f"00-{none}"}, timeout=60)
    assert plain.status_code == 200
    own = plain.headers["x-tandem-trace-id"]
    assert own != none  # malformed: a trace of its own, and the ratio here is 0
    spans_of(served, collector, loud)  # exported after them
    assert collector.of(quiet) == collector.of(own) == []


def test_sampled_requests_are_exemplars_of_the_histograms(
    served: Served, collector: Collector
) -> None:
    trace_id = new_trace()
    spans_of(served, collector, trace_id, stream=True)
    ask(served, new_trace(), sampled=False)
    for component, name in (
        ("frontend", "tandem_frontend_ttft_seconds"),
        ("frontend", "tandem_frontend_request_seconds"),
        ("frontend", "tandem_frontend_itl_seconds"),
        ("decode_worker-0", "tandem_kv_transfer_seconds"),
    ):
        assert trace_id in exemplars(served, component, name), name


def exemplars(served: Served, component: str, name: str) -> set[str]:
    """The trace ids beside a histogram's buckets, as an OpenMetrics scrape has them."""
    address = served.stack.components[component].launch.metrics
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    asked = urllib.request.Request(f"http://{address}/metrics", headers=accept)
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        text = answer.read().decode()
    (family,) = [each for each in text_string_to_metric_families(text) if each.name == name]
    found = [sample for sample in family.samples if sample.exemplar is not None]
    for sample in found:
        assert sample.exemplar is not None
        assert sample.exemplar.value <= float(sample.labels["le"])
        assert re.fullmatch("[0-9a-f]{32}", sample.exemplar.labels["trace_id"])
    return {sample.exemplar.labels["trace_id"] for sample in found if sample.exemplar}


def test_every_component_logs_a_request_s_end_with_its_trace_id(
    served: Served, collector: Collector
) -> None:
    trace_id = new_trace()
    spans_of(served, collector, trace_id)
    for component, words in (
        ("frontend", "request ended"),
        ("router", "request ended"),
        ("prefill_worker-0", "leg ended"),
        ("decode_worker-0", "leg ended"),
    ):
        text = served.stack.components[component].log.read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        of_ours = [line["message"] for line in lines if line.get("trace_id") == trace_id]
        assert of_ours == [words], component


def test_names_that_conventions_have_are_those_of_the_conventions(
    served: Served, collector: Collector
) -> None:
    spans_of(served, collector)
    used = {name for span in collector.spans for name in span.attributes}
    known = {
        value
        for module in (gen_ai_attributes, http_attributes, error_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    assert {name for name in used if not name.startswith("tandem.")} <= known
    assert "gen_ai.usage.output_tokens" in used


def test_a_collector_that_is_away_costs_requests_nothing_and_is_logged_once(
    model_path: Path, hook_log: Path, tmp_path: Path
) -> None:
    nobody = Collector(port=9)
    changes = traced(nobody, ratio=1.0, hook_prefill="", hook_decode="")
    with Stack(options("sim", model_path, **changes), run_dir=tmp_path) as stack:
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        served = Served("sim", stack, hook_log)
        logs = [component.log for component in stack.components.values()]
        for _ in range(5):
            assert ask(served, new_trace()).status_code == 200
        for component in stack.components:
            until_spans(served, component, "dropped")
        began = time.monotonic()
        assert stack.stop() == []  # nobody had to be killed
        took = time.monotonic() - began
    assert took < len(logs) * FLUSH_SECONDS  # which each would wait for that collector
    for log in logs:
        text = log.read_text(encoding="utf-8")
        assert text.count("the trace collector takes no spans") == 1
        assert "opentelemetry" not in text  # none of its own lines, and no traceback of it


def test_spans_that_were_exported_are_counted(served: Served, collector: Collector) -> None:
    spans_of(served, collector)
    for component in served.stack.components:
        until_spans(served, component, "exported")
        assert served.metric(component, "tandem_trace_spans_total", outcome="dropped") == 0
