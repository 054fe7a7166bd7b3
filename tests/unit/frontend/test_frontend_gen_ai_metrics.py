"""What OpenTelemetry's conventions call a request's times and tokens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_router import Reply
from harness import BOTH_WAYS, CHAT, MODEL, Harness, Start, say_hello, say_nothing
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics as conventions
from opentelemetry.semconv.attributes import error_attributes
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from upstream_parts import request_state, submission

from tandem.errors import WorkerLostError
from tandem_frontend.gen_ai_metrics import GenAiMetrics
from tandem_frontend.metrics import MOST_SERIES


def exported(name: str, unit: str = "") -> str:
    """As OpenTelemetry's exporter writes a name for Prometheus."""
    return name.replace(".", "_") + unit


DURATION = exported(conventions.GEN_AI_SERVER_REQUEST_DURATION, "_seconds")
FIRST_TOKEN = exported(conventions.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN, "_seconds")
OUTPUT_TOKEN = exported(conventions.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN, "_seconds")
TOKENS = exported(conventions.GEN_AI_CLIENT_TOKEN_USAGE)
ALL = (DURATION, FIRST_TOKEN, OUTPUT_TOKEN, TOKENS)
MODEL_LABEL = exported(attributes.GEN_AI_REQUEST_MODEL)
ERROR_LABEL = exported(error_attributes.ERROR_TYPE)


def labels(model: str, operation: str = "chat") -> dict[str, str]:
    return {
        exported(attributes.GEN_AI_OPERATION_NAME): operation,
        exported(attributes.GEN_AI_PROVIDER_NAME): "tandem",
        MODEL_LABEL: model,
        exported(attributes.GEN_AI_RESPONSE_MODEL): MODEL,
    }


async def scraped(frontend: Harness) -> str:
    return (await frontend.http.get(f"http://127.0.0.1:{frontend.metrics_port}/metrics")).text


@pytest.mark.promise("S5-781")
@BOTH_WAYS
async def test_a_request_is_counted_under_the_conventions_names_as_under_tandems(
    start: Start, stream: bool
) -> None:
    frontend = await start(say_hello, gen_ai_metrics=True, model_aliases=("bard",))
    assert (await frontend.chat(stream=stream, model="bard")).status_code == 200
    mine = labels("bard")
    for theirs, ours in ((DURATION, "request_seconds"), (FIRST_TOKEN, "ttft_seconds")):
        assert await frontend.metric(f"{theirs}_count", **mine) == 1
        told = await frontend.metric(f"{theirs}_sum", **mine)
        assert told == await frontend.metric(f"tandem_frontend_{ours}_sum")
    assert await frontend.metric(f"{DURATION}_count", **{ERROR_LABEL: ""}) == 1
    assert await frontend.metric(f"{OUTPUT_TOKEN}_count", **mine) == 1
    mean = await frontend.metric("tandem_frontend_itl_seconds_sum") / 2
    assert await frontend.metric(f"{OUTPUT_TOKEN}_sum", **mine) == pytest.approx(mean)
    for kind, ours in (("input", "prompt_tokens"), ("output", "completion_tokens")):
        about = {**mine, exported(attributes.GEN_AI_TOKEN_TYPE): kind}
        told = await frontend.metric(f"{TOKENS}_sum", **about)
        assert told == await frontend.metric(f"tandem_frontend_{ours}_total") > 0


async def test_a_completion_is_another_operation(start: Start) -> None:
    frontend = await start(say_hello, gen_ai_metrics=True)
    await frontend.complete()
    about = labels(MODEL, operation="text_completion")
    assert await frontend.metric(f"{DURATION}_count", **about) == 1


@pytest.mark.promise("S5-781")
@pytest.mark.parametrize("begun", [False, True])
async def test_a_failure_has_its_code_and_no_time_to_a_token(start: Start, begun: bool) -> None:
    async def fail(reply: Reply) -> None:
        if begun:
            reply.text("Hel")
            await reply.flush()
        reply.end(error=WorkerLostError("gone").to_proto())
        await reply.flush()

    frontend = await start(fail, gen_ai_metrics=True)
    await frontend.chat()
    failed = {**labels(MODEL), ERROR_LABEL: "worker_lost"}
    assert await frontend.metric(f"{DURATION}_count", **failed) == 1
    text = await scraped(frontend)
    assert f"{FIRST_TOKEN}_count" not in text
    assert f"{OUTPUT_TOKEN}_count" not in text
    assert (f"{TOKENS}_count" in text) == begun


async def test_a_client_that_goes_away_is_counted_as_such(start: Start) -> None:
    frontend = await start(say_nothing, gen_ai_metrics=True)
    async with asyncio.timeout(20):
        asking = asyncio.create_task(frontend.chat())
        await frontend.until_metric("tandem_frontend_open_requests", 1)
        asking.cancel()
        await frontend.until_metric("tandem_frontend_open_requests", 0)
    assert await frontend.metric(f"{DURATION}_count", **{ERROR_LABEL: "cancelled"}) == 1


@pytest.mark.promise("S5-781")
async def test_a_model_that_is_not_served_makes_no_series(start: Start) -> None:
    frontend = await start(say_hello, gen_ai_metrics=True)
    for number in range(3):
        assert (await frontend.chat(model=f"none-{number}")).status_code == 404
    assert "gen_ai_operation_name" not in await scraped(frontend)


@pytest.mark.promise("S5-781")
@pytest.mark.parametrize("settings", [{}, {"gen_ai_metrics": False}])
async def test_unless_switched_on_the_names_are_not_there(
    start: Start, settings: dict[str, Any]
) -> None:
    frontend = await start(say_hello, **settings)
    await frontend.http.post("/v1/chat/completions", json=CHAT)
    assert "gen_ai" not in await scraped(frontend)


@pytest.mark.promise("S5-781")
def test_of_names_that_come_and_go_the_last_share_their_series() -> None:
    registry = CollectorRegistry()
    metrics = GenAiMetrics(registry)
    for number in (*range(2 * MOST_SERIES), 0):
        state = request_state(submission(model="m"))
        metrics.count(state, operation="chat", model=f"m-{number}", began=0.0, ended=1.0)
    found = samples(registry, f"{DURATION}_count")
    assert len(found) == MOST_SERIES + 1
    assert found["m-0"] == ("_OTHER", 2), "the request never ended, and no error was told"
    assert found["_other"] == ("_OTHER", MOST_SERIES)


@pytest.mark.promise("S5-781")
def test_buckets_are_the_conventions() -> None:
    registry = CollectorRegistry()
    metrics = GenAiMetrics(registry)
    state = request_state(submission(model=MODEL))
    for offset, now in enumerate((1.0, 1.5)):
        state.row(1, offset, 1, "x", now, alone=False)
    state.open_choices = 0
    metrics.count(state, operation="chat", model=MODEL, began=0.0, ended=2.0)
    bounds = {name: [bound for bound in bounds_of(registry, name) if bound < 1e9] for name in ALL}
    assert bounds[DURATION] == pytest.approx([0.01 * 2**power for power in range(14)])
    assert bounds[TOKENS] == [4**power for power in range(14)]
    ends = {name: (len(found), found[0], found[-1]) for name, found in bounds.items()}
    assert ends[FIRST_TOKEN] == (16, 0.001, 10.0)
    assert ends[OUTPUT_TOKEN] == (13, 0.01, 2.5)


def samples(registry: CollectorRegistry, name: str) -> dict[str, tuple[str, float]]:
    """The error and the value of each series, by its model."""
    return {
        sample.labels[MODEL_LABEL]: (sample.labels[ERROR_LABEL], sample.value)
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if sample.name == name
    }


def bounds_of(registry: CollectorRegistry, name: str) -> list[float]:
    return sorted(
        {
            float(sample.labels["le"])
            for family in text_string_to_metric_families(generate_latest(registry).decode())
            for sample in family.samples
            if sample.name == f"{name}_bucket"
        }
    )
