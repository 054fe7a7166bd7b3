"""What one client connection carries: how a stream's bytes leave, requests sent ahead, heads that
never end, and that nothing is left for the garbage collector.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from typing import Any

import pytest
from fake_router import Reply
from harness import BOTH_WAYS, CHAT, PATIENCE, Start, request_bytes, say_hello

from tandem.pool.process import ChildProcess
from tandem.upstream.request_state import RequestState
from tandem_frontend.http.connection import Connection

STREAM = b'{"model":"tandem-tiny","messages":[{"role":"user","content":"Hello"}],"stream":true}'
END = b"0\r\n\r\n"


def named(request_id: bytes) -> bytes:
    return b"x-request-id: %b\r\n" % request_id


async def test_the_head_of_a_stream_leaves_with_its_first_event(
    start: Start, written: list[bytes]
) -> None:
    read_first = asyncio.Event()

    async def script(reply: Reply) -> None:
        reply.text("Hel")
        await reply.flush()
        await read_first.wait()
        reply.finish(completion_tokens=1)
        await reply.flush()

    frontend = await start(script)
    written.clear()
    reader, writer = await frontend.connect()
    writer.write(request_bytes(STREAM))
    await asyncio.wait_for(reader.readuntil(b'"Hel"'), PATIENCE)
    read_first.set()
    await asyncio.wait_for(reader.readuntil(END), PATIENCE)
    writer.close()
    first, last = written
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\ncontent-type: text/event-stream; charset=utf-8\r\n" in first
    assert first.index(b'"role":"assistant"') < first.index(b'"Hel"')
    assert last.endswith(END)


async def test_streams_asked_for_ahead_are_answered_in_order_each_with_its_own_head(
    start: Start,
) -> None:
    frontend = await start(say_hello)
    reader, writer = await frontend.connect()
    first, second, third = (digit * 32 for digit in (b"1", b"2", b"3"))
    writer.write(
        request_bytes(STREAM, head=named(first))
        + request_bytes(STREAM, head=named(second))
        + request_bytes(STREAM, head=named(third) + b"connection: close\r\n")
    )
    answers = (await asyncio.wait_for(reader.read(), PATIENCE)).split(b"HTTP/1.1 200 OK\r\n")[1:]
    writer.close()
    heads = [answer.partition(b"\r\n\r\n")[0] for answer in answers]
    assert [head.partition(b"x-request-id: ")[2][:32] for head in heads] == [first, second, third]
    assert [b"connection: close" in head for head in heads] == [False, False, True]
    assert [answer.count(b"data: [DONE]") for answer in answers] == [1, 1, 1]


async def test_a_client_that_goes_while_its_prompt_is_tokenised_is_no_fault(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    began, go = asyncio.Event(), asyncio.Event()
    ask = ChildProcess.ask

    async def held(self: ChildProcess, payload: bytes, **bounds: Any) -> bytes | bytearray:
        answer = await ask(self, payload, **bounds)
        began.set()
        await go.wait()
        return answer

    frontend = await start(say_hello)
    long = "x " * 20_000  # more than the context holds: it is refused
    assert (await frontend.complete(prompt=long)).status_code == 400
    monkeypatch.setattr(ChildProcess, "ask", held)
    body = json.dumps({"model": "tandem-tiny", "prompt": long}).encode()
    _, writer = await frontend.connect()
    writer.write(request_bytes(body, path="/v1/completions"))
    await asyncio.wait_for(began.wait(), PATIENCE)
    lost = asyncio.Event()
    monkeypatch.setattr(Connection, "connection_lost", _then(Connection.connection_lost, lost))
    writer.transport.abort()
    await asyncio.wait_for(lost.wait(), PATIENCE)
    go.set()
    await frontend.until_metric("tandem_frontend_requests_total", 2, endpoint="completions")
    assert [record for record in caplog.records if record.exc_info] == []


def _then(call: Callable[..., None], event: asyncio.Event) -> Callable[..., None]:
    def both(*arguments: Any) -> None:
        call(*arguments)
        event.set()

    return both


@BOTH_WAYS
async def test_a_request_leaves_nothing_to_the_garbage_collector(
    start: Start, stream: bool
) -> None:
    frontend = await start(say_hello)
    gc.collect()
    before = states()
    gc.disable()
    try:
        assert (
            await frontend.http.post("/v1/chat/completions", json=CHAT | {"stream": stream})
        ).is_success
        await frontend.until_metric(
            "tandem_frontend_requests_total", 1, endpoint="chat_completions", outcome="success"
        )
        assert states() == before
    finally:
        gc.enable()


def states() -> list[RequestState]:
    return [each for each in gc.get_objects() if type(each) is RequestState]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What connections hand to their sockets, call by call."""
    writes: list[bytes] = []
    made = Connection.connection_made

    class Recorder:
        def __init__(self, transport: asyncio.Transport) -> None:
            self._transport = transport

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

        def write(self, data: bytes) -> None:
            writes.append(data)
            self._transport.write(data)

    def record(self: Connection, transport: Any) -> None:
        made(self, Recorder(transport))  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "connection_made", record)
    return writes
