"""What both ends of an HTTP/2 connection do: frames in and out, windows, and how it ends.

Whatever the peer sends costs its own connection: what HTTP/2 forbids, and what is more than a peer
may have us keep, ends it with a GOAWAY that says why; and a connection takes a bounded part of each
turn of the loop, however much has come.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from typing import Any, Final, cast

import grpc
import hpack

from tandem.wire.rpc import frames
from tandem.wire.rpc.frames import (
    HEAD,
    HEAD_BYTES,
    MESSAGE_FRAME_HEAD,
    MESSAGE_HEAD_BYTES,
    Code,
    ProtocolError,
)
from tandem.wire.rpc.header_blocks import HeaderBlocks
from tandem.wire.rpc.headers import MOST_BYTES, Headers, of_reset
from tandem.wire.rpc.stream import WINDOW, Stream, StreamError
from tandem.wire.rpc.watching import ProcessWatch, watch_machine

_CONNECTION_WINDOW: Final = 8 * WINDOW
"""What of it has come is open again at once: streams say what is kept."""
_MOST_PARTIAL: Final = 4
"""Messages that are not whole yet take so many largest messages' bytes together."""
_WORK_A_TURN: Final = 256
"""Frames that are taken in a turn of the loop. Headers count as more, by their size too."""
_WORK_OF_HEADERS: Final = 16
_HEADER_BYTES_A_WORK: Final = 32
_MOST_CONTROL_BYTES: Final = 1024 * 1024
"""So much may wait of answers to the peer's own frames that it does not read."""
_CLOSE_SECONDS: Final = 0.5
_PING_BYTES: Final = 8
_MOST_TABLE_BYTES: Final = 4096
"""So large a table of headers we keep for what we send, where the peer allows it."""


class PeerConnection(asyncio.Protocol):
    """One end. Its subclasses say what begins a stream, and what ends one."""

    preface: bytes = b""
    """What this end sends before its first frame."""
    asked: Mapping[int, int] = {
        frames.INITIAL_WINDOW_SIZE: WINDOW,
        frames.MAX_HEADER_LIST_SIZE: MOST_BYTES,
    }
    """What our settings ask of the peer."""

    def __init__(self, *, most_bytes: int, silence_seconds: float = inf) -> None:
        """`most_bytes` of a message that is received. A peer that says nothing for
        `silence_seconds`, though it was asked, is given up.
        """
        self.first_window = frames.FIRST_WINDOW
        self.streams: dict[int, Stream] = {}
        self.over = False
        """It is lost, or is being closed."""
        self.peername: Any = None
        self._most_bytes = most_bytes
        self._most_at_once = min(most_bytes + MESSAGE_HEAD_BYTES, frames.LEAST_FRAME)
        """Bytes of a frame that holds one message which is taken."""
        self._transport: asyncio.Transport | None = None
        self._window = frames.FIRST_WINDOW
        self._most_frame = frames.LEAST_FRAME
        self.partial = 0
        """Bytes of messages that are not whole yet, of all streams."""
        self.most_partial = _MOST_PARTIAL * most_bytes
        self._received = 0
        """Bytes of DATA that the peer has not been told to send again as many of."""
        self._paused = False
        self._blocked: dict[Stream, None] = {}
        self._rest = b""
        self._more = bytearray()
        """What came after `_rest`, and is not enough for a frame."""
        self._resting = False
        self._greeted = False
        self._gone = asyncio.Event()
        self._encoder = hpack.Encoder()
        self._blocks = HeaderBlocks()
        self._watch = ProcessWatch(
            silence_seconds,
            ping=self._ask,
            give_up=lambda: self.abort("the peer does not answer"),
        )
        self._take: Mapping[int, Callable[[int, int, bytes], None]] = {
            frames.HEADERS: self._on_headers,
            frames.RST_STREAM: self._on_reset,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push_promise,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
            frames.CONTINUATION: self._on_continuation,
        }

    # --- what each end says for itself ---

    def headers(self, number: int, headers: Headers, ends: bool) -> None:
        """The peer began a stream, or an answer, or ended one. Raises ProtocolError."""
        raise NotImplementedError

    def known(self, number: int) -> bool:
        """Whether a stream of that number has ever been."""
        raise NotImplementedError

    def fail_stream(self, stream: Stream, error: StreamError) -> None:
        """What it sent is not taken: end it, and tell the peer."""
        raise NotImplementedError

    def lost(self, reason: str) -> None:
        """The connection is over, and so are its streams."""

    def left(self) -> None:
        """The peer takes no new streams."""

    # --- the transport's ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peername = transport.get_extra_info("peername")
        watch_machine(transport.get_extra_info("socket"))
        more = frames.window_update(0, _CONNECTION_WINDOW - frames.FIRST_WINDOW)
        self._transport.write(self.preface + frames.settings(self.asked) + more)
        self._watch.begin()

    def connection_lost(self, error: Exception | None) -> None:
        self._gone.set()
        self._end(str(error) if error else "the connection was closed")

    def data_received(self, data: bytes) -> None:
        if self.over:
            return
        self._watch.heard = True
        if self._rest or not self._hand_on(data):
            self._receive(data)

    def _hand_on(self, data: bytes) -> bool:
        """Hand on what nearly every read brings: a frame that is one message, for whoever waits for
        it. False: it is something else, and nothing of it was taken.
        """
        size = len(data) - HEAD_BYTES
        if not MESSAGE_HEAD_BYTES <= size <= self._most_at_once:
            return False
        length_and_kind, flags, number, compressed, length = MESSAGE_FRAME_HEAD.unpack_from(data)
        if (
            length_and_kind != size << 8
            or flags
            or compressed
            or length != size - MESSAGE_HEAD_BYTES
            or self._blocks.opening is not None
            or self._received + size > _CONNECTION_WINDOW // 2
        ):
            return False
        stream = self.streams.get(number)
        if stream is None or not stream.give(data[MESSAGE_FRAME_HEAD.size :], size):
            return False
        self._received += size
        return True

    def _receive(self, data: bytes) -> None:
        if self._resting:
            self._more += data
            return
        if self._rest and self._greeted:
            # A frame that comes byte by byte is not put together anew for each of them.
            self._more += data
            if len(self._rest) + len(self._more) >= self._wanted():
                self._work(self._come())
        else:
            self._work(self._rest + data)

    def eof_received(self) -> None:
        """Nothing is sent to a peer that sends nothing more: the transport closes."""

    def pause_writing(self) -> None:
        self._paused = True
        for stream in self.streams.values():
            stream.flow(False)

    def resume_writing(self) -> None:
        self._paused = False
        for stream in self.streams.values():
            if stream not in self._blocked:
                stream.flow(True)
        self._unblock()

    # --- sending ---

    @property
    def security(self) -> ssl.SSLObject | None:
        """The connection's TLS, for the peer's certificate; None: it has none."""
        found = None
        if self._transport is not None:
            found = self._transport.get_extra_info("ssl_object")
        return found

    def send(self, stream: Stream, message: bytes) -> bool:
        """Now, as far as windows and the transport allow, and the rest later. Returns whether the
        next one can be taken.
        """
        size = len(message) + frames.MESSAGE_HEAD_BYTES
        if (
            not stream.unsent
            and not self._paused
            and size <= stream.window
            and size <= self._window
            and size <= self._most_frame
        ):
            stream.window -= size
            self._window -= size
            self._write(frames.message_frame(stream.number, message))
            return not self._paused
        head = frames.MESSAGE_HEAD.pack(0, len(message))
        stream.unsent.append(memoryview(head + message))
        self._flush(stream)
        return not (stream.unsent or self._paused)

    def send_headers(self, stream: Stream, headers: Headers, *, ends: bool = False) -> None:
        """At once: what was to be sent before them has left."""
        stream.begun = True
        block = self._encoder.encode(headers)
        self._write(frames.header_frames(stream.number, block, ends=ends, most=self._most_frame))

    def end(self, stream: Stream) -> None:
        """This end sends no more messages."""
        stream.sends = False
        self.control(frames.frame(frames.DATA, frames.END_STREAM, stream.number))

    def reset(self, stream: Stream, code: Code) -> None:
        """Both ends are done with it."""
        self.forget(stream)
        self.control(frames.reset(stream.number, code))

    def forget(self, stream: Stream) -> None:
        """Nothing of it is sent, or kept, any longer."""
        self.streams.pop(stream.number, None)
        self._blocked.pop(stream, None)
        stream.close()

    def control(self, data: bytes) -> None:
        """Frames that no window bounds. A peer that has them made and does not read them is cut
        off.
        """
        self._write(data)
        if self._paused and self._waiting_bytes() > _MOST_CONTROL_BYTES + self._most_frame:
            self.abort("the peer does not read")

    def _waiting_bytes(self) -> int:
        """What the transport has not sent."""
        waiting = 0
        if self._transport is not None:
            waiting = self._transport.get_write_buffer_size()
        return waiting

    def abort(self, reason: str) -> None:
        """Close without a word, and at once."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    def close(self, code: Code = Code.NO_ERROR, reason: str = "it was closed") -> None:
        """Say so, and close once what was written has left."""
        if not self.over:
            self._write(frames.goaway(self.last_stream(), code, reason))
        if self._transport is not None:
            self._transport.close()
            if self._waiting_bytes():  # the peer may never read it
                loop = asyncio.get_running_loop()
                loop.call_later(_CLOSE_SECONDS, self._transport.abort)
        self._end(reason)

    async def closed(self) -> None:
        """Close, and wait until it is, for a moment: a peer may never read what was written."""
        self.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._gone.wait()
        if self._transport is not None:
            self._transport.abort()

    def last_stream(self) -> int:
        """The last of the peer's streams that was worked on."""
        return 0

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self.over:
            self._transport.write(data)

    def _flush(self, stream: Stream) -> None:
        unsent = stream.unsent
        while unsent and not self._paused:
            part = unsent[0]
            size = min(len(part), self._most_frame, self._window, stream.window)
            if size <= 0:
                break
            stream.window -= size
            self._window -= size
            self._write(frames.frame(frames.DATA, 0, stream.number, bytes(part[:size])))
            if size == len(part):
                unsent.popleft()
            else:
                unsent[0] = part[size:]
        if unsent:
            self._blocked[stream] = None
            stream.flow(False)
        else:
            self._blocked.pop(stream, None)
            stream.flow(not self._paused)

    def _unblock(self) -> None:
        for stream in list(self._blocked):
            self._flush(stream)

    # --- receiving ---

    def _wanted(self) -> int:
        """Bytes of the first frame, as far as that is known."""
        head = self._rest[:HEAD_BYTES]
        head += bytes(self._more[: HEAD_BYTES - len(head)])
        if len(head) < HEAD_BYTES:
            return HEAD_BYTES
        upper, lower, *_ = HEAD.unpack(head)
        return HEAD_BYTES + min(int(upper) << 8 | int(lower), frames.LEAST_FRAME)

    def _come(self) -> bytes:
        """All that waits to be taken."""
        data = self._rest + bytes(self._more)
        self._more.clear()
        return data

    def _work(self, data: bytes) -> None:
        try:
            self._rest = data[self._frames(data) :]
        except ProtocolError as error:
            self.refused(error)
            self.close(error.code, str(error))

    def refused(self, error: ProtocolError) -> None:
        """The peer did what it must not."""

    def _frames(self, data: bytes) -> int:
        """Take what is whole, up to a turn's work. Returns how many bytes that was."""
        place, end, work = 0, len(data), 0
        if not self._greeted:
            place = self.greeting(data)
            if place < 0:
                return 0
        while end - place >= HEAD_BYTES and not self.over:
            upper, lower, kind, flags, number = HEAD.unpack_from(data, place)
            size = (upper << 8) | lower
            if size > frames.LEAST_FRAME:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            start = place + HEAD_BYTES
            if start + size > end:
                break
            work += 1
            if kind in (frames.HEADERS, frames.CONTINUATION):
                work += _WORK_OF_HEADERS + size // _HEADER_BYTES_A_WORK
            if work > _WORK_A_TURN and place:
                self._rest_a_turn()
                break
            place = start + size
            self._frame(kind, flags, number & 0x7FFFFFFF, data[start:place])
        return place

    def greeting(self, data: bytes) -> int:
        """How many bytes come before the first frame, or -1 where that cannot be known yet. Raises
        ProtocolError.
        """
        self._greeted = True
        return 0

    def _rest_a_turn(self) -> None:
        assert self._transport is not None
        self._resting = True
        self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._resting = False
        if self.over:
            return
        self._work(self._come())
        self._read_on()

    def _read_on(self) -> None:
        """What was held back comes, unless there is enough to do still."""
        if not (self._resting or self.over or self._transport is None):
            self._transport.resume_reading()

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._blocks.opening is not None and kind != frames.CONTINUATION:
            raise ProtocolError(Code.PROTOCOL_ERROR, "headers were not ended")
        if kind == frames.DATA:
            self._on_data(flags, number, payload)
        elif (take := self._take.get(kind)) is not None:
            take(flags, number, payload)
        # Others mean nothing to us: RFC 9113, 5.5 has them ignored, and so may priorities be.

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._received += size
        if self._received > _CONNECTION_WINDOW // 2:
            self.control(frames.window_update(0, self._received))
            self._received = 0
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        stream = self.streams.get(number)
        if stream is None:
            if not self.known(number):
                raise ProtocolError(Code.PROTOCOL_ERROR, "data of a stream that never was")
            return  # it was given up here, and the peer did not know that yet
        if stream.ended:
            raise ProtocolError(Code.STREAM_CLOSED, "data of a stream that had ended")
        try:
            if size:
                stream.receive(payload, size)
            if flags & frames.END_STREAM:
                stream.receive_end()
                self.half_closed(stream)
        except StreamError as error:
            self.fail_stream(stream, error)

    def half_closed(self, stream: Stream) -> None:
        """The peer sends no more on it, by a DATA frame."""

    def _on_headers(self, flags: int, number: int, payload: bytes) -> None:
        if (whole := self._blocks.begin(flags, number, payload)) is not None:
            self.headers(*whole)

    def _on_continuation(self, flags: int, number: int, payload: bytes) -> None:
        if (whole := self._blocks.go_on(flags, number, payload)) is not None:
            self.headers(*whole)

    def _on_reset(self, _: int, number: int, payload: bytes) -> None:
        code = frames.number(payload)
        stream = self.streams.get(number)
        if stream is None:
            if not self.known(number):
                raise ProtocolError(Code.PROTOCOL_ERROR, "a reset of a stream that never was")
            return
        self.forget(stream)
        status, name = of_reset(code)
        stream.fail(StreamError(status, f"the peer reset the stream: {name}"))

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ProtocolError(Code.PROTOCOL_ERROR, "settings of a stream")
        if flags & frames.ACK:
            return
        for name, value in frames.read_settings(payload):
            self._set(name, value)
        self.control(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._unblock()

    def _set(self, name: int, value: int) -> None:
        if name == frames.INITIAL_WINDOW_SIZE:
            if value > frames.LARGEST_WINDOW:
                raise ProtocolError(Code.FLOW_CONTROL_ERROR, "too large a window")
            for stream in self.streams.values():
                stream.window += value - self.first_window
            self.first_window = value
        elif name == frames.MAX_FRAME_SIZE:
            if not frames.LEAST_FRAME <= value <= frames.LARGEST_FRAME:
                raise ProtocolError(Code.PROTOCOL_ERROR, "no size of a frame")
            self._most_frame = min(value, WINDOW)
        elif name == frames.HEADER_TABLE_SIZE:
            self._encoder.header_table_size = min(value, _MOST_TABLE_BYTES)

    def _on_push_promise(self, *_: object) -> None:
        raise ProtocolError(Code.PROTOCOL_ERROR, "a push, which was refused")

    def _on_ping(self, flags: int, _: int, payload: bytes) -> None:
        if len(payload) != _PING_BYTES:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "a ping of another size")
        if not flags & frames.ACK:
            self.control(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _on_goaway(self, _: int, __: int, payload: bytes) -> None:
        last, _ = frames.read_goaway(payload)
        self.left()
        for stream in [each for number, each in self.streams.items() if number > last]:
            self.forget(stream)
            stream.fail(StreamError(grpc.StatusCode.UNAVAILABLE, "the peer takes no new calls"))

    def _on_window_update(self, _: int, number: int, payload: bytes) -> None:
        more = frames.number(payload) & 0x7FFFFFFF
        stream = self.streams.get(number) if number else None
        if number and stream is None:
            if not self.known(number):
                raise ProtocolError(Code.PROTOCOL_ERROR, "a window of a stream that never was")
            return
        if not more:
            raise ProtocolError(Code.PROTOCOL_ERROR, "a window that grows by nothing")
        if stream is None:
            self._window += more
            if self._window > frames.LARGEST_WINDOW:
                raise ProtocolError(Code.FLOW_CONTROL_ERROR, "too large a window")
            self._unblock()
            return
        stream.window += more
        if stream.window > frames.LARGEST_WINDOW:
            raise ProtocolError(Code.FLOW_CONTROL_ERROR, "too large a window")
        if stream in self._blocked:
            self._flush(stream)

    # --- how it ends ---

    def _ask(self) -> None:
        self.control(frames.frame(frames.PING, 0, 0, bytes(_PING_BYTES)))

    def _end(self, reason: str) -> None:
        if self.over:
            return
        self.over = True
        self._watch.stop()
        streams = list(self.streams.values())
        self.streams.clear()
        self._blocked.clear()
        for stream in streams:
            stream.close()
            stream.fail(StreamError(grpc.StatusCode.UNAVAILABLE, reason))
        self.lost(reason)
