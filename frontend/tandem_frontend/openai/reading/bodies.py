"""Bodies to what is made of them: small ones on the event loop, larger ones beside it."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tandem import kv_hints
from tandem.v1.router_pb2 import ServedModel
from tandem_frontend.http.messages import Call
from tandem_frontend.http.spans import CallSpan
from tandem_frontend.metrics import OTHER, Metrics
from tandem_frontend.openai.asked import Asked, Origin
from tandem_frontend.openai.decoding import Body
from tandem_frontend.openai.dialects import Dialect, spoken
from tandem_frontend.openai.gateway_headers import DROPPED, read_gateway_headers
from tandem_frontend.openai.prefix_store import PrefixStore
from tandem_frontend.openai.reading.models import ChosenModel, LoadedModel, Models
from tandem_frontend.openai.reading.reader import decode
from tandem_frontend.openai.reading.readers import Readers
from tandem_frontend.openai.reading.wire import Answered, Read, ReadingOrder
from tandem_frontend.openai.requests import TOKENIZE_BODY
from tandem_frontend.openai.sessions import Sessions
from tandem_frontend.openai.strangers import FieldRules

SMALL_BYTES: Final = 16 * 1024
"""Bodies up to this are read on the event loop, which takes 20 ms at most."""

IGNORED_HEADER: Final = b"x-tandem-ignored-fields"


class AskedModel(msgspec.Struct):
    """What of a body says which model it is for. To find it takes 20 ms of the largest body."""

    model: str | None = None
    user: Any = None

    @property
    def known_user(self) -> str | None:
        return self.user if isinstance(self.user, str) else None


_ASKED_MODEL = Body.of(AskedModel, {})


@dataclass(eq=False)
class BodyReading:
    models: Models
    readers: Readers
    metrics: Metrics
    rules: FieldRules
    sessions: Sessions
    prefixes: PrefixStore

    async def submission(self, dialect: Dialect, call: Call) -> tuple[LoadedModel, Asked]:
        """The request of a call, and its model. Raises RequestError and RefusedError."""
        body = await call.body()
        began = time.monotonic()
        model, asked = await self._read(dialect, call, body)
        self.metrics.reading.count(asked.steps)
        call.times.read = time.monotonic()
        call.times.steps = {step.name: round(step.seconds, 6) for step in asked.steps}
        if call.span is not None:
            _trace(call.span, asked, size=len(body), began=began)
        dropped = read_gateway_headers(call, asked.submit)
        tell_ignored(call, (*asked.passed_over, *dropped), self.metrics)
        return model, self.sessions.of(call, asked)

    async def _read(self, dialect: Dialect, call: Call, body: bytes) -> tuple[LoadedModel, Asked]:
        request = decode(dialect, body, self.rules) if len(body) <= SMALL_BYTES else None
        if request is not None:
            asked = request.generating
            chosen = await self.models.choose(asked.model, asked.user, call.grant)
            timeout = asked.timeout
        else:
            chosen, timeout = await self._named(body, call), None
        model = chosen.model
        served = await _served(model, call, timeout)
        chosen.check(served)
        prefixes = self.prefixes.lookup(_key(call), model.name)
        origin = Origin(
            id=call.id,
            trace_id=call.trace_id,
            grant=call.grant,
            salt="" if call.tenant is None else call.tenant.salt,
            lora_adapter=chosen.lora_adapter,
        )
        if request is not None:
            submission = model.reader.submission(request, served, origin, prefixes)
        else:
            order = ReadingOrder(
                kind=dialect.endpoint,
                model=model.name,
                body=body,
                served=served.SerializeToString(),
                origin=origin,
                asks=prefixes is not None,
            )
            read = await self.readers.read(order, model.boot, tenant=_key(call), prefixes=prefixes)
            assert isinstance(read, Read)
            submission = read.submission
        if prefixes is not None:
            submission = prefixes.completed(submission)
        return model, submission

    async def answer(self, kind: str, call: Call) -> bytes:
        """Answer a body that is only to be read. Raises RequestError and RefusedError."""
        body = await call.body()
        chosen = await self._named(body, call)
        model = chosen.model
        served = model.route.served
        if served is not None:
            chosen.check(served)
        said = b"" if served is None else served.SerializeToString()
        order = ReadingOrder(kind=kind, model=model.name, body=body, served=said)
        if len(body) <= SMALL_BYTES:
            read = model.reader.read(order)
        else:
            read = await self.readers.read(order, model.boot, tenant=_key(call))
        assert isinstance(read, Answered)
        tell_ignored(call, read.ignored, self.metrics)
        return read.body

    async def _named(self, body: bytes, call: Call) -> ChosenModel:
        """What a body is for, of which nothing else is read yet."""
        named = _ASKED_MODEL.decode(body, self.rules).request
        return await self.models.choose(named.model, named.known_user, call.grant)


async def _served(model: LoadedModel, call: Call, seconds: float | None) -> ServedModel:
    """What workers of a model take; waits up to `seconds` for workers that are to come."""
    began = time.monotonic()
    try:
        return await model.route.served_model(call.connection, seconds)
    finally:
        call.times.no_workers += time.monotonic() - began


def _trace(span: CallSpan, asked: Asked, *, size: int, began: float) -> None:
    """Record the reading of a body below its request's span, and the steps of it below that.
    `size`: bytes of the body, which was there at `began`.
    """
    attributes = {"tandem.body.bytes": size, "tandem.known_tokens": asked.known_tokens}
    read = span.child("read", began, time.monotonic(), attributes=attributes)
    for step in asked.steps:
        about = {"tandem.cpu.seconds": step.cpu_seconds}
        span.child(step.name, step.began, step.began + step.seconds, parent=read, attributes=about)


def tell_ignored(call: Call, ignored: Sequence[str], metrics: Metrics) -> None:
    """Say in the answer's head what of its request was passed over."""
    if ignored:
        for told in ignored:
            name = dropped_name(told)
            metrics.count_ignored(name or OTHER)
        call.headers = (*call.headers, (IGNORED_HEADER, ", ".join(ignored).encode()))


def dropped_name(told: str) -> str | None:
    """The header, field or type that requests are read without, of what an answer's head tells,
    such as `messages[].cache_control` or `tools[web_search]`; None: the tables drop no such thing.
    """
    name = told.removesuffix("]").rpartition("[")[2].rpartition(".")[2]
    return name if name in _dropped() else None


@functools.cache
def _dropped() -> frozenset[str]:
    bodies = [TOKENIZE_BODY, *(each.requests for each in spoken())]
    bodies += [each.counting.requests for each in spoken() if each.counting is not None]
    kinds = [kind for body in bodies for kind in body.kind.walk()]
    fields = (item for kind in kinds for item in kind.foreign.items())
    dropped = (name for name, field in fields if field.dropped or field.offers)
    return DROPPED.union((kv_hints.PARAM, *dropped), *(kind.left_out for kind in kinds))


def _key(call: Call) -> str:
    return "" if call.tenant is None else call.tenant.name
