"""How much all clients together may put into a frontend: connections, requests that are still being
read, and the bytes of their bodies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource

import pytest
from fake_router import Reply
from harness import COMPLETION, PATIENCE, Harness, Start, error_of, request_bytes, say_hello

from tandem import sockets
from tandem.byte_budget import ByteBudget
from tandem.complaints import Complaints
from tandem.errors import QueueFullError
from tandem.v1 import common_pb2
from tandem_frontend.http import connection
from tandem_frontend.http.capacity import Capacity

Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]
JSON = {"content-type": "application/json"}
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"


async def begun(frontend: Harness, size: int, sent: bytes) -> Opened:
    """A request whose body does not come whole."""
    reader, writer = await frontend.connect()
    writer.write(HEAD % size + sent)
    return reader, writer


@pytest.mark.promise("S6-136")
async def test_a_connection_too_many_is_told_so_and_closed(start: Start) -> None:
    frontend = await start(say_hello, max_connections=4)
    await frontend.until_metric("tandem_frontend_connections", 1)  # its own
    held = [await frontend.connect() for _ in range(3)]
    answer = await frontend.raw(b"", until_closed=True)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
    name = "tandem_frontend_refused_connections_total"
    assert await frontend.metric(name, code="too_many_connections") == 1
    for _, writer in held:
        writer.close()
    await frontend.until_metric("tandem_frontend_connections", 1)
    served = await frontend.raw(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
    assert served.startswith(b"HTTP/1.1 200 ")


@pytest.mark.promise("S6-136")
async def test_beyond_those_that_are_told_connections_are_just_closed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_REFUSED_AT_ONCE", 0)
    frontend = await start(say_hello, max_connections=1)
    reader, writer = await frontend.connect()
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
    writer.close()
    name = "tandem_frontend_refused_connections_total"
    assert await frontend.metric(name, code="too_many_connections") == 1


async def test_requests_that_are_being_read_count_as_open(start: Start) -> None:
    frontend = await start(say_hello, max_open_requests=2)
    held = [await begun(frontend, 100, b"{") for _ in range(2)]
    await frontend.until_metric("tandem_frontend_held_bytes", 2)
    for path in ("/v1/completions", "/tokenize"):
        response = await frontend.http.post(path, json=COMPLETION)
        assert error_of(response) == (429, "queue_full", None)
        assert response.headers["retry-after"] == "1"
    held.pop()[1].close()
    await frontend.until_metric("tandem_frontend_held_bytes", 1)
    assert (await frontend.complete()).status_code == 200
    held.pop()[1].close()


@pytest.mark.promise("S6-137", "S6-187")
async def test_bodies_have_one_bound_together(start: Start) -> None:
    frontend = await start(say_hello, max_held_bytes=40_000, max_body_bytes=20_000)
    assert await frontend.metric("tandem_frontend_held_bytes_limit") == 40_000
    _, writer = await begun(frontend, 20_000, b" " * 19_900)
    await frontend.until_metric("tandem_frontend_held_bytes", 19_900)
    wide = json.dumps(COMPLETION).encode() + b" " * 15_000  # together more than three quarters
    for path in ("/v1/completions", "/tokenize"):
        response = await frontend.http.post(path, content=wide, headers=JSON)
        assert error_of(response) == (429, "queue_full", None)
        assert response.headers["retry-after"] == "1"
    assert (await frontend.complete(prompt="x")).status_code == 200
    await frontend.until_metric("tandem_frontend_held_bytes", 19_900)
    writer.close()
    await frontend.until_metric("tandem_frontend_held_bytes", 0)
    response = await frontend.http.post("/v1/completions", content=wide, headers=JSON)
    assert response.status_code == 200


@pytest.mark.promise("S6-137", "S6-187")
@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        pytest.param([[1, 2, 3], [1444] * 60], 0, id="less than the body"),
        pytest.param("qzx" * 200, 600, id="more than the body"),
    ],
)
async def test_of_a_request_its_prompts_are_kept_until_its_answer_is_complete(
    start: Start, prompt: object, shown: int
) -> None:
    go_on = asyncio.Event()
    sent: asyncio.Queue[bytes] = asyncio.Queue()

    async def script(reply: Reply) -> None:
        sent.put_nowait(_prompt_of(reply.task) + reply.submit.prompt_blocks)
        await go_on.wait()
        await say_hello(reply)

    frontend = await start(script)
    body = json.dumps(COMPLETION | {"prompt": prompt, "echo": bool(shown)}).encode()
    reader, writer = await frontend.connect()
    writer.write(request_bytes(body, path="/v1/completions"))
    await frontend.until_metric("tandem_frontend_open_requests", 1)
    async with asyncio.timeout(PATIENCE):
        kept = shown + sum([len(await sent.get()) for _ in range(1 if shown else 2)])
    assert (kept > len(body)) == bool(shown)
    await frontend.until_metric("tandem_frontend_held_bytes", kept)
    go_on.set()
    await asyncio.wait_for(reader.readuntil(b"}"), PATIENCE)
    await frontend.until_metric("tandem_frontend_held_bytes", 0)
    writer.close()


def _prompt_of(task: common_pb2.Task) -> bytes:
    """The part of a task that one prompt has for itself."""
    sampling = common_pb2.SamplingParams(max_tokens=task.sampling.max_tokens)
    alone = common_pb2.Task(prompt_token_ids=task.prompt_token_ids, sampling=sampling)
    return alone.SerializeToString()


def test_what_a_request_held_is_free_however_it_ends() -> None:
    budget = ByteBudget(16)  # 12 for what is new
    capacity = Capacity(max_requests=1, budget=budget)
    with capacity.request() as allotment:
        allotment.admit(6)
        with pytest.raises(QueueFullError):
            allotment.admit(7)
        assert (capacity.requests, budget.held) == (1, 6)
    assert (capacity.requests, budget.held) == (0, 0)
    with capacity.request() as allotment:
        allotment.admit(12)
        with pytest.raises(QueueFullError), capacity.request():
            pass
    assert (capacity.requests, budget.held) == (0, 0)


@pytest.mark.promise("S6-136")
def test_a_process_may_open_as_many_files_as_it_asks_for_or_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    for limits, wanted, may, asked in (
        ((1024, 4096), 2000, 2000, [(2000, 4096)]),
        ((1024, 4096), 9000, 4096, [(4096, 4096)]),
        ((8192, 8192), 9000, 8192, []),
        ((8192, 8192), 100, 100, []),
        ((1024, resource.RLIM_INFINITY), 9000, 9000, [(9000, resource.RLIM_INFINITY)]),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 9000, 9000, []),
    ):
        given.clear()
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        assert sockets.allow_files(wanted) == may
        assert given == asked


@pytest.mark.promise("S6-147")
async def test_complaints_are_few_and_what_is_left_out_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    complaints = Complaints(logging.getLogger("here"), lines=2, seconds=0.1)
    for _ in range(5):
        complaints.warn("bad", "one")
    complaints.warn("bad", "two")
    assert [record.__dict__["code"] for record in caplog.records] == ["one", "one", "two"]
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(0.2, over.set)
    await over.wait()
    last = caplog.records[-1].__dict__
    assert (last["msg"], last["code"], last["count"]) == ("bad: more of the same", "one", 3)
    assert len(caplog.records) == 4
    for _ in range(3):
        complaints.warn("bad", "one")
    complaints.close()
    assert caplog.records[-1].__dict__["count"] == 1


@pytest.mark.promise("S6-147")
@pytest.mark.parametrize(
    ("sent", "message", "code"),
    [
        (b"GET / HTTP/9.9\r\n\r\n", "connection refused", "invalid_request"),
        (b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", "request failed", "invalid_api_key"),
    ],
    ids=["no HTTP", "no key"],
)
async def test_a_flood_at_the_door_is_logged_in_a_few_lines(
    start: Start, caplog: pytest.LogCaptureFixture, sent: bytes, message: str, code: str
) -> None:
    frontend = await start(say_hello, api_keys=("key",))
    for _ in range(30):
        assert b" 40" in (await frontend.raw(sent))[:20]
    lines = [each for each in caplog.records if each.__dict__.get("code") == code]
    assert len(lines) == 5
    assert lines[0].getMessage() == message
    assert lines[0].__dict__["peer"] == "127.0.0.1"
    frontend.stop.set()
    await asyncio.wait_for(asyncio.shield(frontend.served), PATIENCE)
    (rest,) = (
        each for each in caplog.records if each.getMessage() == f"{message}: more of the same"
    )
    assert rest.__dict__["count"] == 25
