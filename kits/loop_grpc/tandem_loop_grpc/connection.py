"""What both ends of an HTTP/2 connection do: frames in and out, windows, and how it ends.

Whatever the peer sends costs its own connection: what HTTP/2 forbids, and what is more than a peer
may have us keep, ends it with a GOAWAY that says why; and a connection takes a bounded part of each
turn of the loop, however much has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from math import inf
from typing import Final

import grpc

from tandem_loop_grpc import frames, header_blocks, work
from tandem_loop_grpc.budget import UnreadBytes
from tandem_loop_grpc.closed_streams import ClosedStreams
from tandem_loop_grpc.frames import (
    HEAD_BYTES,
    MESSAGE_FRAME_HEAD,
    MESSAGE_HEAD_BYTES,
    Code,
    ProtocolError,
)
from tandem_loop_grpc.header_blocks import HeaderBlocks, Whole
from tandem_loop_grpc.headers import MOST_BYTES, Headers, of_reset
from tandem_loop_grpc.link import Link
from tandem_loop_grpc.reading import FrameReader
from tandem_loop_grpc.stream import WINDOW, Stream, StreamError
from tandem_loop_grpc.validity import MalformedError
from tandem_loop_grpc.work import Calm, ConnectionWork

CONNECTION_WINDOW: Final = 8 * WINDOW
"""Bytes of whole messages that may wait unread; partial messages do not count here."""
_MOST_PARTIAL: Final = 4
"""Messages that are not whole yet take so many largest messages' bytes together."""
_HELD_STEP: Final = 64 * 1024
"""What is kept is told to the budget in steps of so many bytes."""
_WITH_CONTENT: Final = (frames.DATA, frames.HEADERS)


class PeerConnection(Link):
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
        super().__init__(silence_seconds)
        self.first_window = frames.FIRST_WINDOW
        self.streams: dict[int, Stream] = {}
        self._most_bytes = most_bytes
        self._most_at_once = min(most_bytes + MESSAGE_HEAD_BYTES, frames.LEAST_FRAME)
        """Bytes of a frame that holds one message which is taken."""
        self._window = self._allowed = frames.FIRST_WINDOW
        """Bytes that the peer takes now, and has allowed from the beginning."""
        self.unread = 0
        """Bytes of messages that wait to be read, of all streams."""
        self.partial = 0
        """Bytes of messages that are not whole yet, of all streams."""
        self.most_partial = _MOST_PARTIAL * most_bytes
        self._held: UnreadBytes | None = None
        self._received = self._allowed_again = 0
        """Bytes of DATA that the peer has not been told to send again as many of, and has."""
        self._blocked: dict[Stream, None] = {}
        self._unblocks = False
        """What is blocked is to be tried, once for all frames that were taken in a row."""
        self.goaway = ""
        """Why the peer goes away, as its last GOAWAY says."""
        self._settled = False
        """The peer has said its settings, which come first."""
        self._blocks = HeaderBlocks()
        self._closed = ClosedStreams()
        self.work = ConnectionWork()
        self._calm = Calm(asyncio.get_running_loop().time, self._moved)
        self._reader = FrameReader(self, self.work)
        self._take: Mapping[int, Callable[[int, int, bytes], None]] = {
            frames.DATA: self._on_data,
            frames.HEADERS: self._on_headers,
            frames.PRIORITY: self._on_priority,
            frames.RST_STREAM: self._on_reset,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push_promise,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
            frames.CONTINUATION: self._on_continuation,
        }

    # --- what each end says for itself ---

    def headers(self, number: int, headers: Headers | None, ends: bool) -> None:
        """The peer began a stream, or an answer, or ended one; None: by more than headers may be.
        Raises ProtocolError, and MalformedError where that costs the stream alone.
        """
        raise NotImplementedError

    def known(self, number: int) -> bool:
        """Whether a stream of that number has ever been."""
        raise NotImplementedError

    def fail_stream(self, stream: Stream, error: StreamError) -> None:
        """What it sent is not taken: end it, and tell the peer."""
        raise NotImplementedError

    def lost(self, reason: str) -> None:
        """The connection is over, and so are its streams."""

    def left(self, last: int) -> None:
        """The peer takes no new streams, and works on those of ours up to `last`."""

    # --- the transport's ---

    def first_bytes(self) -> bytes:
        more = frames.window_update(0, CONNECTION_WINDOW - frames.FIRST_WINDOW)
        return self.preface + frames.settings(self.asked) + more

    def data_received(self, data: bytes) -> None:
        if self.over:
            return
        self._watch.heard = True
        if self._reader.rest or not self._hand_on(data):
            self._reader.receive(data)

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
            or self._received + size > CONNECTION_WINDOW // 2
        ):
            return False
        stream = self.streams.get(number)
        if stream is None or not stream.give(data[MESSAGE_FRAME_HEAD.size :], size):
            return False
        self._received += size
        return True

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
            and size <= self.most_frame
        ):
            stream.window -= size
            self._window -= size
            self._write(frames.message_frame(stream.number, message))
            return not self._paused
        head = frames.MESSAGE_HEAD.pack(0, len(message))
        stream.unsent.append(memoryview(head + message))
        self.flush(stream)
        return not (stream.unsent or self._paused)

    def send_headers(self, stream: Stream, headers: Headers, *, ends: bool = False) -> None:
        """At once: what was to be sent before them has left."""
        stream.begun = True
        block = header_blocks.encoded(headers)
        self._write(frames.header_frames(stream.number, block, ends=ends, most=self.most_frame))

    def end(self, stream: Stream) -> None:
        """Say that this end sends no more messages."""
        stream.sends = False
        self.control(frames.frame(frames.DATA, frames.END_STREAM, stream.number))

    def reset(self, stream: Stream, code: Code) -> None:
        """Reset a stream: both ends are done with it."""
        self.forget(stream, given_up=not stream.ended)
        self.control(frames.reset(stream.number, code))

    def forget(self, stream: Stream, *, given_up: bool = False) -> None:
        """Nothing of it is sent, or kept, any longer. `given_up`: the peer may still send, which it
        is not told for doing wrong.
        """
        self._closed.add(stream.number, given_up=given_up)
        self.streams.pop(stream.number, None)
        self._blocked.pop(stream, None)
        stream.close()

    def flush(self, stream: Stream) -> None:
        """Send what of it has not left, as far as windows and the transport allow."""
        unsent = stream.unsent
        while unsent and not self._paused:
            part = unsent[0]
            size = min(len(part), self.most_frame, self._window, stream.window)
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
        self._unblocks = False
        for stream in list(self._blocked):
            if self._window <= 0 or self._paused:
                return
            self.work.left -= 1
            self.flush(stream)

    # --- receiving ---

    def refused(self, error: ProtocolError) -> None:
        """The peer did what it must not."""

    def greeting(self, data: bytes) -> int:
        """How many bytes come before the first frame, or -1 where that cannot be known yet. Raises
        ProtocolError.
        """
        return 0

    def refuse(self, error: ProtocolError) -> None:
        """Close the connection, and tell the peer why."""
        self.refused(error)
        self.close(error.code, str(error))

    def taken(self) -> None:
        """Some frames were taken in a row: send what they allow."""
        if self._unblocks:
            self._unblock()
        if self._held is not None:
            self._count_held()

    def take_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Raises ProtocolError."""
        if self._blocks.opening is not None and kind != frames.CONTINUATION:
            raise ProtocolError(Code.PROTOCOL_ERROR, "headers were not ended")
        if not self._settled:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise ProtocolError(Code.PROTOCOL_ERROR, "the first frame holds no settings")
            self._settled = True
        if kind not in _WITH_CONTENT:
            self._calm.use()
        # RFC 9113, 5.5 has those of no meaning ignored.
        if (take := self._take.get(kind)) is None:
            return
        try:
            take(flags, number, payload)
        except MalformedError as error:
            self.malformed(number, str(error))
        except StreamError as error:
            if (stream := self.streams.get(number)) is not None:
                self.fail_stream(stream, error)

    def malformed(self, number: int, reason: str, code: Code = Code.PROTOCOL_ERROR) -> None:
        """What the peer sent on a stream costs that stream."""
        self._calm.use()
        stream = self.streams.get(number)
        if stream is None:
            self._closed.add(number, given_up=True)
            self.control(frames.reset(number, code))
            return
        self.reset(stream, code)
        stream.fail(StreamError(grpc.StatusCode.INTERNAL, f"the peer broke HTTP/2: {reason}"))

    def passed_over(self, number: int) -> None:
        """Something came on a stream that is over. Raises ProtocolError, unless the peer may not
        have known.
        """
        if not self.known(number):
            raise ProtocolError(Code.PROTOCOL_ERROR, "a stream that never was")
        if number in self._closed and not self._closed.given_up(number):
            raise ProtocolError(Code.STREAM_CLOSED, "more of a stream that was over")
        self._calm.use()
        self.open_window()

    # --- what is kept ---

    def open_window(self) -> None:
        """Let the peer send again what of its DATA does not wait to be read, where that is worth a
        frame.
        """
        again = self._received - self.unread
        if again > CONNECTION_WINDOW // 2 and not self.over:
            self._received -= again
            self._allowed_again += again
            self.control(frames.window_update(0, again))
        if not self.unread and self._held is not None:
            self._count_held()

    def hold(self, held: UnreadBytes) -> None:
        """Count this connection's unread bytes there."""
        self._held = held

    def _count_held(self) -> None:
        """Tell the budget what is kept, in steps."""
        assert self._held is not None
        kept = self.unread + self.partial
        more = kept - self._held.size
        if more >= _HELD_STEP:
            self._held.grow(more)
        elif more <= -_HELD_STEP or (not kept and more):
            self._held.give_back(-more)

    def _moved(self) -> int:
        """Bytes of DATA that went either way."""
        sent = self._allowed - self._window
        return sent + self._received + self._allowed_again

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._received += size
        if self._received > CONNECTION_WINDOW:
            raise ProtocolError(Code.FLOW_CONTROL_ERROR, "more than the connection's window")
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        if not (payload or flags & frames.END_STREAM):
            self._calm.use(1 + size)
        stream = self.streams.get(number)
        if stream is None:
            self.passed_over(number)
        elif stream.ended:
            raise ProtocolError(Code.STREAM_CLOSED, "data of a stream that had ended")
        else:
            try:
                if size:
                    stream.receive(payload, size)
                if flags & frames.END_STREAM:
                    stream.receive_end()
                    self.half_closed(stream)
            finally:
                if self._received > CONNECTION_WINDOW // 2:
                    self.open_window()

    def half_closed(self, stream: Stream) -> None:
        """The peer sends no more on it, by a DATA frame."""

    def _on_headers(self, flags: int, number: int, payload: bytes) -> None:
        self._headers(self._blocks.begin(flags, number, payload))

    def _on_continuation(self, flags: int, number: int, payload: bytes) -> None:
        self._headers(self._blocks.go_on(flags, number, payload))

    def _headers(self, whole: Whole | None) -> None:
        if whole is None:
            return
        number, headers, ends = whole
        if headers is None:
            self._calm.use(work.OF_HEADERS)
        else:
            self.work.left -= work.of_header_fields(len(headers))
        self.headers(number, headers, ends)

    def _on_priority(self, _: int, number: int, payload: bytes) -> None:
        frames.check_priority(number, payload)

    def _on_reset(self, _: int, number: int, payload: bytes) -> None:
        code = frames.number(payload)
        stream = self.streams.get(number)
        if stream is None:
            if not self.known(number):
                raise ProtocolError(Code.PROTOCOL_ERROR, "a reset of a stream that never was")
            self._closed.add(number, given_up=False)  # from now on the peer knows
            return
        self.forget(stream)
        status, name = of_reset(code)
        stream.fail(StreamError(status, f"the peer reset the stream: {name}"))

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ProtocolError(Code.PROTOCOL_ERROR, "settings of a stream")
        if flags & frames.ACK:
            if payload:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, "settings of another size")
            return
        self._calm.use(work.OF_SETTINGS - 1)
        said = frames.read_settings(payload)
        for name, value in said:
            frames.check_setting(name, value)
        for name, value in dict(said).items():  # the last one of a name is what holds
            self.settings(name, value)
        self.control(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def settings(self, name: int, value: int) -> None:
        """The peer says what it takes. Raises ProtocolError."""
        if name == frames.INITIAL_WINDOW_SIZE:
            more, self.first_window = value - self.first_window, value
            self.work.left -= work.of_streams(len(self.streams))
            for stream in self.streams.values():
                stream.window += more
                if stream.window > frames.LARGEST_WINDOW:
                    raise ProtocolError(Code.FLOW_CONTROL_ERROR, "too large a window")
            self._unblocks = True
        elif name == frames.MAX_FRAME_SIZE:
            self.most_frame = min(value, WINDOW)

    def _on_push_promise(self, *_: object) -> None:
        raise ProtocolError(Code.PROTOCOL_ERROR, "a push, which was refused")

    def _on_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ProtocolError(Code.PROTOCOL_ERROR, "a ping of a stream")
        if len(payload) != frames.PING_BYTES:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "a ping of another size")
        if not flags & frames.ACK:
            self.control(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _on_goaway(self, _: int, number: int, payload: bytes) -> None:
        if number:
            raise ProtocolError(Code.PROTOCOL_ERROR, "a GOAWAY of a stream")
        last, _ = frames.read_goaway(payload)
        self.goaway = frames.goaway_reason(payload)
        self.left(last)

    def _on_window_update(self, _: int, number: int, payload: bytes) -> None:
        more = frames.number(payload) & frames.LARGEST_WINDOW
        if number == 0:
            if not more:
                raise ProtocolError(Code.PROTOCOL_ERROR, "a window that grows by nothing")
            self._window += more
            self._allowed += more
            if self._window > frames.LARGEST_WINDOW:
                raise ProtocolError(Code.FLOW_CONTROL_ERROR, "too large a window")
            self._unblocks = True
            return
        stream = self.streams.get(number)
        if stream is None:
            if not self.known(number):
                raise ProtocolError(Code.PROTOCOL_ERROR, "a window of a stream that never was")
            return
        stream.window += more
        if not more:
            self.malformed(number, "a window that grows by nothing")
        elif stream.window > frames.LARGEST_WINDOW:
            self.malformed(number, "too large a window", Code.FLOW_CONTROL_ERROR)
        elif stream in self._blocked:
            self.work.left -= 1
            self.flush(stream)

    # --- how it ends ---

    def ended(self, reason: str) -> None:
        streams = list(self.streams.values())
        self.streams.clear()
        self._blocked.clear()
        if self._held is not None:
            self._held.close()
        if self.goaway:
            reason = f"{reason}; the peer had said: {self.goaway}"
        for stream in streams:
            stream.close()
            stream.fail(StreamError(grpc.StatusCode.UNAVAILABLE, reason))
        self.lost(reason)
