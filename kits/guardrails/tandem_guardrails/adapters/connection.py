"""One connection to a guardrail service. It brings one answer to each request, and is used again
only where the answer was exactly one: else a verdict could reach the output after it.

Bytes are read whenever they come, also while nothing was asked: whatever comes then is nobody's
answer, and ends the connection. h11 parses, and knows where an answer ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import h11

from tandem.hooks.classifiers.contract import ScoringError
from tandem_guardrails.adapters.breaker import UnavailableError


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back. Of a status other than success only the status."""

    status: int
    encoding: bytes
    """The answer's content-encoding; empty: none."""
    body: bytes


class AdapterConnection(asyncio.Protocol):
    """From its opening to its end. One request at a time."""

    def __init__(self, *, max_bytes: int) -> None:
        """`max_bytes`: of one answer's body."""
        self._max_bytes = max_bytes
        self._http = h11.Connection(h11.CLIENT)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[HttpAnswer] | None = None
        """For the answer to the open request; None: nothing was asked."""
        self._response: h11.Response | None = None
        self._body = bytearray()
        self._informed = False
        """The answer had others before it, with a status of 1xx."""
        self.usable = True
        """A request may be sent."""

    async def ask(self, target: str, headers: Sequence[tuple[str, str]], body: bytes) -> HttpAnswer:
        """One POST. Raises ScoringError: `broken_off` or `too_large`. Afterwards `usable` says
        whether the connection may be used again.
        """
        if not self.usable or self._transport is None:
            raise UnavailableError("broken_off")
        request = h11.Request(
            method="POST", target=target, headers=[*headers, ("Content-Length", str(len(body)))]
        )
        self._waiter = asyncio.get_running_loop().create_future()
        self._response, self._informed = None, False
        self._body.clear()
        self.usable = False  # until the answer has come, and was one
        try:
            parts = (request, h11.Data(body), h11.EndOfMessage())
            self._transport.write(b"".join(self._http.send(part) or b"" for part in parts))
            return await self._waiter
        except h11.ProtocolError:
            raise UnavailableError("broken_off") from None
        finally:
            self._waiter = None
            if not self.usable:
                self.close()

    def close(self) -> None:
        """Break it off. May be called twice."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():
            self.close()  # nobody asked
            return
        self._take(data)

    def eof_received(self) -> None:
        self.usable = False
        if self._waiter is not None and not self._waiter.done():
            self._take(b"")  # the end of an answer without a length

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._fail(UnavailableError("broken_off"))

    # --- inside ----------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) is not h11.NEED_DATA:
                self._on_event(event)
                if isinstance(event, h11.EndOfMessage):
                    break
        except h11.ProtocolError:
            self._fail(UnavailableError("broken_off"))
        except ScoringError as error:
            self._fail(error)

    def _on_event(self, event: Any) -> None:
        if isinstance(event, h11.InformationalResponse):
            self._informed = True
        elif isinstance(event, h11.Response):
            if not event.http_version.startswith(b"1."):
                raise UnavailableError("broken_off")
            self._response = event
            if not 200 <= event.status_code < 300:
                self._answer(event, b"")  # before its body, which may have no end
        elif isinstance(event, h11.Data):
            self._body += event.data
            if len(self._body) > self._max_bytes:
                raise ScoringError("too_large")
        elif isinstance(event, h11.EndOfMessage) and self._response is not None:
            self._complete(self._response)
        else:
            raise UnavailableError("broken_off")

    def _complete(self, response: h11.Response) -> None:
        """The whole answer has come. Anything beside it makes the connection useless."""
        rest, ended = self._http.trailing_data
        alone = not rest and not ended and not self._informed
        if alone and self._http.our_state is self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self.usable = True
        self._answer(response, bytes(self._body))

    def _answer(self, response: h11.Response, body: bytes) -> None:
        if self._waiter is not None and not self._waiter.done():
            encoding = dict(response.headers).get(b"content-encoding", b"")
            self._waiter.set_result(HttpAnswer(response.status_code, encoding, body))

    def _fail(self, error: ScoringError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
