"""What a component's own HTTP server answers, and what nobody can do to it."""

from __future__ import annotations

import asyncio
import gc
import gzip
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tandem import admin
from tandem.admin import Admin, from_loop
from tandem.errors import ConfigError
from tandem.metrics import DrainMetrics

PATIENCE = 60.0
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@asynccontextmanager
async def serving(
    *,
    registry: CollectorRegistry | None = None,
    ready: Callable[[], bool] = lambda: True,
    live: Callable[[], bool] = lambda: True,
) -> AsyncIterator[int]:
    server = Admin(registry or CollectorRegistry(), ready=ready, live=live)
    async with server.serving("127.0.0.1:0") as port:
        yield port
    assert not [each for each in threading.enumerate() if each.name.startswith("admin")]


async def raw(port: int, sent: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        try:
            writer.write(sent)
            return await reader.read()
        finally:
            writer.close()


async def get(
    port: int, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    answer = await raw(port, f"{method} {path} HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *fields = head.decode().split("\r\n")
    return int(status.split()[1]), dict(line.split(": ", 1) for line in fields), body


async def test_ready_and_live_say_what_the_component_says_now() -> None:
    states = {"ready": False, "live": True}
    async with serving(ready=lambda: states["ready"], live=lambda: states["live"]) as port:
        assert (await get(port, "/ready"))[0] == 503
        assert (await get(port, "/live"))[0] == 200
        states.update(ready=True, live=False)
        assert (await get(port, "/ready?verbose"))[0] == 200
        assert (await get(port, "/live"))[0] == 503


async def test_probes_run_on_the_loop_of_the_component() -> None:
    threads: list[threading.Thread] = []

    def note() -> bool:
        threads.append(threading.current_thread())
        return True

    async with serving(ready=note, live=note) as port:
        await get(port, "/ready")
        await get(port, "/live")
    assert threads == [threading.current_thread()] * 2


async def test_a_loop_that_hangs_is_not_live_and_its_metrics_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(admin, "SCRAPE_SECONDS", 0.05)
    registry = CollectorRegistry()
    loop = asyncio.get_running_loop()
    Gauge("of_the_loop", "x", registry=registry).set_function(from_loop(loop, lambda: 1.0))
    async with serving(registry=registry) as port:
        assert (await get(port, "/metrics"))[0] == 200

        def ask_all() -> list[int]:
            async def each() -> list[int]:
                return [(await get(port, path))[0] for path in ("/live", "/ready", "/metrics")]

            return asyncio.run(each())

        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.extend(ask_all()))
        asking.start()
        asking.join(PATIENCE)  # and this loop does nothing else meanwhile
        assert answers == [503, 503, 503]
        assert (await get(port, "/live"))[0] == 200


async def test_metrics_come_as_text_or_as_openmetrics_with_exemplars_and_packed_if_wanted() -> None:
    registry = CollectorRegistry()
    Counter("requests", "x", registry=registry).inc(exemplar={"trace_id": "abc"})
    async with serving(registry=registry) as port:
        status, headers, body = await get(port, "/metrics")
        assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
        assert headers["content-length"] == str(len(body))
        assert b"requests_total 1.0\n" in body
        assert b"trace_id" not in body
        _, headers, body = await get(port, "/metrics", accept=OPENMETRICS, accept_encoding="gzip")
        assert headers["content-type"].startswith("application/openmetrics-text")
        assert headers["content-encoding"] == "gzip"
        (family,) = text_string_to_metric_families(gzip.decompress(body).decode())
        exemplars = [sample.exemplar for sample in family.samples if sample.exemplar]
        assert [exemplar.labels for exemplar in exemplars] == [{"trace_id": "abc"}]


@pytest.mark.parametrize("path", ["/live", "/metrics"])
async def test_head_answers_without_a_body(path: str) -> None:
    async with serving() as port:
        status, headers, body = await get(port, path, method="HEAD")
        assert (status, body) == (200, b"")
        assert headers["content-length"] == str(len((await get(port, path))[2]))


async def test_nothing_else_is_served() -> None:
    async with serving() as port:
        for path in ("/", "/metrics/", "/debug", "/live/../metrics"):
            assert (await get(port, path))[0] == 404
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            status, headers, _ = await get(port, "/metrics", method=method)
            assert (status, headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.promise("S6-163")
@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"GET /live\r\n\r\n",
        b"GET /live SMTP/1.0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
        b"GET /" + b"x" * 100_000,
        b"GET /" + b"x" * 10_000_000,
    ],
)
async def test_what_is_no_request_is_refused(sent: bytes) -> None:
    async with serving() as port:
        assert (await raw(port, sent)).startswith(b"HTTP/1.1 400 ")
        assert (await get(port, "/live"))[0] == 200


@pytest.mark.promise("S6-163")
async def test_clients_that_send_or_read_too_slowly_are_closed_and_delay_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin, "REQUEST_SECONDS", 3.0)  # to make the answer, on a busy machine
    registry = CollectorRegistry()
    size = 30_000_000
    Gauge("large", "x" * size, registry=registry)
    async with serving(registry=registry) as port:
        deaf, asking = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        asking.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        slow, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /li")
        assert (await get(port, "/live"))[0] == 200
        assert not slow.at_eof()
        async with asyncio.timeout(PATIENCE):
            assert await slow.read() == b""  # and so did the other's time end
            assert 0 < len(await deaf.read()) < size
        writer.close()
        asking.close()


@pytest.mark.promise("S6-163")
async def test_a_probe_is_answered_while_others_hold_every_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin, "MAX_CONNECTIONS", 2)
    async with serving() as port:
        (oldest, _), (newer, _) = held = [
            await asyncio.open_connection("127.0.0.1", port) for _ in range(2)
        ]
        for _, writer in held:
            writer.write(b"G")
        async with asyncio.timeout(admin.REQUEST_SECONDS / 2):
            assert (await get(port, "/live"))[0] == 200
            assert await oldest.read() == b""
        assert not newer.at_eof()
        for _, writer in held:
            writer.close()


async def test_open_connections_do_not_hold_up_the_end() -> None:
    async with asyncio.timeout(5):
        async with serving() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /live HTTP/1.1\r\n")
            assert (await get(port, "/live"))[0] == 200
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /live HTTP/1.1\r\n\r\n"])
async def test_the_end_leaves_no_connection_open_and_writes_no_traceback(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """What is left open is a warning when it is collected, and a warning fails a test here."""
    for _ in range(20):
        clients = []
        async with serving() as port:
            for _ in range(10):
                clients.append(socket.create_connection(("127.0.0.1", port)))
                clients[-1].sendall(sent)
            await asyncio.sleep(0.001)
        for client in clients:
            client.close()
    gc.collect()
    assert not caplog.records


async def test_an_address_that_cannot_be_used_is_named() -> None:
    async with serving() as port:
        with pytest.raises(ConfigError, match=f"cannot listen on '127.0.0.1:{port}'"):
            async with Admin(CollectorRegistry(), ready=bool).serving(f"127.0.0.1:{port}"):
                pass
    with pytest.raises(ConfigError, match="HOST:PORT"):
        async with Admin(CollectorRegistry(), ready=bool).serving("nonsense"):
            pass


async def test_a_wildcard_of_ipv6_is_every_address() -> None:
    async with Admin(CollectorRegistry(), ready=lambda: True).serving("[::]:0") as port:
        for host in ("::1", "127.0.0.1"):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /ready HTTP/1.1\r\n\r\n")
            assert (await asyncio.wait_for(reader.read(), PATIENCE)).startswith(b"HTTP/1.1 200 ")
            writer.close()


def test_a_drain_is_timed_until_it_ends() -> None:
    now = 100.0
    drain = DrainMetrics("worker", clock=lambda: now, phase="decode")

    def shown() -> dict[str, float]:
        return {s.name: s.value for family in drain.collect() for s in family.samples}

    assert shown() == {"tandem_worker_drain_seconds": 0, "tandem_worker_drain_aborted_total": 0}
    drain.begin()
    now = 103.0
    assert shown()["tandem_worker_drain_seconds"] == 3
    drain.aborted = 2
    drain.end()
    now = 200.0
    assert shown() == {"tandem_worker_drain_seconds": 3, "tandem_worker_drain_aborted_total": 2}
