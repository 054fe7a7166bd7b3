"""No request keeps the frontend's event loop: what is large is read in a process of its own, and a
large answer is written in slices.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_router import Reply
from harness import BOTH_WAYS, COMPLETION, Start, error_of, events, key_line, until

from tandem.errors import ContextLengthError
from tandem.pool.process import ChildProcess, LostError
from tandem.upstream.answer import Row
from tandem.v1 import common_pb2, router_pb2
from tandem_frontend.config import FrontendConfig
from tandem_frontend.http.messages import Call
from tandem_frontend.openai import chat_template, slices, writers
from tandem_frontend.openai.asked import Origin
from tandem_frontend.openai.preprocessor import Preprocessor
from tandem_frontend.openai.reading import readers, wire
from tandem_frontend.openai.reading.bodies import SMALL_BYTES
from tandem_frontend.openai.reading.process import NICENESS
from tandem_frontend.openai.reading.reader import Reader
from tandem_frontend.openai.requests import ChatMessage, ChatRequest, CompletionRequest
from tandem_frontend.openai.tokenizer import ModelTokenizer

LARGE = "x" * SMALL_BYTES
"""As `user`, which nobody looks at, it makes a body large."""
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
    "/v1/completions": {"prompt": "Hello"},
    "/tokenize": {"prompt": "Hello " * SMALL_BYTES},
    "/detokenize": {"tokens": [300] * SMALL_BYTES},
}


async def hello(reply: Reply) -> None:
    reply.text("hello")
    reply.finish()


def _broken(*arguments: object, **named: object) -> Any:
    raise AssertionError("a large body is read on the event loop")


@pytest.mark.promise("S6-185")
@pytest.mark.parametrize("path", PATHS)
async def test_a_large_body_is_read_in_another_process(
    start: Start, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend = await start(hello)
    monkeypatch.setattr(Preprocessor, "submission", _broken)
    monkeypatch.setattr(Reader, "read", _broken)
    body = {"model": "tandem-tiny", **PATHS[path]}
    if path.startswith("/v1"):
        small = await frontend.http.post(path, json=body)
        assert small.status_code == 500  # it is read here
        body["user"] = LARGE
    assert (await frontend.http.post(path, json=body)).status_code == 200


@pytest.mark.promise("S6-185")
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3, "seed": 7, "stop": ["a", "b"], "logit_bias": {"5": 1.5}, "logprobs": 2},
        {"guided_json": {"type": "object"}, "metadata": {"k": "v"}},
        {"prompt": [[5, 6], [7]], "echo": True},
        {"detokenize": False, "priority": 3, "timeout": 5},
    ],
    ids=str,
)
async def test_what_is_made_of_a_large_body_is_what_a_small_one_gives(
    start: Start, fields: dict[str, Any]
) -> None:
    tasks: list[tuple[str, int, int]] = []

    async def script(reply: Reply) -> None:
        reply.task.trace_id = ""
        tasks.append((str(reply.task), reply.submit.n, reply.submit.prompt_tokens))
        for output in range(reply.submit.n):
            reply.finish(output=output)

    frontend = await start(script)
    frontend.router.change_fleet(frontend.fleet(logits_processors=("json_schema",)))
    await until(lambda: frontend.complete(guided_json={}), lambda told: told.status_code == 200)
    tasks.clear()
    answers = []
    for size in ("", LARGE):
        answer = (await frontend.complete(**fields, user=size)).json()
        answers.append([answer["choices"], answer["usage"]])
    half = len(tasks) // 2
    assert sorted(tasks[:half]) == sorted(tasks[half:])
    assert answers[0] == answers[1]


@pytest.mark.promise("S6-185")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 3}, (400, "invalid_request", "temperature")),
        ({"tools": [{}]}, (400, "unsupported_parameter", "tools")),
        ({"model": "other"}, (404, "model_not_found", "model")),
        ({"max_tokens": 10_000}, (400, "context_length_exceeded", "prompt")),
    ],
)
async def test_a_large_body_that_is_at_fault_is_told_so_as_a_small_one(
    start: Start, fields: dict[str, Any], expected: tuple[int, str, str]
) -> None:
    frontend = await start(hello)
    for size in ("", LARGE):
        assert error_of(await frontend.complete(**fields, user=size)) == expected


@pytest.mark.promise("S6-185")
@pytest.mark.parametrize("limits", [{"read_seconds": 2}, {"read_memory_mb": 16}], ids=str)
async def test_a_body_that_takes_more_than_it_may_costs_its_own_request(
    start: Start, limits: dict[str, Any]
) -> None:
    frontend = await start(hello, **limits)
    assert (await frontend.complete(user=LARGE)).status_code == 200
    dear = frontend.http.post("/tokenize", json={"prompt": "Hello " * 2_000_000})
    others = [frontend.complete(user=LARGE) for _ in range(3)]
    refused, *answered = await asyncio.gather(dear, *others)
    assert error_of(refused) == (413, "request_too_large", None)
    assert [each.status_code for each in answered] == [200] * 3
    large = await frontend.http.post("/tokenize", json={"prompt": "Hello", "model": LARGE * 20})
    assert error_of(large)[1] == "model_not_found"  # by a process that was started anew


@pytest.mark.promise("S6-185")
async def test_a_reader_that_others_killed_is_started_anew(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[ChildProcess] = []
    original = ChildProcess.start

    async def recorded(process: ChildProcess, *arguments: Any, **named: Any) -> None:
        started.append(process)
        await original(process, *arguments, **named)

    monkeypatch.setattr(ChildProcess, "start", recorded)
    frontend = await start(hello)
    assert (await frontend.complete(user=LARGE)).status_code == 200
    assert started[0].pid is not None
    os.kill(started[0].pid, signal.SIGKILL)
    await until(lambda: started[0].has_ended)
    assert (await frontend.complete(user=LARGE)).status_code == 200
    assert len(started) == 2


@pytest.mark.promise("S6-185")
async def test_a_reader_that_hangs_is_ended_and_one_is_started_anew(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend = await start(hello)
    assert (await frontend.complete(user=LARGE)).status_code == 200
    with monkeypatch.context() as patch:

        async def ask(process: ChildProcess, payload: bytes, **named: Any) -> bytes:
            hung.append(process)
            raise LostError("it does not answer")

        hung: list[ChildProcess] = []
        patch.setattr(ChildProcess, "ask", ask)
        assert error_of(await frontend.complete(user=LARGE))[1] == "request_too_large"
    assert hung[0].has_ended
    assert (await frontend.complete(user=LARGE)).status_code == 200


@pytest.mark.promise("S6-185")
async def test_middling_bodies_do_not_wait_for_large_ones(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend = await start(hello)
    holding, held, original = asyncio.Event(), asyncio.Event(), ChildProcess.ask

    async def ask(process: ChildProcess, payload: bytes, **named: Any) -> bytes | bytearray:
        if len(payload) > readers.MIDDLING_BYTES:
            holding.set()
            await held.wait()
        return await original(process, payload, **named)

    monkeypatch.setattr(ChildProcess, "ask", ask)
    async with asyncio.TaskGroup() as group:
        larger = "x" * (readers.MIDDLING_BYTES + 1)
        waiting = group.create_task(frontend.complete(user=larger))
        await holding.wait()
        assert (await frontend.complete(user=LARGE)).status_code == 200
        assert not waiting.done()
        held.set()
    assert waiting.result().status_code == 200


@pytest.mark.promise("S6-185")
async def test_too_many_large_bodies_do_not_wait_for_ever(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend = await start(hello, read_seconds=0.2, read_processes=1)
    held = asyncio.Event()

    async def ask(*arguments: object, **named: object) -> bytes:
        await held.wait()
        return b""

    monkeypatch.setattr(ChildProcess, "ask", ask)
    async with asyncio.TaskGroup() as group:
        both = [group.create_task(frontend.complete(user=LARGE)) for _ in range(2)]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        held.set()
    codes = [error_of(each.result())[1] for each in both]
    assert sorted(codes) == ["internal_error", "queue_full"]  # the other says what it should not


@pytest.mark.promise("S5-651")
async def test_80_bodies_of_one_key_are_all_read_and_another_keys_has_its_turn_between_them(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_text(key_line("a") + key_line("b"))
    held, read, original = asyncio.Event(), list[str](), ChildProcess.ask

    async def ask(process: ChildProcess, payload: bytes, **named: Any) -> bytes | bytearray:
        if keys := [key for key in "ab" if key.encode() * SMALL_BYTES in payload]:
            read.extend(keys)
            await held.wait()
        return await original(process, payload, **named)

    monkeypatch.setattr(ChildProcess, "ask", ask)
    frontend = await start(hello, api_keys_file=str(path))

    async def send(key: str, size: int = SMALL_BYTES) -> int:
        headers = {"authorization": f"Bearer {key}"}
        body = COMPLETION | {"user": key * size}
        answer = await frontend.http.post("/v1/completions", json=body, headers=headers)
        return answer.status_code

    async with asyncio.TaskGroup() as group:
        sent = [group.create_task(send("a")) for _ in range(80)]
        await frontend.until_metric("tandem_frontend_waiting_bodies", 78)
        sent.append(group.create_task(send("b")))
        await frontend.until_metric("tandem_frontend_waiting_bodies", 79, size="middling")
        assert await send("b", 100) == 200  # a small body waits for none
        held.set()
    assert [each.result() for each in sent] == [200] * 81
    assert len(read) == 81
    assert read.index("b") <= 3  # behind the two that are read, and the one whose turn was next


@pytest.mark.promise("S5-651")
async def test_a_process_that_reads_leaves_the_cores_to_the_event_loop(start: Start) -> None:
    frontend = await start(hello)
    for size in (SMALL_BYTES, readers.MIDDLING_BYTES):
        assert (await frontend.complete(user="x" * size)).status_code == 200
    ours = psutil.Process()
    reading = [each for each in ours.children() if wire.PROGRAM in each.cmdline()]
    assert len(reading) == 2
    assert [each.nice() for each in reading] == [min(19, ours.nice() + NICENESS)] * 2


@pytest.mark.promise("S5-652")
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("size", ["middling", "large"])
async def test_a_body_that_kills_its_process_costs_no_other_that_waits_for_it(
    start: Start, size: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, original, ask = list[ChildProcess](), ChildProcess.start, ChildProcess.ask
    bad, all_wait = "the bad one " * 2000, asyncio.Event()
    small = SMALL_BYTES if size == "middling" else readers.MIDDLING_BYTES

    async def recorded(process: ChildProcess, *arguments: Any, **named: Any) -> None:
        started.append(process)
        await original(process, *arguments, **named)

    async def killed(process: ChildProcess, payload: bytes, **named: Any) -> bytes | bytearray:
        if bad.encode() in payload:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)
            reply = asyncio.ensure_future(ask(process, payload, **named))
            await frontend.until_metric("tandem_frontend_waiting_bodies", 9 - processes)
            os.kill(process.pid, signal.SIGKILL)
            all_wait.set()
            return await reply
        if b"x" * small in payload:
            await all_wait.wait()
        return await ask(process, payload, **named)

    monkeypatch.setattr(ChildProcess, "start", recorded)
    monkeypatch.setattr(ChildProcess, "ask", killed)
    frontend = await start(hello, read_processes=processes)
    async with asyncio.TaskGroup() as group:
        dear = group.create_task(frontend.complete(prompt=bad, user="x" * small))
        others = [group.create_task(frontend.complete(user="x" * small)) for _ in range(8)]
    assert error_of(dear.result()) == (413, "request_too_large", None)
    assert [each.result().status_code for each in others] == [200] * 8
    assert 2 <= len(started) <= processes + 1


@pytest.mark.promise("S6-185")
@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(
    model_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = ModelTokenizer(model_path)
    config = FrontendConfig(model_path=str(model_path))
    preprocessor = Preprocessor(config, tokenizer, chat_template.load(model_path))
    monkeypatch.setattr(ModelTokenizer, "encode", _broken)
    text = "a" * (tokenizer.context_length * tokenizer.longest_token + 1)
    request: ChatRequest | CompletionRequest
    if kind == "chat":
        messages = [ChatMessage(role="user", content=text)]
        request = ChatRequest(model="tandem-tiny", messages=messages)
    else:
        request = CompletionRequest(model="tandem-tiny", prompt=text)
    with pytest.raises(ContextLengthError):
        preprocessor.submission(request, router_pb2.ServedModel(), Origin(id="a"))


# --- answers in slices ----------------------------------------------------------------------------


def _row(alternatives: int) -> Row:
    entry = common_pb2.TokenLogprobs(token_id=[5], top_token_id=[5] * alternatives)
    return 0, "a", (), (entry,), 1


def _cost(row: Row) -> int:
    return 1 + sum(len(each.token_id) + len(each.top_token_id) for each in row[3])


@pytest.mark.promise("S6-185")
@pytest.mark.parametrize(
    "sizes", [[], [0], [5000], [20] * 1000, [3000, 3000, 1, 5000, 2], [0] * 20_000], ids=len
)
def test_a_slice_has_one_row_or_costs_no_more_than_it_may(sizes: list[int]) -> None:
    rows = [_row(size) for size in sizes]
    parts = list(slices.slices(rows))
    assert [row for part in parts for row in part] == rows
    assert all(len(part) == 1 or sum(map(_cost, part)) <= slices.SLICE_COST for part in parts)
    assert len(parts) <= 2 + 2 * sum(map(_cost, rows)) // slices.SLICE_COST


@contextmanager
def _counting(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> Iterator[Counter[int]]:
    """How often it is called in each turn of the loop."""
    loop, calls, turn = asyncio.get_running_loop(), Counter[int](), 0
    original: Callable[..., Any] = getattr(owner, method)

    def tick() -> None:
        nonlocal turn
        turn += 1
        if going:
            loop.call_soon(tick)

    def counted(*arguments: Any) -> Any:
        calls[turn] += 1
        return original(*arguments)

    going = True
    tick()
    monkeypatch.setattr(owner, method, counted)
    try:
        yield calls
    finally:
        going = False


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the parts of answers that are sent."""
    sent: list[int] = []
    original = Call.__init__

    def watched(call: Call, scope: Any, receive: Any, send: Any, **named: Any) -> None:
        async def record(message: Any) -> None:
            sent.append(len(message.get("body", b"")))
            await send(message)

        original(call, scope, receive, record, **named)

    monkeypatch.setattr(Call, "__init__", watched)
    return sent


@pytest.mark.promise("S6-185")
@BOTH_WAYS
async def test_much_that_comes_at_once_is_written_some_rows_a_turn(
    start: Start, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(reply: Reply) -> None:
        for number in range(100):
            reply.text(f"{number} ")
        if stream:
            await reply.flush()
        reply.finish()

    monkeypatch.setattr(slices, "SLICE_COST", 8)
    frontend = await start(script)
    writer = writers.EventWriter if stream else writers.BodyWriter
    with _counting(monkeypatch, writer, "row") as calls:
        answer = await frontend.complete(stream=stream)
    assert calls.total() == 100
    assert max(calls.values()) <= 8
    if stream:
        texts = [each["choices"][0].get("text") or "" for each in events(answer.text)]
    else:
        texts = [answer.json()["choices"][0]["text"]]
    assert "".join(texts) == "".join(f"{number} " for number in range(100))


@pytest.mark.promise("S6-185")
@BOTH_WAYS
async def test_prompts_that_are_shown_again_leave_in_pieces(
    start: Start, stream: bool, bodies: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(reply: Reply) -> None:
        for output in range(50):
            reply.text("!", output=output)
            reply.finish(output=output)

    monkeypatch.setattr(slices, "SLICE_BYTES", 1000)
    frontend = await start(script)
    bodies.clear()
    answer = await frontend.complete(prompt="Hello " * 300, echo=True, n=50, stream=stream)
    assert max(bodies) < 25_000
    if stream:
        found = "".join(each["choices"][0].get("text") or "" for each in events(answer.text))
        assert found.count("Hello ") == 50 * 300
    else:
        texts = [choice["text"] for choice in answer.json()["choices"]]
        assert texts == ["Hello " * 300 + "!"] * 50


@pytest.mark.promise("S6-185")
async def test_a_large_body_of_an_answer_leaves_in_pieces(start: Start, bodies: list[int]) -> None:
    frontend = await start(hello)
    response = await frontend.http.post("/tokenize", json={"prompt": "Hello " * 300_000})
    assert response.json()["count"] >= 300_000
    assert max(bodies) <= 256 * 1024 < len(response.content)
