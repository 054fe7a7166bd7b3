"""A guardrail server beside a running stack: answers are what it lets through, and nothing when it
is gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import pytest
from openai import OpenAI

from tandem.testing import SimStack, sim_stack

GONE = Event()
REFUSAL = "I can't help with that."


class Moderations(BaseHTTPRequestHandler):
    """Answers as `/v1/moderations` does, and flags what speaks of a bomb."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        if GONE.is_set():
            self.close_connection = True  # one that was open ends without an answer
            return
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        flagged = "bomb" in asked["input"]
        result = {
            "flagged": flagged,
            "categories": {"violence": flagged},
            "category_scores": {"violence": 0.98 if flagged else 0.01},
        }
        body = json.dumps({"id": "modr-1", "model": "m", "results": [result]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadingHTTPServer]:
    GONE.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Moderations)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.fixture(scope="module")
def stack(server: ThreadingHTTPServer) -> Iterator[SimStack]:
    entry = {
        "path": "openai_moderations",
        "timeout_ms": 2000,
        "config": {"url": f"http://127.0.0.1:{server.server_port}/v1"},
    }
    classifiers = {"hold_back": "window", "window_tokens": 4, "entries": [entry]}
    settings = {"decode_worker": {"classifiers": classifiers}}
    with sim_stack(settings=settings) as running:
        yield running


def _answer(stack: SimStack, text: str) -> tuple[str, str | None]:
    """What a client reads of a stream that the model made of `text`, and how it ends."""
    with OpenAI(base_url=stack.base_url, api_key="none", max_retries=0) as client:
        events = client.chat.completions.create(
            model=stack.model,
            messages=[{"role": "user", "content": "x"}],
            stream=True,
            extra_body=stack.saying(text),
        )
        choices = [event.choices[0] for event in events if event.choices]
    stop = [choice.model_extra or {} for choice in choices if choice.finish_reason]
    return "".join(c.delta.content or "" for c in choices), stop[0].get("stop_reason")


@pytest.mark.promise("S4-111", "S4-113")
def test_only_what_the_server_passes_is_streamed(stack: SimStack) -> None:
    assert _answer(stack, "A cake is easy to bake.") == ("A cake is easy to bake.", None)
    shown, stop_reason = _answer(stack, "First of all you take a cake, and then a bomb goes in.")
    assert shown.endswith(REFUSAL)
    assert "First of all".startswith(shown.removesuffix(REFUSAL)[:12])
    assert "bomb" not in shown
    assert stop_reason == "openai_moderations"


@pytest.mark.promise("S4-102")
def test_nothing_is_shown_once_the_server_is_gone(
    server: ThreadingHTTPServer, stack: SimStack
) -> None:
    GONE.set()
    server.shutdown()
    server.server_close()
    assert _answer(stack, "A cake is easy to bake.") == (REFUSAL, "openai_moderations")
