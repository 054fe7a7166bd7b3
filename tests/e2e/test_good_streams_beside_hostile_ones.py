"""Sixteen well-behaved requests go on beside every hostile one of the other tests, and end with
exactly the text that they have alone.

The tables are those of the tests that try each case by itself; forms made to hurt have a stream
beside them in test_hostile_forms. What is left out by nature: a worker or a process of hooks that
is killed takes what it was decoding with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest
from good_streams import Chorus
from hostile_user_code import (
    CLASSIFIER_DEEDS,
    FAILING,
    ODD_VERDICTS,
    OddProcessor,
    odd_trace,
)
from stacks import MODEL, SIM_READY_SECONDS, Served, options
from test_failures import kill, nothing_is_open, until
from test_frontend_bad_input import BAD_CHATS, BAD_COMPLETIONS, BODIES, UNSUPPORTED
from test_frontend_closing import REFUSED
from test_frontend_desynchronisation import ATTACKS
from test_worker_boundary import TOO_MUCH

from tandem.cli.stack import Stack
from tandem.v1 import common_pb2, router_pb2, router_pb2_grpc, worker_pb2, worker_pb2_grpc

AT_ONCE = 12
SECONDS = 20.0
MOMENT = 0.2
"""Seconds that a hostile caller waits for an answer, which may never come."""
JSON = {"content-type": "application/json"}
TRACE = "0af7651916cd43dd8448eb211c80319c"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 6}
PROMPT = {"model": MODEL, "prompt": "x", "max_tokens": 6, "ignore_eos": True}
SAMPLING: dict[str, Any] = {"max_tokens": 6, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}
WORKER = """
logits_timeout_ms: 200
logits_processors: {odd: "hostile_user_code:OddProcessor"}
"""
PREFILL = """
hooks: {workers: 2, chain: [hostile_user_code.OddHook]}
"""
DECODE = """
hook: hostile_user_code.OddHook
classifiers:
  hold_back: none
  entries: [{path: "hostile_user_code:OddClassifier"}]
"""
Drive = Callable[[Served], Awaitable[None]]
NAN, INFINITE = float("nan"), float("inf")
TOO_MUCH_SAMPLING: list[dict[str, Any]] = [
    {"stop": ["s"] * 65},
    {"stop": ["s" * 65_537]},
    {"stop": [""]},
    {"thought": {"begin": "b", "end": "e" * 257}},
    {"thought": {"begin": "b", "end": "e", "silent": ["s"] * 17}},
    {"stop_token_ids": [1] * 1025},
    {"stop_token_ids": [2**32 - 1]},
    {"stop_words": [{"token_id": []}]},
    {"stop_words": [{"token_id": [1]}] * 1025},
    {"stop_words": [{"token_id": [1] * 205}] * 5},
    {"logprobs": 2**32 - 1},
    {"logit_bias": {1: NAN}},
    {"logit_bias": {2**32 - 1: 1.0}},
    {"max_tokens": 0},
    {"max_tokens": 2**32 - 1},
    {"temperature": NAN},
    {"top_p": -INFINITE},
    {"top_k": 0},
    {"frequency_penalty": INFINITE},
]
"""What no worker samples by."""


@pytest.fixture(scope="module")
def stack(
    model_path: Path, hook_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Two workers of each phase, and user code that does harm in all of them: hooks of prefill in
    processes of their own, those of decode in the worker.
    """
    run_dir = tmp_path_factory.mktemp("hostile")
    prefill, decode = run_dir / "prefill.yaml", run_dir / "decode.yaml"
    prefill.write_text(WORKER + PREFILL)
    decode.write_text(WORKER + DECODE)
    flags = {
        "frontend": ("--client-logits-processors=odd", "--max-connections=256"),
        "prefill_worker": (f"--config={prefill}",),
        "decode_worker": (f"--config={decode}",),
    }
    changes = {"hook_prefill": "", "hook_decode": "", "prefill": 2, "decode": 2, "flags": flags}
    made = options("sim", model_path, engine_options=("step_ms=10",), **changes)
    with Stack(made, run_dir=run_dir) as stack:
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        yield Served("sim", stack, hook_log)


# --- what is hostile ------------------------------------------------------------------------------


async def _each(calls: Iterable[Awaitable[None]]) -> None:
    """A few at once."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(call: Awaitable[None]) -> None:
        async with slots, asyncio.timeout(SECONDS):
            await call

    await asyncio.gather(*map(one, calls))


async def bad_requests(served: Served) -> None:
    """Fields that cannot be, and bodies that are no requests."""
    async with httpx.AsyncClient(base_url=served.url, timeout=SECONDS) as client:

        async def post(path: str, **sent: Any) -> None:
            response = await client.post(path, **sent)
            assert response.status_code < 500, response.text

        chats = [CHAT | fields for fields, _ in (*BAD_CHATS, *UNSUPPORTED)]
        prompts = [PROMPT | fields for fields, _ in BAD_COMPLETIONS]
        await _each(
            [
                *(post("/v1/chat/completions", json=body) for body in chats),
                *(post("/v1/completions", json=body) for body in prompts),
                *(
                    post(path, content=body, headers=JSON)
                    for body in BODIES.values()
                    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize")
                ),
            ]
        )


async def attacks_on_connections(served: Served) -> None:
    """Requests within requests, and uploads that go on behind their refusal."""
    uploads = [
        head + b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n" * 2_000 for head, _ in REFUSED.values()
    ]
    await _each(_send(served, data) for data in (*ATTACKS.values(), *uploads))


async def _send(served: Served, data: bytes) -> None:
    """Send it, wait for some of an answer at most a moment, and go away without a word."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with contextlib.suppress(ConnectionError, TimeoutError):
        writer.write(data)
        await asyncio.wait_for(reader.read(1 << 16), MOMENT)
    writer.transport.abort()


async def clients_that_go(served: Served) -> None:
    """Streams, many outputs each, whose clients leave in the middle."""
    async with httpx.AsyncClient(base_url=served.url, timeout=SECONDS) as client:

        async def leave(number: int) -> None:
            body = PROMPT | {"stream": True, "max_tokens": 500, "n": 1 + number % 8}
            async with client.stream("POST", "/v1/completions", json=body) as response:
                async for _ in response.aiter_raw():
                    return

        await _each(map(leave, range(32)))


async def odd_hooks(served: Served) -> None:
    async def ask(verdict: int, stream: bool) -> None:
        trace_id = odd_trace(verdict + 1, verdict)
        answer = await _completion(served, trace_id=trace_id, stream=stream)
        assert verdict >= len(FAILING) or "hook_failed" in answer, answer[:1000]

    await _each(ask(verdict, stream) for verdict in range(ODD_VERDICTS) for stream in (True, False))


async def odd_classifiers(served: Served) -> None:
    async def ask(do: str) -> None:
        assert '"choices"' in await _completion(served, metadata={"do": do})

    await _each(map(ask, CLASSIFIER_DEEDS))


async def odd_processors(served: Served) -> None:
    async def ask(do: str) -> None:
        chosen = [{"name": "odd", "args": {"do": do}}]
        assert "logits_processor_failed" in await _completion(served, logits_processors=chosen)

    await _each(map(ask, OddProcessor.DEEDS))


async def _completion(served: Served, *, trace_id: str = "", **fields: Any) -> str:
    """Whatever its end is, it has one."""
    headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"} if trace_id else {}
    async with httpx.AsyncClient(base_url=served.url, timeout=SECONDS) as client:
        content = json.dumps(PROMPT | fields)  # with half a character as an escape
        answer = await client.post("/v1/completions", content=content, headers=JSON | headers)
    return answer.text


async def hostile_callers(served: Served) -> None:
    """Tasks that no frontend would send, by the router's plain call and as frontends' submits."""
    async with grpc.aio.insecure_channel(_address(served, "router")) as channel:
        stub = router_pb2_grpc.RouterStub(channel)

        async def call(task: common_pb2.Task) -> None:
            request = router_pb2.GenerateRequest(task=task, n=2, timeout_ms=5_000)
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in stub.Generate(request):
                    pass

        async def connect(message: router_pb2.FrontendMessage) -> None:
            stream = stub.Connect()
            with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
                await stream.write(message)
                await asyncio.wait_for(stream.read(), MOMENT)
                await stream.done_writing()
            stream.cancel()

        messages = [router_pb2.FrontendMessage(submit=[submit]) for submit in _submits()]
        await _each([*map(call, _tasks()), *map(connect, messages)])


def _tasks() -> Iterator[common_pb2.Task]:
    for _, fields in TOO_MUCH:
        sampling = {name: value for name, value in fields.items() if name != "task"}
        yield _task(SAMPLING | sampling, **fields.get("task", {}))
    for sampling in TOO_MUCH_SAMPLING:
        yield _task(SAMPLING | sampling)


def _task(sampling: dict[str, Any], **fields: Any) -> common_pb2.Task:
    given = {"trace_id": TRACE, "model": MODEL, "prompt_token_ids": [10, 11], "want_text": True}
    return common_pb2.Task(**given | fields, sampling=common_pb2.SamplingParams(**sampling))


def _submits() -> Iterator[router_pb2.Submit]:
    good = {"first_sequence": 1, "n": 1, "model": MODEL, "timeout_ms": 5_000, "trace_id": TRACE}
    for task in _tasks():
        yield router_pb2.Submit(**good | {"task": task.SerializeToString()})
    task = _task(SAMPLING).SerializeToString()
    for fields in (
        {"first_sequence": 2**64 - 1, "n": 2},
        {"n": 2**32 - 1},
        {"n": 0},
        {"timeout_ms": 0},
        {"trace_id": "x" * 10_000},
        {"model": "m" * 100_000},
        {"task": b"\xff" * 1_000},
        {"weight": 2**32 - 1, "priority": -(2**31), "tenant": "t" * 100_000},
    ):
        yield router_pb2.Submit(**good | {"task": task} | fields)


async def strangers_at_workers(served: Served) -> None:
    """Legs that no router would start, on streams of their own."""
    for name in ("prefill_worker-0", "decode_worker-0"):
        async with grpc.aio.insecure_channel(_address(served, name)) as channel:
            stub = worker_pb2_grpc.WorkerStub(channel)
            await _each(_command(stub, command) for command in _commands())


async def _command(stub: Any, command: worker_pb2.WorkerCommand) -> None:
    stream = stub.Connect()
    with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
        await stream.write(command)
        await asyncio.wait_for(stream.read(), MOMENT)
    stream.cancel()


def _commands() -> Iterator[worker_pb2.WorkerCommand]:
    for number, task in enumerate(_tasks(), 1):
        yield _start(task.SerializeToString(), leg=number, room=number)
    task = _task(SAMPLING).SerializeToString()
    for fields in (
        {"sequence": 2**64 - 1, "destination": 2**32 - 1, "leg": 2**64 - 1},
        {"room": 2**64 - 1, "output_index": 2**32 - 1, "parent_span": 2**64 - 1},
        {"room": 0},
        {"timeout_ms": 2**32 - 1},
        {"kept_task": 9},
        {"kv_peer": "\n" * 1_000},
    ):
        yield _start(task, **fields)
    yield worker_pb2.WorkerCommand(release=range(1_000), forget=range(1_000), paired=True)


def _start(task: bytes, **fields: Any) -> worker_pb2.WorkerCommand:
    given = {"leg": 1, "sequence": 1, "room": 77, "kv_peer": "127.0.0.1:1", "timeout_ms": 500}
    return worker_pb2.WorkerCommand(start=[worker_pb2.StartLeg(**given | fields, task=task)])


def _address(served: Served, name: str) -> str:
    return served.stack.components[name].address


HOSTILE: tuple[Drive, ...] = (
    bad_requests,
    attacks_on_connections,
    clients_that_go,
    odd_hooks,
    odd_classifiers,
    odd_processors,
    hostile_callers,
    strangers_at_workers,
)


# --- and what is good -----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _singing(served: Served) -> AsyncIterator[Chorus]:
    chorus = Chorus(served.url)
    await chorus.hear_alone()
    async with asyncio.TaskGroup() as group:
        singing = group.create_task(chorus.sing())
        await chorus.once_more()
        yield chorus
        chorus.stop()
        await singing


async def test_good_streams_end_as_they_do_alone_beside_everything_hostile(stack: Served) -> None:
    pids = {name: each.pid for name, each in stack.stack.components.items()}
    async with _singing(stack) as chorus:
        assert chorus.wrong == []
        for drive in HOSTILE:
            await drive(stack)
            await chorus.once_more()
            assert chorus.wrong == [], f"beside {drive.__name__}"
            stack.stack.check_running()
    assert {name: each.pid for name, each in stack.stack.components.items()} == pids
    await until(lambda: nothing_is_open(stack), within=SECONDS, what="nothing is open")


async def test_a_lost_prefill_worker_costs_no_stream_that_it_has_handed_over(
    stack: Served,
) -> None:
    """Both are lost, one after the other, while sixteen streams are decoded."""
    long = PROMPT | {"stream": True, "max_tokens": 600, "temperature": 0}
    async with httpx.AsyncClient(base_url=stack.url, timeout=3 * SECONDS) as client:

        async def stream(begun: asyncio.Event) -> list[str]:
            async with client.stream("POST", "/v1/completions", json=long) as response:
                texts = []
                async for line in response.aiter_lines():
                    begun.set()
                    if '"text"' in line:
                        texts.append(json.loads(line[6:])["choices"][0]["text"])
                return texts

        alone = "".join(await stream(asyncio.Event()))
        begun = [asyncio.Event() for _ in range(16)]
        streams = [asyncio.create_task(stream(each)) for each in begun]
        for each in begun:
            await asyncio.wait_for(each.wait(), SECONDS)
        kill(stack, "prefill_worker-0")
        kill(stack, "prefill_worker-1")
        assert ["".join(texts) for texts in await asyncio.gather(*streams)] == [alone] * 16
