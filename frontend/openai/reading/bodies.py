"""Bodies to what is made of them: small ones on the event loop, larger ones beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from frontend.http.messages import Call
from frontend.metrics import Metrics
from frontend.openai.asked import Asked
from frontend.openai.dialects import Dialect
from frontend.openai.reading.reader import Reader
from frontend.openai.reading.readers import Readers
from frontend.openai.reading.wire import Answerable, Answered, Order, Read
from tandem.upstream.demultiplexer import Demultiplexer

SMALL_BYTES: Final = 16 * 1024
"""Bodies up to this are read on the event loop, which takes 20 ms at most."""

SESSION_HEADER: Final = b"x-session-id"
"""Says before any field of the body what a request is a part of."""
IGNORED_HEADER: Final = b"x-tandem-ignored-fields"


class Reading:
    """Whoever must read a body asks this."""

    def __init__(
        self, reader: Reader, readers: Readers, demultiplexer: Demultiplexer, metrics: Metrics
    ) -> None:
        self._reader = reader
        self._readers = readers
        self._demultiplexer = demultiplexer
        self._metrics = metrics

    def check_model(self, model: str) -> None:
        """Raises UnknownModelError."""
        self._reader.preprocessor.check_model(model)

    async def submission(self, dialect: Dialect, call: Call) -> Asked:
        """The request of a call, ready for the router. Raises RequestError and RefusedError."""
        asked = await self._read(dialect, call)
        session = call.header(SESSION_HEADER)
        if session:
            asked = msgspec.structs.replace(asked, session=session.decode("latin-1"))
        return asked

    async def _read(self, dialect: Dialect, call: Call) -> Asked:
        body = await call.body()
        grant = None if call.tenant is None else call.tenant.grant
        salt = "" if call.tenant is None else call.tenant.salt
        if len(body) <= SMALL_BYTES:
            request = self._reader.request(dialect, body)
            self._tell(call, request.ignored)
            timeout = request.generating.timeout
            served = await self._demultiplexer.served_model(call.connection, timeout)
            return self._reader.submission(
                request, served, id=call.id, trace_id=call.trace_id, grant=grant, salt=salt
            )
        served = await self._demultiplexer.served_model(call.connection, None)
        order = Order(
            kind=dialect.kind,
            body=body,
            served=served.SerializeToString(),
            id=call.id,
            trace_id=call.trace_id,
            grant=grant,
            salt=salt,
        )
        read = await self._readers.read(order, tenant=_key(call))
        assert isinstance(read, Read)
        self._tell(call, read.ignored)
        return read.submission

    async def answer(self, kind: Answerable, call: Call) -> bytes:
        """The answer to a body that asks for no more than that. Raises RequestError and
        RefusedError.
        """
        body = await call.body()
        order = Order(kind=kind, body=body)
        small = len(body) <= SMALL_BYTES
        if small:
            read = self._reader.read(order)
        else:
            read = await self._readers.read(order, tenant=_key(call))
        assert isinstance(read, Answered)
        self._tell(call, read.ignored)
        return read.body

    def _tell(self, call: Call, ignored: Sequence[str]) -> None:
        """Say in the answer's head what of its request was passed over."""
        if ignored:
            self._metrics.ignored_fields.inc(len(ignored))
            call.headers = (*call.headers, (IGNORED_HEADER, ", ".join(ignored).encode()))


def _key(call: Call) -> str:
    return "" if call.tenant is None else call.tenant.name
