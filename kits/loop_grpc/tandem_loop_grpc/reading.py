"""From the bytes of a connection to its frames, as many in a turn of the loop as it may take."""

from __future__ import annotations

from typing import Final, Protocol

from tandem_loop_grpc import frames, work
from tandem_loop_grpc.frames import HEAD, HEAD_BYTES, Code, ProtocolError
from tandem_loop_grpc.work import ConnectionWork

_WITH_HEADERS: Final = (frames.HEADERS, frames.CONTINUATION)


class ReadingOwner(Protocol):
    """The connection that reads."""

    over: bool

    def greeting(self, data: bytes) -> int:
        """How many bytes come before the first frame, or -1 where that cannot be known yet. Raises
        ProtocolError.
        """
        ...

    def take_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Raises ProtocolError."""
        ...

    def taken(self) -> None:
        """Some frames were taken in a row."""
        ...

    def refuse(self, error: ProtocolError) -> None:
        """The peer did what it must not."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class FrameReader:
    """Keeps what is no whole frame yet, and what is left for later turns."""

    def __init__(self, owner: ReadingOwner, account: ConnectionWork) -> None:
        self.rest = b""
        """What came, from its first frame on that was not taken."""
        self.resting = False
        """The connection has done its part of this turn: nothing is read, and what comes waits."""
        self._more = bytearray()
        """What came after `rest`, and is not enough for a frame."""
        self._owner = owner
        self._work = account
        self._greeted = False

    def receive(self, data: bytes) -> None:
        """Take the whole frames of bytes that came."""
        if self.resting:
            self._more += data
            return
        if self.rest and self._greeted:
            # A frame that comes byte by byte is not put together anew for each of them.
            self._more += data
            if len(self.rest) + len(self._more) >= self._wanted():
                self._take(self._come())
        else:
            self._take(self.rest + data)

    def _wanted(self) -> int:
        """Bytes of the first frame, as far as that is known."""
        head = self.rest[:HEAD_BYTES]
        head += bytes(self._more[: HEAD_BYTES - len(head)])
        if len(head) < HEAD_BYTES:
            return HEAD_BYTES
        upper, lower, *_ = HEAD.unpack(head)
        return HEAD_BYTES + min(int(upper) << 8 | int(lower), frames.LEAST_FRAME)

    def _come(self) -> bytes:
        """Take all waiting bytes."""
        data = self.rest + bytes(self._more)
        self._more.clear()
        return data

    def _take(self, data: bytes) -> None:
        try:
            self.rest = data[self._frames(data) :]
        except ProtocolError as error:
            self._owner.refuse(error)
        else:
            self._owner.taken()

    def _frames(self, data: bytes) -> int:
        """Take what is whole, up to the connection's part of the turn. Returns how many bytes that
        was.
        """
        place, end = 0, len(data)
        owner, account = self._owner, self._work
        if not self._greeted:
            place = owner.greeting(data)
            if place < 0:
                return 0
            self._greeted = True
        spent = account.there() <= 0
        while end - place >= HEAD_BYTES and not owner.over:
            upper, lower, kind, flags, number = HEAD.unpack_from(data, place)
            size = (upper << 8) | lower
            if size > frames.LEAST_FRAME:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            start = place + HEAD_BYTES
            if start + size > end:
                break
            if spent or account.left <= 0:
                self._rest_a_turn()
                break
            account.left -= 1
            if kind in _WITH_HEADERS:
                account.left -= work.OF_HEADERS + work.of_header_bytes(size)
            place = start + size
            owner.take_frame(kind, flags, number & 0x7FFFFFFF, data[start:place])
        account.there()
        return place

    def _rest_a_turn(self) -> None:
        self.resting = True
        self._owner.pause_reading()
        self._work.wait(self._go_on)

    def _go_on(self) -> None:
        self.resting = False
        if self._owner.over:
            return
        self._take(self._come())
        if not self.resting:
            self._owner.resume_reading()
