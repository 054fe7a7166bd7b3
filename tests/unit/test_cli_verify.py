"""`tandem verify`, against a deployment that answers what a test wants. tests/e2e/test_verify.py
asks real ones.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from authority import Authority

from tandem.cli import main
from tandem.cli.client import ApiError
from tandem.cli.worker_counts import MetricsTarget, PhaseCounts, counts, growth, targets
from tandem.errors import ConfigError

MODEL = "tiny"
PROMPT_TOKENS = 12
Event = dict[str, Any]


def chunk(content: str = "", finish: str | None = None, **more: Any) -> Event:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish, **more}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]}


def usage(total: int = PROMPT_TOKENS + 2) -> Event:
    counted = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 2, "total_tokens": total}
    return {**chunk(), "choices": [], "usage": counted}


def exposition(phase: str, *, kv_bytes: float, legs: float) -> str:
    return (
        "# TYPE tandem_kv_transfer_bytes counter\n"
        f'tandem_kv_transfer_bytes_total{{phase="{phase}",transport="nixl/ucx"}} {kv_bytes}\n'
        "# TYPE tandem_worker_legs counter\n"
        f'tandem_worker_legs_total{{outcome="finished",phase="{phase}"}} {legs}\n'
        f'tandem_worker_legs_total{{outcome="failed",phase="{phase}"}} 70\n'
    )


class Deployment(ThreadingHTTPServer):
    """Frontend and workers at one port, which serves the metrics of both phases."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.ready = 200
        self.api_key = ""
        self.events: list[Event] = [chunk("A "), chunk("story.", "stop"), usage()]
        self.asked: list[dict[str, Any]] = []
        self.legs = {"prefill": 1, "decode": 1}
        """Grow by one with each request, as far as a phase is named here."""
        self.kv_bytes = PROMPT_TOKENS * 8

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def metrics(self) -> str:
        count = len(self.asked)
        return "".join(
            exposition(phase, kv_bytes=self.kv_bytes * count, legs=each * count)
            for phase, each in self.legs.items()
        )


class _Handler(BaseHTTPRequestHandler):
    server: Deployment

    def do_GET(self) -> None:
        deployment = self.server
        if self.path == "/ready":
            self._answer(deployment.ready, b"{}")
        elif self.path == "/metrics":
            self._answer(200, deployment.metrics().encode())
        elif self.headers.get("authorization", "") != deployment.api_key:
            self._answer(401, b'{"error": {"message": "a key is needed"}}')
        elif self.path == "/v1/models":
            self._answer(200, json.dumps({"data": [{"id": MODEL}]}).encode())
        else:
            length = int(self.headers["content-length"])
            deployment.asked.append(json.loads(self.rfile.read(length)))
            lines = [f"data: {json.dumps(event)}\n\n" for event in deployment.events]
            self._answer(200, "".join([*lines, "data: [DONE]\n\n"]).encode())

    do_POST = do_GET  # The base class looks it up by this name.

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    with Deployment() as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield serving
        serving.shutdown()
        thread.join(30)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing more will come: what is awaited need not be awaited for long."""
    monkeypatch.setattr("tandem.cli.verification.SETTLE_SECONDS", 0.0)


def run(deployment: Deployment, *more: str) -> int:
    url = f"http://{deployment.address}"
    return main(["verify", "--url", url, "--kv", deployment.address, "--timeout", "20", *more])


def test_a_deployment_whose_kv_moves_is_verified(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(deployment) == 0
    shown = capsys.readouterr().out
    assert "prefill 1 sequences and 96 bytes, decode 1 sequences and 96 bytes" in shown
    assert [asked["stream"] for asked in deployment.asked] == [True]


def unmoved(deployment: Deployment) -> None:
    deployment.kv_bytes = PROMPT_TOKENS * 8 - 1


def decode_alone(deployment: Deployment) -> None:
    deployment.legs = {"prefill": 0, "decode": 1}


def no_prefill_port(deployment: Deployment) -> None:
    deployment.legs = {"decode": 1}


@pytest.mark.promise("S5-126")
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (unmoved, "KV cache did not move, at least 96 bytes had to"),
        (decode_alone, "no prefill worker completed a sequence"),
        (no_prefill_port, "belong to no prefill worker"),
    ],
)
def test_a_deployment_that_answers_without_moving_kv_fails(
    deployment: Deployment,
    fault: Callable[[Deployment], None],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fault(deployment)
    assert run(deployment) == 1
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([chunk("A story."), usage()], "finish_reason is None"),
        ([chunk("A", "stop"), chunk("B"), usage()], "after the one with the finish_reason"),
        ([chunk("A", "stop")], "usage does not add up"),
        ([chunk("A", "stop"), usage(total=3)], "usage does not add up"),
        ([chunk("", "stop"), usage()], "no text"),
        ([{**chunk("A", "stop"), "object": "text_completion"}, usage()], "'text_completion'"),
        ([{**chunk("A"), "id": "other"}, chunk("", "stop"), usage()], "2 ids"),
        ([{"id": "1", "object": "chat.completion.chunk"}], "lacks"),
        ([{"error": {"message": "no pair"}}], "no pair"),
    ],
)
def test_a_stream_that_clients_could_not_read_fails(
    deployment: Deployment,
    events: list[Event],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    deployment.events = events
    assert run(deployment) == 1
    assert said in capsys.readouterr().out


def test_an_answer_that_a_hook_ended_may_be_empty(deployment: Deployment) -> None:
    deployment.events = [chunk("", "stop", stop_reason="guard"), usage()]
    assert run(deployment) == 0


def test_a_forced_answer_has_to_be_exact(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment.events = [chunk("Hello"), chunk(" world!", "stop"), usage()]
    assert run(deployment, "--expect-forced") == 0
    processor = {"name": "forced_sequence", "args": {"text": "Hello world!"}}
    assert deployment.asked[-1]["logits_processors"] == [processor]
    deployment.events = [chunk("ello"), chunk(" world!", "stop"), usage()]
    assert run(deployment, "--expect-forced") == 1
    assert "1 of 2 checks failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("last", "status"),
    [
        (chunk("", "stop", stop_reason="guard"), 0),
        (chunk("", "stop"), 1),
        (chunk("a Secret", "stop", stop_reason="guard"), 1),
    ],
)
def test_a_hook_has_to_end_the_answer_before_the_phrase(
    deployment: Deployment, last: Event, status: int
) -> None:
    deployment.events = [chunk("All went well until "), last, usage()]
    assert run(deployment, "--expect-terminate", "a secret") == status


def test_a_deployment_that_is_not_ready_fails_when_the_time_is_over(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment.ready = 503
    assert run(deployment, "--timeout", "1") == 1
    assert "/ready answers 503" in capsys.readouterr().out


def test_a_worker_that_cannot_be_asked_fails_when_the_time_is_over(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        assert run(deployment, "--kv", f"127.0.0.1:{port}", "--timeout", "1") == 1
    assert f"127.0.0.1:{port}" in capsys.readouterr().out


def test_the_key_comes_from_a_variable_and_is_never_shown(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment.api_key = "Bearer first-key"
    monkeypatch.setenv("THE_KEYS", "first-key,second-key")
    assert run(deployment) == 1
    assert run(deployment, "--api-key-env", "THE_KEYS") == 0
    assert "first-key" not in capsys.readouterr().out


def test_https_is_trusted_by_a_ca_file(deployment: Deployment, tmp_path: Path) -> None:
    files = Authority(tmp_path / "ca").issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    deployment.socket = context.wrap_socket(deployment.socket, server_side=True)
    url = f"https://localhost:{deployment.server_address[1]}"
    arguments = ["verify", "--url", url, "--timeout", "1"]
    assert main([*arguments, "--ca-file", str(files.ca)]) == 0
    assert main(arguments) == 1


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        (("--url", "ftp://host"), 1),
        (("--kv", "host"), 2),
        (("--api-key-env", "NOT_SET"), 2),
        (("--ca-file", "/nonexistent", "--url", "https://localhost:1"), 2),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(
    deployment: Deployment, wrong: tuple[str, ...], status: int
) -> None:
    assert run(deployment, *wrong) == status
    assert not deployment.asked


def test_another_model_than_is_served_fails(deployment: Deployment) -> None:
    assert run(deployment, "--model", "large") == 1
    assert not deployment.asked


def test_counts_add_up_what_completed_and_every_transport() -> None:
    text = exposition("decode", kv_bytes=5, legs=2)
    text += 'tandem_kv_transfer_bytes_total{phase="decode",transport="other"} 7\n'
    text += 'tandem_worker_legs_total{outcome="terminated",phase="decode"} 1\n'
    assert counts(text) == {"decode": PhaseCounts(kv_bytes=12, legs=3)}
    with pytest.raises(ApiError, match="no Prometheus exposition"):
        counts("<html> 404")


def test_growth_adds_up_workers_that_came_and_that_started_again() -> None:
    before = {
        "old": {"decode": PhaseCounts(10, 5)},
        "again": {"decode": PhaseCounts(90, 9)},
        "gone": {},
    }
    after = {
        "old": {"decode": PhaseCounts(14, 6)},
        "again": {"decode": PhaseCounts(3, 1)},
        "new": {"decode": PhaseCounts(2, 1), "prefill": PhaseCounts()},
    }
    assert growth(before, after) == {"decode": PhaseCounts(9, 3), "prefill": PhaseCounts()}


def test_a_name_stands_for_all_its_addresses_of_one_family(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def getaddrinfo(host: str, port: int, **options: Any) -> list[Any]:
        assert host == "workers"
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.2", port)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", port)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert MetricsTarget("workers", 7101).addresses() == ["10.0.0.1:7101", "10.0.0.2:7101"]


def test_targets_are_hosts_with_ports() -> None:
    assert targets("a:1, [::1]:2,") == [MetricsTarget("a", 1), MetricsTarget("::1", 2)]
    assert MetricsTarget("::1", 2).addresses() == ["[::1]:2"]
    for wrong in ("a", ":1", "a:b"):
        with pytest.raises(ConfigError):
            targets(wrong)
