"""Each request is counted against the latency objectives, exactly once and exactly."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fake_router import Reply
from harness import CHAT, Start, say_hello
from prometheus_client import CollectorRegistry
from upstream_parts import request_state, submission

from tandem.errors import WorkerLostError
from tandem_frontend.metrics import Slo, SloCounts

COUNTS = "tandem_frontend_slo_requests_total"
NEVER, ALWAYS = 1e-9, 1e3


async def _withhold_all(reply: Reply) -> None:
    reply.end(stop_reason="a hook")
    await reply.flush()


@pytest.mark.parametrize(
    ("ttft", "itl", "counted"),
    [
        (ALWAYS, NEVER, ("met", "missed")),
        (NEVER, ALWAYS, ("missed", "met")),
    ],
)
async def test_a_request_is_counted_by_what_it_met(
    start: Start, ttft: float, itl: float, counted: tuple[str, str]
) -> None:
    frontend = await start(say_hello, slo_ttft_seconds=ttft, slo_itl_seconds=itl)
    for objective, seconds in (("ttft", ttft), ("itl", itl)):
        assert await frontend.metric("tandem_frontend_slo_seconds", objective=objective) == seconds
    for times, stream in ((1, False), (2, True)):
        await frontend.chat(stream=stream)
        assert await frontend.metric(COUNTS) == times
        assert await frontend.metric(COUNTS, ttft=counted[0], itl=counted[1]) == times


async def test_a_request_that_failed_is_not_counted(start: Start) -> None:
    async def fail(reply: Reply) -> None:
        reply.end(error=WorkerLostError("gone").to_proto())
        await reply.flush()

    frontend = await start(fail)
    assert (await frontend.chat()).status_code == 502
    assert await frontend.metric(COUNTS) == 0
    lost = "tandem_frontend_requests_total"
    assert await frontend.metric(lost, outcome="worker_lost", fault="server") == 1


async def test_a_request_whose_whole_output_was_withheld_met_the_time_between_tokens(
    start: Start,
) -> None:
    frontend = await start(_withhold_all, slo_itl_seconds=NEVER)
    await frontend.chat()
    assert await frontend.metric(COUNTS, itl="met") == 1


@pytest.mark.promise("S6-320")
async def test_a_comment_is_no_output(start: Start) -> None:
    async def script(reply: Reply) -> None:
        await go_on.wait()
        reply.text("Hello")
        reply.finish(completion_tokens=1)

    go_on, clock = asyncio.Event(), asyncio.get_running_loop().time
    frontend = await start(script, sse_keep_alive_seconds=0.05, slo_ttft_seconds=0.07)
    asked = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    async with frontend.http.stream("POST", "/v1/chat/completions", json=asked) as response:
        lines = (line async for line in response.aiter_lines() if line)
        assert await anext(lines) == ": keep-alive"
        begun = clock()
        for _ in range(3):
            assert await anext(lines) == ": keep-alive"
        silent = clock() - begun
        go_on.set()
        rest = [line async for line in lines if line.startswith("data: {")]
    assert json.loads(rest[-1].removeprefix("data: "))["usage"]["completion_tokens"] == 1
    assert await frontend.metric("tandem_frontend_completion_tokens_total") == 1
    assert await frontend.metric("tandem_frontend_ttft_seconds_sum") >= 0.05 + silent
    assert await frontend.metric("tandem_frontend_itl_seconds_count") == 0
    assert await frontend.metric(COUNTS, ttft="missed", itl="met") == 1


async def test_an_outcome_says_whose_fault_it_was(start: Start) -> None:
    frontend = await start(say_hello, max_open_requests=1)
    requests = "tandem_frontend_requests_total"
    for outcome, fault in (
        ("success", "none"),
        ("invalid_request", "client"),
        ("cancelled", "client"),
        ("queue_full", "server"),
        ("hook_failed", "server"),
        ("deadline_exceeded", "server"),
    ):
        assert await frontend.metric(requests, outcome=outcome, fault=fault) == 0


def test_an_objective_that_is_just_met_is_met() -> None:
    registry = CollectorRegistry()
    counts = SloCounts(Slo(ttft=1.0, itl=0.1), registry)
    counts.count(ttft_seconds=1.0, itl_seconds=0.1)
    counts.count(ttft_seconds=1.01, itl_seconds=0.1)

    def count(ttft: str) -> Any:
        return registry.get_sample_value(COUNTS, {"ttft": ttft, "itl": "met"})

    assert (count("met"), count("missed")) == (1, 1)


def test_the_time_between_tokens_is_a_mean_over_tokens_not_over_messages() -> None:
    state = request_state(submission())
    for offset, (count, now) in enumerate(((1, 10.0), (1, 10.1), (8, 10.9))):
        assert state.row(1, offset, count, "x", now, alone=False)
    assert state.mean_itl_seconds == pytest.approx(0.9 / 9)


def test_of_several_choices_the_slowest_counts() -> None:
    state = request_state(submission(n=2))
    for sequence, offset, now in ((1, 0, 10.0), (2, 0, 10.0), (1, 1, 10.1), (2, 1, 10.4)):
        assert state.row(sequence, offset, 1, "x", now, alone=False)
    assert state.mean_itl_seconds == pytest.approx(0.4)


def test_one_token_has_no_time_between_tokens() -> None:
    state = request_state(submission())
    assert state.mean_itl_seconds == 0
    assert state.row(1, 0, 1, "x", 10.0, alone=False)
    assert state.mean_itl_seconds == 0
