"""The command line's client, against a server that answers what a test wants."""

from __future__ import annotations

import io
import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tandem.cli import main, options, processes, run_state
from tandem.cli.answer import follow
from tandem.cli.client import ApiError, Client
from tandem.cli.console import Console
from tandem.cli.run_state import RunState
from tandem.cli.up import SIMULATED

CHAT = "/v1/chat/completions"


class Server(ThreadingHTTPServer):
    """Answers every path with what `answers` holds for it: (status, body)."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, tuple[int, bytes]] = {
            "/v1/models": (200, b'{"data": [{"id": "tiny"}]}')
        }
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.keys.append(self.headers.get("authorization"))
        length = int(self.headers.get("content-length", 0))
        if length:
            self.server.asked.append(json.loads(self.rfile.read(length)))
        status, body = self.server.answers.get(self.path, (404, b"no such path"))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # The base class looks it up by this name.

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield serving
        serving.shutdown()
        thread.join(timeout=10)


def sse(*events: dict[str, Any], done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([": a comment\n\n", *lines, "data: [DONE]\n\n" if done else ""]).encode()


def delta(text: str | None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, **more}]}


def test_a_stream_gives_its_events_up_to_done(server: Server) -> None:
    server.answers[CHAT] = (200, sse(delta("a"), delta("b")))
    events = list(Client(server.url).stream(CHAT, {"model": "tiny"}))
    assert [event["choices"][0]["delta"]["content"] for event in events] == ["a", "b"]
    assert server.asked == [{"model": "tiny", "stream": True}]


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, sse(delta("a"), done=False), "ended before"),
        (200, sse({"error": {"message": "worker lost"}}), "worker lost"),
        (400, b'{"error": {"message": "bad n"}}', "400: bad n"),
        (503, b"down", "503: down"),
    ],
)
def test_a_stream_that_fails_is_an_error_and_never_a_short_answer(
    server: Server, status: int, body: bytes, says: str
) -> None:
    server.answers[CHAT] = (status, body)
    with pytest.raises(ApiError, match=says):
        list(Client(server.url).stream(CHAT, {}))


def test_an_address_where_nobody_answers_is_an_error_and_has_no_status(server: Server) -> None:
    free = Server()
    free.server_close()
    with pytest.raises(ApiError, match="nobody answers"):
        Client(free.url).get("/v1/models")
    assert Client(free.url).status("/ready") == 0
    assert Client(server.url).status("/ready") == 404
    with pytest.raises(ApiError, match="no address"):
        Client("ftp://x")


@pytest.mark.parametrize(
    ("failures", "errno", "good"),
    [
        (3, socket.EAI_AGAIN, True),
        (10**6, socket.EAI_AGAIN, False),
        (1, socket.EAI_NONAME, False),
    ],
)
def test_a_name_server_that_has_no_answer_now_is_asked_again_for_a_while(
    server: Server, monkeypatch: pytest.MonkeyPatch, failures: int, errno: int, good: bool
) -> None:
    monkeypatch.setattr("tandem.cli.client.LOOKUP_SECONDS", 0.2)
    look_up, asked = socket.getaddrinfo, 0

    def fails_first(*args: Any, **more: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked <= failures:
            raise socket.gaierror(errno, "no answer")
        return look_up(*args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", fails_first)
    if good:
        assert Client(server.url).get("/v1/models") == {"data": [{"id": "tiny"}]}
        return
    with pytest.raises(ApiError, match="nobody answers"):
        Client(server.url).get("/v1/models")
    assert asked > 2 if errno == socket.EAI_AGAIN else asked == 1


def test_a_journey_tells_what_the_client_saw(server: Server) -> None:
    phases = [
        {
            "phase": phase,
            "worker": f"{phase}-0",
            "request_id": number,
            "emitted": 1,
            "suppressed": 0,
            "terminated": 0,
            "hook_seconds": 0.001,
            "phase_seconds": 0.01,
            "kv_bytes": 4096 * number,
            "kv_seconds": 0.002,
            "kv_transport": "nixl/ucx",
        }
        for number, phase in enumerate(("prefill", "decode"))
    ]
    spent = {"queue": 5.0, "prefill": 0.008, "kv": 0.002, "decode": 0.02}
    choice = {f"{name}_seconds": seconds for name, seconds in spent.items()}
    times = {"timeline": [{"choice": 0, "queue_cause": "all is full", **choice}]}
    server.answers[CHAT] = (
        200,
        sse(
            delta("Hello"),
            delta(" world", finish_reason="stop", stop_reason="guard"),
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
            {"choices": [], "tandem": {"trace_id": "ab" * 16, "phases": phases, **times}},
        ),
    )
    shown = io.StringIO()
    console = Console(shown, terminal=False)
    journey = follow(Client(server.url), {}, console)
    assert (journey.text, journey.stop_reason) == ("Hello world", "guard")
    assert journey.problems() == []
    assert 0 < journey.ttft <= journey.arrivals[-1]
    journey.show(console)
    for part in (
        *("ab" * 16, "3 in, 2 out", "4,096 bytes in 2.0 ms over nixl/ucx", "prefill-0"),
        "queue 5000.0 ms, prefill 8.0 ms, kv 2.0 ms, decode 20.0 ms; queued: all is full",
    ):
        assert part in shown.getvalue()


def test_a_journey_without_both_phases_is_a_problem(server: Server) -> None:
    server.answers[CHAT] = (200, sse(delta("Hello", finish_reason="stop")))
    journey = follow(Client(server.url), {}, Console(io.StringIO(), terminal=False))
    assert "lacks a phase" in journey.problems()[0]


def test_chat_streams_one_answer(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers[CHAT] = (200, sse(delta("Good"), delta(" day"), delta(None)))
    assert main(["chat", "--url", server.url, "hello"]) == 0
    assert capsys.readouterr().out == "Good day\n"
    assert server.asked[0]["messages"] == [{"role": "user", "content": "hello"}]
    assert server.asked[0]["model"] == "tiny"


def test_chat_says_that_a_simulated_model_answers_random_words_and_needs_a_model(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers[CHAT] = (200, sse(delta("Hi")))
    cards = b'{"data": [{"id": "tiny"}, {"id": "toy", "simulated": true}]}'
    server.answers["/v1/models"] = (200, cards)
    for model, told in (("tiny", "Hi\n"), ("toy", f"{SIMULATED}\nHi\n")):
        assert main(["chat", "--url", server.url, "--model", model, "hello"]) == 0
        assert capsys.readouterr().out == told
    server.answers["/v1/models"] = (200, b'{"data": []}')
    assert main(["chat", "--url", server.url, "hello"]) == 1
    assert "serves no model" in capsys.readouterr().err


def test_chat_takes_a_key_and_an_address_as_clients_of_openai_have_them(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers[CHAT] = (200, sse(delta("Hi")))
    monkeypatch.setenv("MY_KEY", "sesame")
    url = f"{server.url}/v1/"
    assert main(["chat", "--url", url, "--api-key-env", "MY_KEY", "hello"]) == 0
    assert capsys.readouterr().out == "Hi\n"
    assert set(server.keys) == {"Bearer sesame"}
    assert main(["chat", "--url", url, "--api-key-env", "NO_KEY", "hello"]) == 2
    assert "NO_KEY is not set" in capsys.readouterr().err


def test_chat_sends_a_system_message_and_a_temperature_and_shows_where_the_time_went(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers[CHAT] = (200, sse(delta("Hi")))
    asked = ("chat", "--url", server.url, "--system=Be brief.", "--temperature=0", "hello")
    assert main(asked) == 0
    assert [each["role"] for each in server.asked[0]["messages"]] == ["system", "user"]
    assert (server.asked[0]["temperature"], "tandem" in server.asked[0]) == (0, False)
    capsys.readouterr()
    assert main([*asked, "--trace"]) == 0
    assert server.asked[1]["tandem"] == {"report": True}
    assert "no report" in capsys.readouterr().out
    decode = {
        "phase": "decode",
        "worker": "w-0",
        "request_id": 7,
        "emitted": 0,
        "suppressed": 0,
        "terminated": 0,
        "hook_seconds": 0.0,
        "phase_seconds": 0.02,
        "kv_bytes": 0,
        "kv_seconds": 0.0,
        "kv_transport": "",
    }
    times = [{"choice": 0, "queue_cause": "", "queue_seconds": 1.5}]
    report = {"trace_id": "ab" * 16, "phases": [decode], "timeline": times}
    server.answers[CHAT] = (
        200,
        sse(
            delta("Hi"),
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
            {"choices": [], "tandem": report},
        ),
    )
    assert main([*asked, "--trace"]) == 0
    told = capsys.readouterr().out
    assert "queue 1500.0 ms" in told
    assert "w-0" in told
    assert "bytes in" not in told  # one worker served both phases


def test_chat_finds_the_stack_of_its_folder(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.answers[CHAT] = (200, sse(delta("Hi")))
    me = processes.identify(os.getpid())
    assert me is not None
    state = RunState(server.url, "sim", None, {"frontend": me})
    run_state.write(tmp_path, state)
    assert main(["chat", "hello", f"--run-dir={tmp_path}"]) == 0
    assert len(server.asked) == 1
    gone = replace(state, processes={"frontend": replace(me, started=me.started + 1)})
    run_state.write(tmp_path, gone)
    monkeypatch.setattr(options, "DEFAULT_PORT", 1)
    assert main(["chat", "hello", f"--run-dir={tmp_path}"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_a_conversation_sends_what_was_said_before(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers[CHAT] = (200, sse(delta("yes")))
    monkeypatch.setattr("sys.stdin", io.StringIO("first\nsecond\n\n"))
    assert main(["chat", "--url", server.url]) == 0
    said = [message["content"] for message in server.asked[1]["messages"]]
    assert said == ["first", "yes", "second"]


def test_chat_fails_with_status_1_and_the_servers_words(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers[CHAT] = (429, b'{"error": {"message": "queue is full"}}')
    assert main(["chat", "--url", server.url, "hello"]) == 1
    assert "queue is full" in capsys.readouterr().err
