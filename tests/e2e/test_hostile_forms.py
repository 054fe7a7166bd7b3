"""Forms that were made to hurt, over HTTP and over gRPC without a frontend: each ends as its
client's error or as an answer, in bounded time, and a stream beside them ends as it does alone.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import httpx
import pytest
from hostile_forms import FORMS, TAGGED
from stacks import MODEL, Served

from tandem.v1 import common_pb2, router_pb2, router_pb2_grpc
from tandem.wire.grpc import open_channel

pytestmark = [
    pytest.mark.timeout(600),
    # An aggregated worker compiles forms as those of a pair do.
    pytest.mark.parametrize(
        "served",
        ["sim", pytest.param("sglang", marks=[pytest.mark.sglang, pytest.mark.long])],
        indirect=True,
    ),
]
FIELDS = {"json_schema": "guided_json", "regex": "guided_regex", "ebnf": "guided_grammar"}
LONGEST_SECONDS = 40.0
"""A form has 30 s by the clock, and what it costs beside that is little."""
PAUSE_SECONDS = 0.1
"""Between two streams beside the forms, which would take all CPU time that the forms leave."""
PROBE: dict[str, Any] = {
    "model": MODEL,
    "prompt": "The for statement is used to",
    # Later two tokens are as likely but for rounding, which on some CPUs goes by the batch's size.
    "max_tokens": 24,
    "temperature": 0,
    "ignore_eos": True,
}
TRACES = itertools.count(1)
RAW = {
    "no number": '{"schema": {"const": NaN}}',
    "beyond all numbers": '{"schema": {"minLength": 1e999}}',
    "no object": "[]",
    "open": "{",
    "deep": '{"schema":' * 2000,
    "half a character": '{"schema": {"const": "\\ud800"}}',
    "a name twice": '{"schema": {"type": "integer"}, "schema": 5}',
    "another argument": '{"pattern": "a"}',
    "a text": '{"schema": "{}"}',
    "many values": '{"schema": {"enum": [' + "[]," * 100_000 + "0]}}",
}
"""Arguments that no frontend would send."""
WORST = {
    "chain of 4000 refs",
    "all of 59 patterns",
    "a? 15000 times",
    "3000 rules",
    "half a character",
    "NUL",
}
"""Those that a simulated worker is sent: tests/unit/logits compiles every one as it does."""
ENDED = "contradictory_request"
"""A form that passed may still end its own answer."""


def form_field(name: str, args: dict[str, Any]) -> dict[str, Any]:
    """The field of a request that asks for it."""
    if name == "choice":
        return {"guided_choice": args["texts"]}
    (value,) = args.values()
    return {FIELDS[name]: value}


def _body(name: str, args: dict[str, Any]) -> dict[str, Any]:
    common = {"model": MODEL, "prompt": "The answer is", "max_tokens": 8}
    return common | form_field(name, args)


async def _stream_text(client: httpx.AsyncClient, url: str) -> str:
    text = ""
    body = PROBE | {"stream": True}
    async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                text += "".join(choice["text"] for choice in event["choices"])
    return text


@asynccontextmanager
async def _streams_beside(client: httpx.AsyncClient, url: str) -> AsyncIterator[None]:
    """One stream after the other, each of which must be as it is alone."""
    alone = await _stream_text(client, url)
    over = asyncio.Event()

    async def streams() -> int:
        count = 0
        while not over.is_set():
            assert await _stream_text(client, url) == alone
            count += 1
            await asyncio.sleep(PAUSE_SECONDS)
        return count

    task = asyncio.create_task(streams())
    try:
        yield
    finally:
        over.set()
        count = await asyncio.wait_for(task, LONGEST_SECONDS)
    assert count


def _pids(served: Served) -> dict[str, int]:
    served.stack.check_running()
    return {name: component.pid for name, component in served.stack.components.items()}


@pytest.mark.promise("S6-184")
async def test_hostile_forms_over_http_cost_their_own_requests_alone(served: Served) -> None:
    before = _pids(served)
    dear = 0
    async with (
        httpx.AsyncClient(timeout=LONGEST_SECONDS) as client,
        _streams_beside(client, served.url),
    ):
        for name, what, args in FORMS:
            if served.engine == "sim" and what not in WORST:
                continue
            answer = await client.post(
                f"{served.url}/v1/completions",
                content=json.dumps(_body(name, args)),
                headers={"content-type": "application/json"},
            )
            if answer.status_code == 200:
                continue
            error = answer.json()["error"]
            told = (answer.status_code, error["code"])
            assert told in ((400, "invalid_request"), (400, ENDED)), f"{name}: {what}: {error}"
            dear += "too dear" in error["message"]
    assert dear
    assert _pids(served) == before


def _frames() -> Iterator[tuple[str, str, str]]:
    """A processor's name, what is sent, and its arguments as they travel."""
    for name, what, args in TAGGED:
        if "in a call" not in what or what.removesuffix(", in a call") in WORST:
            yield name, what, json.dumps(args)
    for what, text in RAW.items():
        yield "json_schema", what, text


@pytest.mark.promise("S6-184")
async def test_hostile_forms_over_grpc_cost_their_own_requests_alone(served: Served) -> None:
    before = _pids(served)
    address = served.stack.components["router"].launch.address
    async with (
        httpx.AsyncClient(timeout=LONGEST_SECONDS) as client,
        _streams_beside(client, served.url),
        open_channel(address) as channel,
    ):
        stub = router_pb2_grpc.RouterStub(channel)
        for name, what, text in _frames():
            code = await asyncio.wait_for(_generate(stub, name, text), LONGEST_SECONDS)
            assert code in ("", "invalid_request", ENDED), f"{name}: {what}: {code}"
            if what in RAW and what != "another argument":
                assert code == "invalid_request", what
    assert _pids(served) == before


async def _generate(stub: Any, name: str, args_json: str) -> str:
    """The code of the error that it ends with, if any."""
    # A space more: nothing that was told of the same form before is told again.
    processor = common_pb2.LogitsProcessor(name=name, args_json=args_json + " ")
    task = common_pb2.Task(
        trace_id=f"{next(TRACES):032x}",
        model=MODEL,
        prompt_text="The answer is",
        sampling=common_pb2.SamplingParams(max_tokens=8, temperature=0.0),
        logits=common_pb2.LogitsSpec(processors=[processor]),
        want_text=True,
    )
    request = router_pb2.GenerateRequest(task=task, timeout_ms=60_000)
    try:
        async for response in stub.Generate(request):
            if response.HasField("finish"):
                return ""
    except grpc.aio.AioRpcError as error:
        return dict(error.trailing_metadata() or ()).get("tandem-code", error.code().name)
    return "no end"
