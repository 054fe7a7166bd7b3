"""What clients see when something fails, and that nothing of their requests is left behind."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_router import Reply
from harness import (
    BOTH_WAYS,
    CHAT,
    COMPLETION,
    PATIENCE,
    Start,
    error_of,
    events,
    request_bytes,
    say_hello,
    say_nothing,
    say_without_end,
    stream_text,
)

from tandem import errors
from tandem.v1 import common_pb2
from tandem.wire.frames import Draft

STREAM = CHAT | {"stream": True}
Unread = Callable[[int], socket.socket]
FAILURES = [
    errors.QueueFullError("full"),
    errors.NoPairError("none"),
    errors.DeadlineError("late"),
    errors.HookError("raised"),
    errors.ProcessorError("raised"),
    errors.WorkerLostError("gone"),
    errors.KvCorruptError("bad"),
    errors.InternalError("ours"),
    errors.ContextLengthError("long", param="prompt"),
]


async def test_a_failure_before_the_first_byte_has_its_own_status(start: Start) -> None:
    async def script(reply: Reply) -> None:
        reply.end(error=failure.to_proto())

    frontend = await start(script)
    for failure in FAILURES:
        for stream in (False, True):
            response = await frontend.chat(stream=stream)
            assert response.status_code == failure.http_status
            assert response.json()["error"] == {
                "message": failure.message,
                "type": failure.kind,
                "param": failure.param or None,
                "code": failure.code,
            }
        counted = await frontend.metric("tandem_frontend_requests_total", outcome=failure.code)
        assert counted == 2


async def test_a_failure_after_the_first_byte_is_the_streams_last_event(start: Start) -> None:
    async def script(reply: Reply) -> None:
        reply.text("shown")
        await reply.flush()
        await go_on.wait()
        reply.end(error=errors.HookError("raised").to_proto())

    go_on = asyncio.Event()
    frontend = await start(script)
    async with frontend.http.stream(
        "POST", "/v1/chat/completions", json={**CHAT, "stream": True}
    ) as response:
        assert response.status_code == 200
        lines = response.aiter_lines()
        received = [await anext(lines) for _ in range(3)]
        assert "shown" in received[2]
        go_on.set()
        rest = [line async for line in lines if line]
    assert len(rest) == 1
    assert json.loads(rest[0].removeprefix("data: "))["error"]["code"] == "hook_failed"


@pytest.mark.promise("S6-321")
async def test_the_openai_client_raises_what_comes_behind_a_comment(start: Start) -> None:
    from openai import APIError

    async def script(reply: Reply) -> None:
        await go_on.wait()
        reply.end(error=errors.WorkerLostError("gone").to_proto())

    go_on = asyncio.Event()
    frontend = await start(script, sse_keep_alive_seconds=0.01)
    stream = await frontend.openai.chat.completions.create(**CHAT, stream=True)
    go_on.set()
    with pytest.raises(APIError) as caught:
        async for _ in stream:
            pass
    assert caught.value.code == "worker_lost"


@BOTH_WAYS
async def test_one_failing_choice_fails_the_request_and_cancels_the_others(
    start: Start, stream: bool
) -> None:
    async def script(reply: Reply) -> None:
        if reply.task.prompt_token_ids[0] == 2:
            reply.text("fine", output=0)
            reply.end(output=1, error=errors.EngineError("broke").to_proto())
        await reply.cancelled.wait()

    frontend = await start(script)
    response = await frontend.complete(prompt=[[1], [2]], n=2, stream=stream)
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "engine_error"
    await frontend.router.until(lambda router: len(router.cancels) == 2)
    assert sorted(frontend.router.cancels) == sorted(frontend.router.replies)


@pytest.mark.parametrize("when", ["waiting", "streaming", "collecting", "after a large body"])
async def test_a_client_that_goes_away_cancels_its_request_at_once(start: Start, when: str) -> None:
    async def script(reply: Reply) -> None:
        if when in ("streaming", "collecting"):
            reply.text("shown")
            await reply.flush()
        await reply.cancelled.wait()

    frontend = await start(script)
    user = "u" * 400_000 if when == "after a large body" else "u"
    body = json.dumps({**COMPLETION, "stream": when == "streaming", "user": user}).encode()
    reader, writer = await frontend.connect()
    writer.write(request_bytes(body, path="/v1/completions"))
    if when == "streaming":
        await asyncio.wait_for(reader.readuntil(b"shown"), PATIENCE)
    await frontend.router.until(lambda router: len(router.replies) == 1)
    writer.close()
    await frontend.router.until(lambda router: len(router.cancels) == 1)
    assert frontend.router.cancels == list(frontend.router.replies)
    await frontend.until_metric("tandem_frontend_disconnects_total", 1)


async def test_a_client_that_reads_too_slowly_is_cut_off_and_others_are_not_slowed(
    start: Start, unread_socket: Unread
) -> None:
    async def script(reply: Reply) -> None:
        if reply.task.prompt_token_ids[0] == 2:
            await say_hello(reply)
            return
        await say_without_end(reply)

    frontend = await start(script, max_backlog_bytes=100_000)
    slow = unread_socket(frontend.port)
    body = json.dumps({**COMPLETION, "prompt": [1], "stream": True}).encode()
    slow.sendall(request_bytes(body, path="/v1/completions"))
    await frontend.router.until(lambda router: len(router.replies) == 1)
    for _ in range(3):
        assert (await frontend.complete(prompt=[2])).json()["choices"][0]["text"] == "Hello!"
    await frontend.router.until(lambda router: len(router.cancels) == 1)
    await frontend.until_metric("tandem_frontend_slow_clients_total", 1)
    await frontend.until_metric("tandem_frontend_open_requests", 0)
    received = await asyncio.to_thread(_read_to_end, slow)
    assert not received.endswith(b"0\r\n\r\n")  # cut off, not ended as if all were well


async def test_without_a_router_requests_are_refused_and_the_process_lives(
    start: Start,
) -> None:
    frontend = await start(say_hello, router_wait_seconds=0)
    await frontend.router.stop_serving()
    response = await frontend.until("/ready", 503)
    assert response.json()["error"]["code"] == "no_pair"
    assert (await frontend.http.get("/live")).status_code == 200
    assert error_of(await frontend.chat()) == (503, "router_lost", None)


@pytest.mark.promise("S5-220")
async def test_a_fleet_that_cannot_serve_makes_the_frontend_unready(start: Start) -> None:
    frontend = await start(say_hello)
    for change in ({"ready_pairs": 0}, {"tokenizer_sha256": "00"}, {"model": "another"}):
        frontend.router.change_fleet(frontend.fleet(**change))
        for path in ("/ready", "/health"):
            assert (await frontend.until(path, 503)).json()["error"]["code"] == "no_pair"
        assert await frontend.metric("tandem_frontend_ready") == 0
        # One that lets requests wait for a pair can.
        frontend.router.change_fleet(frontend.fleet(ready_pairs=0, waits=True))
        await frontend.until("/ready", 200)
    assert (await frontend.chat()).status_code == 200


async def test_a_fleet_with_another_tokenizer_is_not_used_and_is_logged(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    frontend = await start(say_hello)
    frontend.router.change_fleet(frontend.fleet(tokenizer_sha256="00"))
    await frontend.until("/ready", 503)
    response = await frontend.chat()
    assert (response.status_code, response.json()["error"]["code"]) == (503, "no_pair")
    assert any("another tokenizer" in record.getMessage() for record in caplog.records)
    assert not frontend.router.replies


@pytest.mark.promise("S5-206")
async def test_requests_name_their_tokenizer_beside_workers_of_another(start: Start) -> None:
    frontend = await start(say_hello)
    for pairs in (1, 9):
        both = frontend.fleet(tokenizer_sha256="00", ready_pairs=pairs)
        both.MergeFrom(frontend.fleet())
        frontend.router.change_fleet(both)
        assert (await frontend.chat()).status_code == 200
        assert frontend.router.last.submit.tokenizer_sha256 == frontend.tokenizer_sha256


async def test_a_router_that_forgets_a_request_cannot_make_it_hang(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.upstream.demultiplexer._DEADLINE_GRACE_SECONDS", 0.1)
    frontend = await start(say_nothing)
    response = await frontend.chat(timeout=0.1)
    assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")
    await frontend.router.until(lambda router: len(router.cancels) == 1)


async def test_a_drain_that_takes_too_long_ends_streams_with_an_error_event(
    start: Start,
) -> None:
    async def script(reply: Reply) -> None:
        reply.text("shown")
        await reply.flush()
        await reply.cancelled.wait()

    frontend = await start(script, drain_seconds=0.2)
    async with frontend.http.stream(
        "POST", "/v1/chat/completions", json={**CHAT, "stream": True}
    ) as response:
        lines = response.aiter_lines()
        await anext(lines)
        frontend.stop.set()
        rest = [line async for line in lines if line]
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "draining"
    await asyncio.wait_for(frontend.served, PATIENCE)
    await frontend.router.until(lambda router: len(router.cancels) == 1)


async def test_a_malformed_frame_ends_the_requests_it_is_of_and_no_others(start: Start) -> None:
    broken = asyncio.Event()

    async def say_before_and_after(reply: Reply) -> None:
        reply.text("Hel")
        await reply.flush()
        await broken.wait()
        reply.text("lo")
        reply.finish(completion_tokens=2)
        await reply.flush()

    async def break_frame(reply: Reply) -> None:
        reply.text("a secret of the first", output=0)
        reply.break_frame()
        reply.text("a secret of the second", output=1)
        await reply.cancelled.wait()

    frontend = await start(say_before_and_after)
    async with frontend.http.stream("POST", "/v1/chat/completions", json=STREAM) as innocent:
        frontend.router.script = break_frame
        response = await frontend.chat(n=2)
        assert (response.status_code, response.json()["error"]["code"]) == (502, "worker_error")
        assert "secret" not in response.text
        broken.set()
        assert stream_text(events((await innocent.aread()).decode())) == "Hello"
    assert await frontend.metric("tandem_frontend_router_reconnects_total") == 0
    await frontend.router.until(lambda router: len(router.cancels) == 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"token_id": [5, 6], "logprob": [-0.5]},
        {"token_id": [5], "logprob": [-0.5, -1.0]},
        {"token_id": [5], "logprob": [-0.5], "top_count": 1, "top_token_id": [5]},
        {"token_id": [5], "logprob": [-0.5], "top_count": 1, "top_logprob": [-0.5]},
    ],
)
async def test_log_probabilities_that_are_not_whole_end_their_request_alone(
    start: Start, fields: dict[str, Any]
) -> None:
    async def script(reply: Reply) -> None:
        if reply.task.sampling.HasField("logprobs"):
            reply.logprobs(common_pb2.TokenLogprobs(**fields))
        await say_hello(reply)

    frontend = await start(script)
    for stream in (False, True):
        bad, good = await asyncio.gather(
            frontend.complete(logprobs=1, stream=stream), frontend.complete()
        )
        assert "A worker's output cannot be read" in bad.text
        assert "worker_error" in bad.text
        assert good.json()["choices"][0]["text"] == "Hello!"


async def test_a_payload_that_is_none_ends_the_stream_not_the_process(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend = await start(say_hello)
    with monkeypatch.context() as patch:
        patch.setattr(Draft, "serialize", lambda draft: b"\xff" if draft.texts else b"")
        response = await frontend.chat()
    assert (response.status_code, response.json()["error"]["code"]) == (503, "router_lost")
    await frontend.until("/ready", 200)
    assert (await frontend.chat()).status_code == 200


async def test_output_that_cannot_be_written_ends_its_request_and_no_other(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tandem_frontend.openai import writers

    def fail(*_: object) -> None:
        raise KeyError("a fault of the writer's own")

    monkeypatch.setattr(writers._Offsets, "convert", fail)  # called for log-probabilities alone
    said = asyncio.Event()

    async def say_around(reply: Reply) -> None:
        reply.text("Hel")
        await reply.flush()
        await said.wait()
        reply.text("lo")
        reply.finish(completion_tokens=2)
        await reply.flush()

    async def say_logprobs(reply: Reply) -> None:
        reply.logprobs(common_pb2.TokenLogprobs(token_id=[5], logprob=[-0.5]))
        reply.text("x")
        await reply.flush()
        await reply.cancelled.wait()

    frontend = await start(say_around)
    async with frontend.http.stream("POST", "/v1/chat/completions", json=STREAM) as innocent:
        frontend.router.script = say_logprobs
        response = await frontend.chat(stream=True, logprobs=True)
        assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
        said.set()
        assert stream_text(events((await innocent.aread()).decode())) == "Hello"
    await frontend.router.until(lambda router: len(router.cancels) == 1)


@pytest.fixture
def unread_socket() -> Iterator[Unread]:
    """Client sockets with a small buffer that nobody reads."""
    opened = []

    def connect(port: int) -> socket.socket:
        client = socket.socket()
        opened.append(client)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.settimeout(PATIENCE)
        return client

    yield connect
    for client in opened:
        client.close()


def _read_to_end(client: socket.socket) -> bytes:
    """Up to the end of the response or of the connection."""
    received = b""
    try:
        while not received.endswith(b"0\r\n\r\n") and (part := client.recv(1 << 20)):
            received += part
    except ConnectionResetError:
        return received
    return received
