"""One call's stream of a connection: whole messages in, whole messages out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import grpc

from tandem_loop_grpc import frames, work
from tandem_loop_grpc.frames import MESSAGE_HEAD, MESSAGE_HEAD_BYTES, Code, ProtocolError
from tandem_loop_grpc.headers import Headers, Metadata
from tandem_loop_grpc.validity import MalformedError

if TYPE_CHECKING:
    from tandem_loop_grpc.connection import PeerConnection

WINDOW: Final = 1024 * 1024
"""Bytes that a peer may send on a stream before they are read, beside one message."""
_MOST_IN_A_ROW: Final = 64
"""Messages that are read without a turn of the loop in between, and that are cut out of what came
before they are read.
"""
_COUNTED_IN_A_ROW: Final = 16
"""Messages that are read before the loop is told."""
_LEAST_COUNTED: Final = 4 * 1024
"""Bytes of whole messages that wait: fewer are not worth counting."""
_ENCODINGS: Final = (("grpc-accept-encoding", "identity"),)


class StreamError(Exception):
    """The stream is over, and not in good order."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: Metadata = ()) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.metadata = metadata


class _Taker:
    """The function that is given a stream's messages as they come."""

    def __init__(self, take: Callable[[bytes], object]) -> None:
        self.over: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        """The answer of `take` that ends the handing on, or how the stream ended."""
        self.busy = False
        """Whether a message is being taken, or a turn of the loop is left out: others wait
        meanwhile.
        """
        self._take = take

    def give(self, message: bytes) -> None:
        self.busy = True
        try:
            answer = self._take(message)
        except Exception as error:  # noqa: BLE001 - for whoever hands on
            self.end(error)
        else:
            if answer is not None:
                self.end(answer)
        finally:
            self.busy = False

    def end(self, how: object) -> None:
        """By an answer or an error, unless it is over: what is taken may cancel who hands on."""
        if self.over.done():
            return
        if isinstance(how, Exception):
            self.over.set_exception(how)
        else:
            self.over.set_result(how)


class Stream:
    """What its connection keeps of it, and what its call reads and writes."""

    def __init__(self, connection: PeerConnection, number: int, *, most_bytes: int) -> None:
        """`most_bytes`: a larger message ends it."""
        self.number = number
        self.headers: Headers = ()
        """The peer's first headers; empty until they come."""
        self.trailers: Headers | None = None
        """The peer's last ones, where it ended a call by them."""
        self.ended = False
        """The peer sends nothing more."""
        self.error: StreamError | None = None
        self.begun = False
        """Whether this end has sent its first headers."""
        self.sends = True
        """Whether this end may send more messages."""
        self.closed = False
        """Whether the connection has forgotten the stream: nothing is sent any longer."""
        self.on_failure: Callable[[], object] | None = None
        """Called when the stream fails."""
        self.window = connection.first_window
        """Bytes that the peer takes."""
        self.unsent: deque[memoryview] = deque()
        """Messages that have not left, with their heads; the first may be there in part."""
        self._connection = connection
        self._most_bytes = most_bytes
        self._messages: deque[bytes] = deque()
        self._part = bytearray()
        """What came and is not cut: of a message that is not whole yet, if no message waits."""
        self._waiting_bytes = 0
        """Bytes that `_messages` took, with their heads."""
        self._counted_waiting = self._counted_part = 0
        """As the connection counts them."""
        self._discards = False
        self._to_come: int | None = None
        """Bytes of DATA that the peer said it would send still; None: it did not say."""
        self._unread = 0
        """Bytes that came, and that the peer has not been told to send again as many of."""
        self._in_a_row = 0
        self._reader: asyncio.Future[None] | None = None
        self._taker: _Taker | None = None
        self._direct: _Taker | None = None
        """`_taker`, unless what comes has to be counted."""
        self._flows = asyncio.Event()
        self._flows.set()

    # --- what its call does ---

    async def read(self) -> bytes | None:
        """The next message; None: there are no more. Raises StreamError once those that came before
        the error are read. One task reads.
        """
        if not self._messages:
            await self._news()
        elif not self._in_a_row % _COUNTED_IN_A_ROW or self._connection.work.left <= 0:
            await self._rest()
        if self._messages:
            self._in_a_row += 1
            message = self._next()
            self._refill()
            return message
        if self.error is not None:
            raise self.error
        return None

    async def hand_on(self, take: Callable[[bytes], object]) -> object:
        """Give each message to `take` in the turn of the loop in which it comes, instead of having
        it read. Returns what `take` answers, unless that is None, and None once there are no more
        messages. Raises what `take` raises, and StreamError as `read` does.
        """
        taker = self._taker = _Taker(take)
        self._direct = taker if self._to_come is None else None
        try:
            self._give()
            return await taker.over
        finally:
            self._taker = self._direct = None

    async def write(self, message: bytes) -> None:
        """Returns once the next one can be taken. Raises StreamError where it cannot leave."""
        if not self.put(message):
            await self.flushed()

    def put(self, message: bytes) -> bool:
        """Write it. Returns whether the next one can be taken; else it can once `flushed` returns.
        Raises StreamError where it cannot leave.
        """
        if self.closed or self.error is not None:
            self._check()
        return self._connection.send(self, message)

    def put_page(self, page: bytes) -> None:
        """Write what is no message."""
        self._check()
        self.unsent.append(memoryview(page))
        self._connection.flush(self)

    async def flushed(self) -> None:
        """Wait until every written byte has left. Raises StreamError where the stream fails."""
        await self._flows.wait()
        self._check()

    def send_headers(self, headers: Headers, *, ends: bool = False) -> None:
        """Before the first message, or after the last one has left."""
        if not self.closed:
            self._connection.send_headers(self, headers, ends=ends)

    def end(self) -> None:
        """No more messages are written, and those that were have left."""
        if not self.closed:
            self._connection.end(self)

    def forget(self) -> None:
        """Forget the stream: both ends have said all."""
        if not self.closed:
            self._connection.forget(self)

    def give_up(self, error: StreamError) -> None:
        """End it from this side."""
        if not self.closed:
            self._connection.fail_stream(self, error)

    # --- what its connection does ---

    def give(self, message: bytes, size: int) -> bool:
        """Hand on a message that took `size` bytes of the window, where that is all there is to do.
        False: it is not, and the message is to be received as others are.
        """
        taker = self._direct
        if (
            taker is None
            or taker.busy
            or taker.over.done()
            or self._part
            or self._unread + size >= WINDOW // 2
        ):
            return False
        self._unread += size
        taker.give(message)
        if self._messages or self.ended:
            self._give()
        return True

    def receive(self, content: bytes, size: int) -> None:
        """`content` of a DATA frame, which took `size` bytes of the window. Raises StreamError
        where the peer sends what this end does not take, MalformedError and ProtocolError.
        """
        self._unread += size
        if self._unread > WINDOW:
            raise ProtocolError(Code.FLOW_CONTROL_ERROR, "more than a stream's window")
        if self._to_come is not None:
            self._to_come -= len(content)
            if self._to_come < 0:
                raise MalformedError("more than its content-length")
        if self._discards:
            self._take_more()
            return
        if not self._part and len(content) >= MESSAGE_HEAD_BYTES:
            compressed, length = MESSAGE_HEAD.unpack_from(content)
            if not compressed and length == len(content) - MESSAGE_HEAD_BYTES <= self._most_bytes:
                self._take_in(content[MESSAGE_HEAD_BYTES:])
                return
        self._part += content
        if not self._messages:
            self._cut()
            self._wake()
        self._count()
        if self._connection.partial > self._connection.most_partial:
            raise StreamError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "too much of messages that are not whole"
            )
        if not self._messages:
            self._take_more()

    def expect(self, size: int | None) -> None:
        """The peer says how many bytes of DATA it sends; None: it does not."""
        self._to_come = size
        if size is not None:
            self._direct = None

    def discard(self) -> None:
        """What comes is no message, and means nothing."""
        self._discards = True

    def receive_end(self, trailers: Headers | None = None) -> None:
        """The peer sends nothing more. Raises StreamError where a message is not whole, and
        MalformedError where it said that more would come.
        """
        if self._to_come:
            raise MalformedError("less than its content-length")
        if self._part and not self._messages:
            raise _not_whole()
        self.trailers = trailers
        self.ended = True
        self._wake()

    def fail(self, error: StreamError) -> None:
        """End the stream with an error; messages that have come may still be read."""
        self.error = self.error or error
        self.ended = True
        self._wake()
        if self.on_failure is not None:
            self.on_failure()

    def close(self) -> None:
        """Note that the connection has forgotten the stream."""
        self.closed = True
        if not self._messages:
            self._part.clear()
        self._count()
        self.unsent.clear()
        self._flows.set()

    def flow(self, flows: bool) -> None:
        """Whether whoever writes may go on."""
        if flows:
            self._flows.set()
        else:
            self._flows.clear()

    # --- inside ---

    async def _rest(self) -> None:
        """Until a later turn, where this one has no more to give."""
        account = self._connection.work
        if account.there() <= 0 or self._in_a_row >= _MOST_IN_A_ROW:
            self._in_a_row = 0
            await account.later_turn()

    def _check(self) -> None:
        """Raises StreamError where nothing can be sent."""
        if self.error is not None:
            raise self.error
        if self.closed:
            raise StreamError(grpc.StatusCode.CANCELLED, "the call is over")

    def _take_in(self, message: bytes) -> None:
        """A message that came whole, behind those that wait."""
        taker = self._direct
        if taker is None or taker.busy or self._messages or taker.over.done():
            self._put_in(message)
            self._wake()
            if self._waiting_bytes >= _LEAST_COUNTED:
                self._count()
            return
        self._connection.work.left -= work.OF_A_MESSAGE
        taker.give(message)
        if self._messages or self.ended:
            self._give()
        elif self._unread >= WINDOW // 2:
            self._take_more()

    def _put_in(self, message: bytes) -> None:
        self._messages.append(message)
        self._waiting_bytes += len(message) + MESSAGE_HEAD_BYTES

    def _next(self) -> bytes:
        """The first message that waits."""
        message = self._messages.popleft()
        self._waiting_bytes -= len(message) + MESSAGE_HEAD_BYTES
        self._connection.work.left -= work.OF_A_MESSAGE
        return message

    def _refill(self) -> None:
        """Once no message waits, cut the next ones, or have the peer send more. What of them is not
        taken could not be refused when it came: those before it were not read.
        """
        if self._messages:
            return
        if self._part:
            try:
                self._cut()
                if self.ended and self._part and not self._messages:
                    raise _not_whole()
            except StreamError as error:
                self.give_up(error)
                self.error = self.error or error
        if not self._messages:
            self._take_more()

    def _cut(self) -> None:
        """A row of messages out of what has come. Raises StreamError."""
        place, part = 0, self._part
        try:
            while len(self._messages) < _MOST_IN_A_ROW:
                size = self._whole(place)
                if not size:
                    break
                self._put_in(bytes(memoryview(part)[place + MESSAGE_HEAD_BYTES : place + size]))
                place += size
        except StreamError:
            place = len(part)
            raise
        finally:
            self._connection.work.left -= work.of_cut_messages(len(self._messages))
            if place:
                del part[:place]

    def _whole(self, place: int) -> int:
        """Bytes of the message that begins there, if it is whole; else 0. Raises StreamError where
        it is not taken.
        """
        left = len(self._part) - place
        if left < MESSAGE_HEAD_BYTES:
            return 0
        compressed, length = MESSAGE_HEAD.unpack_from(self._part, place)
        if compressed:
            code, why = grpc.StatusCode.UNIMPLEMENTED, "a compressed message"
            raise StreamError(code, why, _ENCODINGS)
        if length > self._most_bytes:
            why = f"a message of {length} bytes; {self._most_bytes} are taken"
            raise StreamError(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        size: int = MESSAGE_HEAD_BYTES + length
        return size if size <= left else 0

    def _count(self) -> None:
        """Tell the connection what it keeps: what waits to be read, and what is not whole."""
        waiting = part = 0
        if not self.closed:
            if self._messages:
                waiting = self._waiting_bytes + len(self._part)
            else:
                part = len(self._part)
        if waiting != self._counted_waiting or part != self._counted_part:
            connection = self._connection
            connection.unread += waiting - self._counted_waiting
            connection.partial += part - self._counted_part
            self._counted_waiting, self._counted_part = waiting, part

    def _take_more(self) -> None:
        """Nothing waits to be read: let the peer send as much again, where that is worth a frame.
        So what is kept is a window, and one message that may be larger.
        """
        if self._counted_waiting:
            self._count()
            self._connection.open_window()
        if self._unread >= WINDOW // 2 and not self.ended:
            self._connection.control(frames.window_update(self.number, self._unread))
            self._unread = 0

    def _give(self) -> None:
        """Hand on what is there, and how the stream ended."""
        taker = self._taker
        if taker is None or taker.busy:
            return
        room = max(1, self._connection.work.there() // work.OF_A_MESSAGE)
        for _ in range(min(len(self._messages), _MOST_IN_A_ROW, room)):
            if not taker.over.done():
                taker.give(self._next())
        self._refill()
        if taker.over.done():
            return
        if self._messages:
            taker.busy = True
            self._connection.work.wait(partial(self._rested, taker))
            return
        if self.ended:
            taker.end(self.error)

    def _rested(self, taker: _Taker) -> None:
        taker.busy = False
        self._give()

    async def _news(self) -> None:
        while not (self._messages or self.ended):
            self._in_a_row = 0
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def _wake(self) -> None:
        if self._taker is not None:
            self._give()
        elif self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _not_whole() -> StreamError:
    return StreamError(grpc.StatusCode.INTERNAL, "the last message is not whole")
