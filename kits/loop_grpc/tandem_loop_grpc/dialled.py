"""The dialling end of a connection: its calls begin here, each once the server takes one more."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from math import inf

import grpc

from tandem_loop_grpc import frames, validity
from tandem_loop_grpc.connection import PeerConnection
from tandem_loop_grpc.frames import PREFACE, Code
from tandem_loop_grpc.headers import Headers, has_status, is_grpc, is_interim, of_http
from tandem_loop_grpc.stream import Stream, StreamError


class Dialled(PeerConnection):
    preface = PREFACE
    asked: Mapping[int, int] = {**PeerConnection.asked, frames.ENABLE_PUSH: 0}

    def __init__(self, *, most_bytes: int, silence_seconds: float) -> None:
        super().__init__(most_bytes=most_bytes, silence_seconds=silence_seconds)
        self.accepts = True
        """Whether the connection takes new calls."""
        self._next = 1
        self._most_calls = inf
        """How many calls the server lets be open at once."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Calls that wait for others to end, so that they may begin."""
        self._begins = 0
        """Calls that have waited, and are about to begin."""

    async def room(self) -> bool:
        """A call may begin, once the server takes one more. False: it never will, here."""
        goes_on = self.accepts or self.over
        if self.accepts and (self._waiting or not self._takes_more()):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._begins -= 1
                    self._let_begin()
                raise
            self._begins -= 1
            goes_on = self.accepts
        return goes_on

    def begin(self, first: Headers) -> Stream:
        """A new call. Raises OSError where the connection was lost meanwhile."""
        if not self.accepts:
            raise ConnectionError(self._refusal() if self.goaway else "the connection was lost")
        stream = Stream(self, self._next, most_bytes=self._most_bytes)
        self.streams[self._next] = stream
        self._next += 2
        self.accepts = self._next < frames.LAST_STREAM
        self.send_headers(stream, first)
        return stream

    def known(self, number: int) -> bool:
        return number % 2 == 1 and number < self._next

    def headers(self, number: int, headers: Headers | None, ends: bool) -> None:
        stream = self.streams.get(number)
        if stream is None:
            self.passed_over(number)
            return
        if headers is None:
            raise StreamError(grpc.StatusCode.RESOURCE_EXHAUSTED, "the answer's headers are large")
        if stream.headers:
            validity.check_trailers(headers)
            if not ends:
                raise validity.MalformedError("an answer that begins again")
        elif not self._begin_answer(stream, headers, ends):
            return
        if not ends:
            return
        stream.receive_end(headers)
        if stream.sends:
            self.reset(stream, Code.NO_ERROR)
        else:
            self.forget(stream)

    def _begin_answer(self, stream: Stream, headers: Headers, ends: bool) -> bool:
        """False: there is nothing to go on with. Raises MalformedError and StreamError."""
        validity.check_answer(headers)
        if not ends and is_interim(headers):
            return False
        if not is_grpc(headers) and not (ends and has_status(headers)):
            code, details, _ = of_http(dict(headers))
            raise StreamError(code, details)
        stream.headers = headers
        if not ends:
            stream.expect(validity.content_length(headers))
        return True

    def half_closed(self, stream: Stream) -> None:
        self.fail_stream(
            stream, StreamError(grpc.StatusCode.INTERNAL, "the answer ended without a status")
        )

    def fail_stream(self, stream: Stream, error: StreamError) -> None:
        self.reset(stream, Code.CANCEL)
        stream.fail(error)

    def forget(self, stream: Stream, *, given_up: bool = False) -> None:
        super().forget(stream, given_up=given_up)
        self._let_begin()

    def settings(self, name: int, value: int) -> None:
        super().settings(name, value)
        if name == frames.MAX_CONCURRENT_STREAMS:
            self._most_calls = value
            self._let_begin()

    def left(self, last: int) -> None:
        self.accepts = False
        self._let_begin()
        for stream in [each for number, each in self.streams.items() if number > last]:
            self.forget(stream)
            stream.fail(StreamError(grpc.StatusCode.UNAVAILABLE, self._refusal()))

    def lost(self, reason: str) -> None:
        self.accepts = False
        self._let_begin()

    def _refusal(self) -> str:
        return f"the peer takes no new calls: {self.goaway}"

    def _takes_more(self) -> bool:
        return len(self.streams) + self._begins < self._most_calls

    def _let_begin(self) -> None:
        """Wake those that have waited longest: who may begin here, or all, to go elsewhere."""
        while self._waiting and (self._takes_more() or not self.accepts):
            turn = self._waiting.popleft()
            if not turn.done():  # its call was cancelled
                self._begins += 1
                turn.set_result(None)
