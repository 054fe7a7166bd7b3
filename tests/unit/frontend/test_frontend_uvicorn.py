"""The parts of uvicorn that are used beside ASGI: each is where tandem_frontend.http expects it.

They are no public API. Where a newer uvicorn moved one, this test says so in a sentence, before a
test of behaviour fails for reasons that are hard to see.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from harness import PATIENCE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tandem.byte_budget import ByteBudget
from tandem_frontend.http.connection import Connection
from tandem_frontend.http.server import HttpServer

CALLBACKS = {
    "connection_made": ["transport"],
    "connection_lost": ["exc"],
    "data_received": ["data"],
    "pause_writing": [],
    "resume_writing": [],
    "on_message_begin": [],
    "on_headers_complete": [],
    "on_response_complete": [],
}
ARGUMENTS = {"config", "server_state", "app_state"}
ATTRIBUTES = ("loop", "transport", "flow", "scope", "parser", "_unset_keepalive_if_required")
PARSER = ("get_method", "get_http_version", "should_keep_alive", "should_upgrade")
"""What uvicorn asks of its parser, in place of which it is given another."""
CYCLE = (
    *("response_started", "disconnected", "message_event"),
    *("chunked_encoding", "expected_content_length"),
)
FLOW = ("resume_reading", "pause_writing", "resume_writing")


def _moved(part: str) -> str:
    return (
        f"uvicorn {uvicorn.__version__} has moved {part}, which tandem_frontend.http uses: adapt"
        " that, or bound uvicorn in pyproject.toml to the versions before"
    )


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_of_uvicorn_that_is_overridden_is_there(name: str) -> None:
    callback = getattr(HttpToolsProtocol, name, None)
    assert callback is not None, _moved(f"HttpToolsProtocol.{name}")
    takes = list(inspect.signature(callback).parameters)[1:]
    assert takes == CALLBACKS[name], _moved(f"the arguments of HttpToolsProtocol.{name}")


def test_every_method_of_uvicorn_that_is_overridden_is_listed() -> None:
    """So that none is left out above."""
    own = {name for name, value in vars(Connection).items() if isinstance(value, Callable)}
    assert own & set(dir(HttpToolsProtocol)) - {"__init__", "__doc__"} == set(CALLBACKS)


async def test_what_is_read_of_a_connection_of_uvicorn_is_there() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    takes = set(inspect.signature(HttpToolsProtocol).parameters)
    assert takes >= ARGUMENTS, _moved("the arguments of HttpToolsProtocol")
    protocol = HttpToolsProtocol(config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(Mock(spec=asyncio.Transport))
    protocol.on_message_begin()
    for name in ATTRIBUTES:
        assert hasattr(protocol, name), _moved(f"HttpToolsProtocol.{name}")
    for name in PARSER:
        assert hasattr(protocol.parser, name), _moved(f"HttpToolsProtocol.parser.{name}")
    assert isinstance(protocol.scope, dict), _moved("HttpToolsProtocol.scope")
    for name in FLOW:
        assert hasattr(protocol.flow, name), _moved(f"FlowControl.{name}")
    protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    for name in CYCLE:
        assert hasattr(protocol.cycle, name), _moved(f"RequestResponseCycle.{name}")


async def test_send_needs_no_task_while_the_socket_has_room() -> None:
    """As tandem_frontend/http/messages.py sends the parts of a stream."""
    stepped = asyncio.get_running_loop().create_future()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            send({"type": "http.response.start", "status": 200, "headers": []}).send(None)
        except (StopIteration, AssertionError, TypeError) as answer:
            stepped.set_result(type(answer))

    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    protocol = HttpToolsProtocol(config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(Mock(spec=asyncio.Transport))
    protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert await asyncio.wait_for(stepped, PATIENCE) is StopIteration, _moved("the way it sends")


def test_what_is_used_of_the_server_of_uvicorn_is_there() -> None:
    settings = inspect.signature(uvicorn.Config).parameters
    for name in ("http", "ssl_context_factory", "timeout_graceful_shutdown", "server_header"):
        assert name in settings, _moved(f"the setting {name}")
    assert hasattr(uvicorn.Server, "capture_signals"), _moved("Server.capture_signals")
    server = uvicorn.Server(uvicorn.Config(Mock(), log_config=None))
    assert isinstance(server.server_state.connections, set), _moved("ServerState.connections")
    assert server.should_exit is False, _moved("Server.should_exit")
    assert issubclass(HttpServer, uvicorn.Server)


@pytest.fixture
def server() -> HttpServer:
    made = HttpServer(
        Mock(),
        bounds=Mock(),
        budget=ByteBudget(),
        draining=Mock(),
        on_refused=Mock(),
        keep_alive_seconds=1,
        https=None,
    )
    made.config.load()
    return made


async def test_a_server_ends_without_waiting_for_its_next_look_at_the_date(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem_frontend.http.server._DATE_SECONDS", 1_000.0)
    serving = asyncio.create_task(server.main_loop())
    await asyncio.sleep(0.01)
    assert not serving.done()
    server.end()
    await asyncio.wait_for(serving, PATIENCE)


async def test_the_date_of_answers_goes_on(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem_frontend.http.server._DATE_SECONDS", 0.01)
    monkeypatch.setattr("uvicorn.server.time.time", itertools.count(1_000_000_000).__next__)
    serving = asyncio.create_task(server.main_loop())
    dates = set()
    async with asyncio.timeout(PATIENCE):
        while len(dates) < 3:
            await asyncio.sleep(0)
            dates.update(date for name, date in server.server_state.default_headers)
    assert min(dates).endswith(b"GMT")
    server.end()
    await serving
