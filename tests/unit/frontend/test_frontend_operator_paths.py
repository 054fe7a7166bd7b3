"""`/metrics` and `/ping` are answered on the API's port where the operator says so."""

from __future__ import annotations

import asyncio
import threading

import pytest
from harness import PATIENCE, Start, error_of, say_hello
from prometheus_client import CollectorRegistry

from tandem import admin
from tandem.errors import ConfigError
from tandem_frontend.config import FrontendConfig
from tandem_frontend.config_checks import OPERATOR_PATHS
from tandem_frontend.scrapes import Scrapes

NO_KEY = {"authorization": ""}


class _Asked:
    """A call, as far as a scrape knows it."""

    def __init__(self, accept: str) -> None:
        self._accept = accept.encode()
        self.answers: list[tuple[int, bytes, bytes]] = []

    def header(self, name: bytes) -> bytes | None:
        return self._accept if name == b"accept" else None

    async def respond(self, status: int, body: bytes, content_type: bytes) -> None:
        self.answers.append((status, body, content_type))


@pytest.mark.promise("S6-372")
@pytest.mark.parametrize("path", OPERATOR_PATHS)
async def test_a_path_that_the_operator_does_not_name_is_not_there(start: Start, path: str) -> None:
    (other,) = {*OPERATOR_PATHS} - {path}
    frontend = await start(say_hello, api_keys=("sesame",), operator_paths=(other,))
    for headers in (NO_KEY, {"authorization": "Bearer sesame"}):
        response = await frontend.http.get(path, headers=headers)
        assert error_of(response) == (404, "not_found", None)
    assert path not in (await frontend.http.get("/")).json()["paths"]


async def test_the_paths_that_the_operator_names_are_answered_without_a_key(start: Start) -> None:
    frontend = await start(say_hello, api_keys=("sesame",), operator_paths=OPERATOR_PATHS)
    metrics = await frontend.http.get("/metrics", headers=NO_KEY)
    assert metrics.status_code == 200
    assert metrics.headers["content-type"].startswith("text/plain; version=")
    assert "\ntandem_frontend_ready 1.0\n" in metrics.text, "also what the loop itself is asked for"
    accept = NO_KEY | {"accept": "application/openmetrics-text; version=1.0.0"}
    openmetrics = await frontend.http.get("/metrics", headers=accept)
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text;")
    assert openmetrics.text.endswith("# EOF\n")
    head = await frontend.http.head("/metrics", headers=NO_KEY)
    assert (head.status_code, head.content) == (200, b"")
    ping = await frontend.http.get("/ping", headers=NO_KEY)
    assert (ping.status_code, ping.json()) == (200, {"status": "ok"})
    assert (await frontend.http.post("/ping", headers=NO_KEY)).status_code == 405
    listed = (await frontend.http.get("/")).json()["paths"]
    assert {*OPERATOR_PATHS} <= {*listed}
    page = await frontend.http.get("/", headers={"accept": "text/html"})
    assert page.headers["location"] == "/docs"


@pytest.mark.promise("S6-372")
async def test_scrapes_at_once_share_one_writing_for_each_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []
    go = threading.Event()

    def write(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
        written.append(accept)
        assert go.wait(PATIENCE)
        return accept.encode(), accept

    monkeypatch.setattr(admin, "scrape", write)
    scrapes = Scrapes(CollectorRegistry())
    accepts = [f"text/plain, x/{number}" for number in range(20)]
    accepts += [f"application/openmetrics-text, x/{number}" for number in range(20)]
    calls = [_Asked(accept) for accept in accepts]
    tasks = [asyncio.create_task(scrapes.answer(call)) for call in calls]  # type: ignore[arg-type]
    gone = tasks[0]
    await asyncio.sleep(0)
    gone.cancel()
    go.set()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
    assert len(written) == 2
    assert gone.cancelled()
    assert all(len(call.answers) == 1 for call in calls[1:]), "who goes takes no other's answer"
    later = _Asked("text/plain")
    await scrapes.answer(later)  # type: ignore[arg-type]
    assert len(written) == 3, "a later scrape is a new one"


def test_other_paths_are_refused() -> None:
    with pytest.raises(ConfigError, match="operator_paths takes /metrics and /ping, not '/debug'"):
        FrontendConfig(model_path="m", operator_paths=("/metrics", "/debug"))
