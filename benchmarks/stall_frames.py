"""What stalls.py sends as HTTP/2: floods of frames at a gRPC port, most of them legal singly."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import hpack

from tandem.cli.stack import Stack
from tandem_loop_grpc import frames
from tandem_loop_grpc.frames import ACK, END_HEADERS, END_STREAM, HEAD, HEAD_BYTES, PREFACE, frame

Send = Callable[[Stack], str]
"""Returns how the connection ended."""
Parts = Iterable[bytes]
SECONDS: Final = 4.0
"""That a flood lasts, unless it is cut off."""
CALLS: Final = 100
"""As many as a connection may have open."""
ENTRIES: Final = 2730
"""Settings that a frame of 16 KiB holds."""
_CONNECT: Final = {
    "router": "/tandem.v1.Router/Connect",
    "decode_worker-0": "/tandem.v1.Worker/Connect",
    "prefill_worker-0": "/tandem.v1.Worker/Connect",
}
_MIB: Final = 2**20


def flood(
    parts: Callable[[Callable[[int], bytes]], Parts],
    *,
    at: str = "router",
    first: Mapping[int, int] | None = None,
    calls: int = 0,
    reads: bool = True,
) -> Send:
    """Open `calls` calls with the settings `first`, and send `parts` over and over. `parts` is
    given what makes the HEADERS of a call of a number.
    """

    def send(stack: Stack) -> str:
        encoder = hpack.Encoder()
        address = stack.components[at].address

        def headers(number: int) -> bytes:
            block = encoder.encode(_call(_CONNECT[at], address))
            return frame(frames.HEADERS, END_HEADERS, number, block)

        opening = [PREFACE, frames.settings(first or {})]
        opening += [headers(number) for number in range(1, 2 * calls, 2)]
        return _send(address, itertools.chain(opening, parts(headers)), reads=reads)

    return send


def _call(path: str, authority: str) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]


def _send(address: str, parts: Parts, *, reads: bool) -> str:
    host, _, port = address.rpartition(":")
    heard = bytearray()
    sent = 0
    until = time.monotonic() + SECONDS
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        if reads:
            threading.Thread(target=_read, args=(connection, heard), daemon=True).start()
        with contextlib.suppress(OSError):
            for part in parts:
                connection.sendall(part)
                sent += len(part)
                if time.monotonic() > until:
                    break
        time.sleep(max(0.0, min(0.5, until - time.monotonic())))
        return f"{_ending(bytes(heard))}, {sent / _MIB:.1f} MiB sent"


def _read(connection: socket.socket, heard: bytearray) -> None:
    """Keep the end of what comes."""
    with contextlib.suppress(OSError):
        while data := connection.recv(65_536):
            heard += data
            del heard[:-4096]
    heard += b"\0closed"


def _ending(heard: bytes) -> str:
    """The code of the GOAWAY that was heard, or "open"."""
    for code in frames.Code:
        goaway = HEAD.pack(0, 0, frames.GOAWAY, 0, 0)[3:]
        place = heard.find(goaway)
        if place >= 0 and heard[place + len(goaway) + 4 :][:4] == code.to_bytes(4, "big"):
            return code.name
    return "closed" if heard.endswith(b"\0closed") else "open"


def _repeated(part: bytes, times: int = 1) -> Callable[[Callable[[int], bytes]], Parts]:
    return lambda _: itertools.repeat(part * times)


def _resets(headers: Callable[[int], bytes]) -> Iterator[bytes]:
    for number in itertools.count(1, 2):
        yield headers(number) + frames.reset(number, frames.Code.CANCEL)


def _made_resets(headers: Callable[[int], bytes]) -> Iterator[bytes]:
    """The server is made to reset each call, by a window that grows by nothing."""
    for number in itertools.count(1, 2):
        yield headers(number) + frames.window_update(number, 0)


def _continued(headers: Callable[[int], bytes]) -> Iterator[bytes]:
    yield frame(frames.HEADERS, 0, 1, b"\x82")
    yield from itertools.repeat(frame(frames.CONTINUATION, 0, 1, b"\x00\x01a\x01b" * 200))


def _bombs(headers: Callable[[int], bytes]) -> Iterator[bytes]:
    """A value that is kept in the table, said again 1,000 times in each call."""
    yield headers(1)
    first = b"\x40\x01a\x7f\xb9\x16" + b"b" * 3000
    for number in itertools.count(3, 2):
        yield frame(frames.HEADERS, END_HEADERS, number, first + b"\xbe" * 1000)


def _indexed(headers: Callable[[int], bytes]) -> Iterator[bytes]:
    """Calls of 190 fields of a byte each."""
    for number in itertools.count(1, 2):
        block = headers(number)[HEAD_BYTES:] + b"\x95" * 190
        yield frame(frames.HEADERS, END_HEADERS | END_STREAM, number, block)


def _dribbled(headers: Callable[[int], bytes]) -> Iterator[bytes]:
    """A message of 16 MiB, a byte in each frame."""
    yield headers(1) + frame(frames.DATA, 0, 1, b"\0\1\0\0\0")
    yield from itertools.repeat(frame(frames.DATA, 0, 1, b"x") * 100)


def _bytewise(headers: Callable[[int], bytes]) -> Iterator[bytes]:
    """A byte in each write."""
    while True:
        yield from (bytes([each]) for each in frame(frames.PING, 0, 0, bytes(8)))


def _partial(headers: Callable[[int], bytes]) -> Iterator[bytes]:
    """Messages of 16 MiB that are never whole, in all calls."""
    for number in itertools.cycle(range(1, 2 * CALLS, 2)):
        yield frame(frames.DATA, 0, number, b"\0\1\0\0\0" + bytes(16_000))


def _unread(headers: Callable[[int], bytes]) -> Iterator[bytes]:
    """A MiB for each call, whose handler reads none of it."""
    for _, number in itertools.product(range(70), range(1, 2 * CALLS, 2)):
        yield frame(frames.DATA, 0, number, b"\0\0\0\x3a\x93" + bytes(14_995))


def _empty_messages(headers: Callable[[int], bytes]) -> Iterator[bytes]:
    for number in itertools.cycle(range(1, 2 * CALLS, 2)):
        yield frame(frames.DATA, 0, number, bytes(5 * 3276))


def _windows(headers: Callable[[int], bytes]) -> Iterator[bytes]:
    """The first window of all calls is made a byte larger and smaller, entry by entry."""
    entries = b"\0\4\0\0\xff\xff" + b"\0\4\0\0\xff\xfe"
    yield from itertools.repeat(frame(frames.SETTINGS, 0, 0, entries * (ENTRIES // 2)))


def _tables(headers: Callable[[int], bytes]) -> Iterator[bytes]:
    yield from itertools.repeat(frame(frames.SETTINGS, 0, 0, _table_sizes()))


def _tables_and_a_call(headers: Callable[[int], bytes]) -> Iterator[bytes]:
    """120,000 changes of the table, then a call to what does not exist."""
    yield frame(frames.SETTINGS, 0, 0, _table_sizes()) * 44
    yield headers(1)
    yield frame(frames.DATA, END_STREAM, 1, bytes(5))
    time.sleep(SECONDS / 2)


def _table_sizes() -> bytes:
    return (b"\0\1\0\0\0\0" + b"\0\1\0\0\x10\0") * (ENTRIES // 2)


_ping = frame(frames.PING, 0, 0, bytes(8))
CLASSES: Mapping[str, Send] = {
    "HTTP/2: PING": flood(_repeated(_ping, 500)),
    "HTTP/2: PING, unread": flood(_repeated(_ping, 500), reads=False),
    "HTTP/2: SETTINGS": flood(_repeated(frame(frames.SETTINGS, 0, 0), 500)),
    "HTTP/2: SETTINGS, ACK": flood(_repeated(frame(frames.SETTINGS, ACK, 0), 500)),
    "HTTP/2: SETTINGS, 100 blocked calls": flood(
        _repeated(frame(frames.SETTINGS, 0, 0), 500), first={4: 0}, calls=CALLS
    ),
    "HTTP/2: windows, 100 calls": flood(_windows, calls=CALLS),
    "HTTP/2: table sizes": flood(_tables),
    "HTTP/2: table sizes, a worker": flood(_tables, at="decode_worker-0"),
    "HTTP/2: table sizes, one call": flood(_tables_and_a_call),
    "HTTP/2: empty messages, 100 calls": flood(_empty_messages, calls=CALLS),
    "HTTP/2: 1 MiB unread, 100 calls": flood(_unread, calls=CALLS),
    "HTTP/2: messages never whole": flood(_partial, calls=CALLS),
    "HTTP/2: a message, byte by byte": flood(_dribbled),
    "HTTP/2: writes of a byte": flood(_bytewise),
    "HTTP/2: empty DATA": flood(_repeated(frame(frames.DATA, 0, 1), 500), calls=1),
    "HTTP/2: window of the connection": flood(_repeated(frames.window_update(0, 1), 500)),
    "HTTP/2: that, 100 blocked calls": flood(
        _repeated(frames.window_update(0, 1), 500), first={4: 0}, calls=CALLS
    ),
    "HTTP/2: window of a call": flood(_repeated(frames.window_update(1, 1), 500), calls=1),
    "HTTP/2: rapid resets": flood(_resets),
    "HTTP/2: resets that are made": flood(_made_resets),
    "HTTP/2: calls of 190 fields": flood(_indexed),
    "HTTP/2: headers without end": flood(_continued),
    "HTTP/2: headers that unpack": flood(_bombs),
    "HTTP/2: GOAWAY": flood(_repeated(frames.goaway(0, frames.Code.NO_ERROR), 500)),
    "HTTP/2: priorities": flood(_repeated(frame(frames.PRIORITY, 0, 1, bytes(4) + b"\1"), 500)),
    "HTTP/2: unknown frames": flood(_repeated(frame(0x77, 0, 0, bytes(100)), 100)),
    "HTTP/2: padding": flood(
        _repeated(frame(frames.DATA, 8, 1, b"\xff" + bytes(255)), 50), calls=1
    ),
    "HTTP/2: garbage": flood(_repeated(b"\xa5" * 4096)),
}
