"""What RFC 9113 says of requests, streams and frames, beyond what h2spec sees: each MUST by its own
case. `h2spec --strict` passes all of its 146.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial

import grpc
import pytest
import raw_peer
from echo_service import SERVICE, Echo, Stub, open_channel, serving
from raw_peer import Peer, message

from tandem_loop_grpc import frames
from tandem_loop_grpc.frames import Code, frame

pytestmark = pytest.mark.promise("S6-403")

PATIENCE = 10.0
dialled = partial(raw_peer.dialled, longest=PATIENCE)
DATA, HEADERS, SETTINGS, PING = frames.DATA, frames.HEADERS, frames.SETTINGS, frames.PING
END = frames.END_HEADERS | frames.END_STREAM
REQUEST = {
    ":method": "POST",
    ":scheme": "http",
    ":path": f"/{SERVICE}/One",
    "content-type": "application/grpc",
}


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with serving("ours", Echo()) as port:
        yield port


def _with(*more: tuple[str, str], without: str = "") -> list[tuple[str, str]]:
    return [*(each for each in REQUEST.items() if each[0] != without), *more]


MALFORMED: dict[str, list[tuple[str, str]]] = {
    "no method": _with(without=":method"),
    "no scheme": _with(without=":scheme"),
    "no path": _with(without=":path"),
    "an empty path": [(":path", ""), *_with(without=":path")],
    "two paths": [(":path", "/first"), *_with()],
    "a late pseudo-header": _with((":authority", "late")),
    "an unknown pseudo-header": [(":protocol", "x"), *_with()],
    "an answer's status": [(":status", "200"), *_with()],
    "capitals": _with(("Word", "x")),
    "a colon": _with(("wo:rd", "x")),
    "an empty name": _with(("", "x")),
    "a line's end": _with(("word", "x\r\ny: z")),
    "a NUL": _with(("word", "x\0")),
    "connection": _with(("connection", "close")),
    "transfer-encoding": _with(("transfer-encoding", "chunked")),
    "upgrade": _with(("upgrade", "h2c")),
    "te": _with(("te", "gzip")),
    "two lengths": _with(("content-length", "1"), ("content-length", "2")),
    "a length of 5,000 digits": _with(("content-length", "1" * 5_000)),
    "a negative length": _with(("content-length", "-1")),
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_a_malformed_request_costs_its_stream_alone(what: str, port: int) -> None:
    async with dialled(port) as peer:
        peer.send(
            frame(HEADERS, frames.END_HEADERS, 1, peer.headers(*MALFORMED[what])),
            peer.request(3),
            frame(DATA, frames.END_STREAM, 3, message(b"next")),
        )
        reset = await peer.find(frames.RST_STREAM)
        assert reset[2:] == (1, int(Code.PROTOCOL_ERROR).to_bytes(4, "big"))
        assert (await peer.find(DATA))[2:] == (3, message(b"next"))


@pytest.mark.parametrize(("said", "sent"), [(3, 4), (20, 4)])
async def test_a_length_that_is_not_kept_to_costs_its_stream(
    said: int, sent: int, port: int
) -> None:
    async with dialled(port) as peer:
        headers = peer.headers(*_with(("content-length", str(said))))
        peer.send(frame(HEADERS, frames.END_HEADERS, 1, headers))
        peer.send(frame(DATA, frames.END_STREAM, 1, message(b"text")[:sent]))
        reset = await peer.find(frames.RST_STREAM)
    assert reset[2:] == (1, int(Code.PROTOCOL_ERROR).to_bytes(4, "big"))


FORBIDDEN: dict[str, tuple[Code, Callable[[Peer], bytes]]] = {
    "an acknowledgement that says something": (
        Code.FRAME_SIZE_ERROR,
        lambda _: frame(SETTINGS, frames.ACK, 0, bytes(6)),
    ),
    "a push that is neither yes nor no": (
        Code.PROTOCOL_ERROR,
        lambda _: frames.settings({frames.ENABLE_PUSH: 7}),
    ),
    "a ping of a stream": (Code.PROTOCOL_ERROR, lambda _: frame(PING, 0, 1, bytes(8))),
    "a GOAWAY of a stream": (
        Code.PROTOCOL_ERROR,
        lambda _: frame(frames.GOAWAY, 0, 1, bytes(8)),
    ),
    "a priority of three bytes": (
        Code.FRAME_SIZE_ERROR,
        lambda _: frame(frames.PRIORITY, 0, 1, bytes(3)),
    ),
    "a priority of no stream": (
        Code.PROTOCOL_ERROR,
        lambda _: frame(frames.PRIORITY, 0, 0, bytes(5)),
    ),
    "a stream that depends on itself": (
        Code.PROTOCOL_ERROR,
        lambda _: frame(frames.PRIORITY, 0, 3, bytes((0, 0, 0, 3, 0))),
    ),
    "headers of no stream": (Code.PROTOCOL_ERROR, lambda peer: peer.request(0)),
    "a call of a lower number": (
        Code.PROTOCOL_ERROR,
        lambda peer: peer.request(5, "Talk") + peer.request(3, "Talk"),
    ),
    "headers of a call that had ended": (
        Code.STREAM_CLOSED,
        lambda peer: (
            peer.request(1, "Talk")
            + frame(DATA, frames.END_STREAM, 1, message(b"hold"))
            + peer.status(1)
        ),
    ),
    "data of a stream that the peer reset": (
        Code.STREAM_CLOSED,
        lambda peer: (
            peer.request(1, "Talk") + frames.reset(1, Code.CANCEL) + frame(DATA, 0, 1, b"x")
        ),
    ),
    "a window that settings make too large": (
        Code.FLOW_CONTROL_ERROR,
        lambda peer: (
            peer.request(1, "Talk")
            + frames.window_update(1, 2**30)
            + frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31 - 1})
        ),
    ),
    "33 settings": (
        Code.ENHANCE_YOUR_CALM,
        lambda _: frames.settings({0x100 + number: 0 for number in range(33)}),
    ),
}


@pytest.mark.parametrize("what", FORBIDDEN)
async def test_what_is_forbidden_ends_the_connection(what: str, port: int) -> None:
    code, make = FORBIDDEN[what]
    async with dialled(port) as peer:
        peer.send(make(peer))
        assert await peer.ending() == code


@pytest.mark.parametrize("more", [0, 2**31 - 1])
async def test_a_streams_window_that_cannot_be_costs_the_stream(more: int, port: int) -> None:
    code = Code.FLOW_CONTROL_ERROR if more else Code.PROTOCOL_ERROR
    async with dialled(port) as peer:
        peer.send(peer.request(1, "Talk"), frames.window_update(1, more))
        assert (await peer.find(frames.RST_STREAM))[3] == int(code).to_bytes(4, "big")


async def test_settings_come_first(port: int) -> None:
    async with dialled(port, greets=False) as peer:
        peer.send(frames.PREFACE, frame(PING, 0, 0, bytes(8)))
        assert await peer.ending() == Code.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(":method", "GET"), *_with(without=":method")], "405"),
        (_with(without="content-type"), "415"),
    ],
)
async def test_what_is_no_call_of_grpc_is_answered_as_http_does(
    headers: list[tuple[str, str]], status: str, port: int
) -> None:
    async with dialled(port) as peer:
        peer.send(frame(HEADERS, END, 1, peer.headers(*headers)))
        _, _, _, block = await peer.find(HEADERS)
        assert dict(peer.decoder.decode(block))[":status"] == status
        assert b"gRPC" in (await peer.find(DATA))[3]


async def test_a_client_that_goes_away_keeps_its_calls(port: int) -> None:
    async with dialled(port) as peer:
        peer.send(peer.request(1, "Talk"), frames.goaway(0, Code.NO_ERROR))
        peer.send(frame(DATA, 0, 1, message(b"goes on")))
        assert (await peer.find(DATA))[3] == message(b"goes on")


async def test_one_request_means_one(port: int) -> None:
    async with dialled(port) as peer:
        peer.send(peer.request(1), frame(DATA, frames.END_STREAM, 1, message(b"x") * 2))
        _, _, _, block = await peer.find(HEADERS)
    assert dict(peer.decoder.decode(block))["grpc-status"] == str(grpc.StatusCode.INTERNAL.value[0])


async def test_whoever_compresses_learns_what_is_taken(port: int) -> None:
    async with dialled(port) as peer:
        peer.send(
            peer.request(1),
            frame(DATA, 0, 1, b"\x01" + message(b"x")[1:]),
            peer.request(3),
            frame(DATA, frames.END_STREAM, 3, message(b"next")),
        )
        said = dict(peer.decoder.decode((await peer.find(HEADERS))[3]))
        assert (await peer.find(DATA))[2:] == (3, message(b"next"))
    assert said["grpc-status"] == str(grpc.StatusCode.UNIMPLEMENTED.value[0])
    assert said["grpc-accept-encoding"] == "identity"


@pytest.mark.promise("S6-402")
@pytest.mark.parametrize("size", [9_000, 60_000])
async def test_metadata_that_is_large_costs_its_call_alone(size: int, port: int) -> None:
    async with open_channel("core", port) as channel:
        stub = Stub(channel)
        call = stub.talk()
        await call.write(b"before")
        assert await call.read() == b"before"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.one(b"x", metadata=(("word", "~" * size),), timeout=PATIENCE)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await call.write(b"after")
        assert await call.read() == b"after"
        call.cancel()
