"""What each path does that does not generate. Keys, methods and errors are the app's."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from frontend.http.draining import Draining
from frontend.http.messages import Call
from frontend.openai import answers, docs_page, openapi
from frontend.openai.reading.bodies import Reading
from frontend.openai.strangers import UnknownFields
from frontend.openai.tokenizer import Tokenizer
from tandem.errors import NoPairError
from tandem.metrics import tandem_version
from tandem.upstream.demultiplexer import Demultiplexer

MODELS = "/v1/models/"
_HTML = b"text/html; charset=utf-8"


class Endpoints:
    """Handlers of all that does not generate. Each answers its call, or raises."""

    def __init__(
        self,
        models: Sequence[str],
        tokenizer: Tokenizer,
        reading: Reading,
        demultiplexer: Demultiplexer,
        draining: Draining,
        unknown_fields: UnknownFields,
    ) -> None:
        """`models`: all names of the served one."""
        self.model_names = models
        self._unknown_fields: UnknownFields = unknown_fields
        self._reading = reading
        self._demultiplexer = demultiplexer
        self._draining = draining
        created, longest = int(time.time()), tokenizer.context_length
        self._cards = {
            name: answers.ModelCard(id=name, created=created, max_model_len=longest)
            for name in models
        }

    @property
    def serving(self) -> bool:
        """Whether the process takes new clients, and a request would be served now."""
        return not self._draining.began and self._demultiplexer.ready

    # --- tokens and models ---

    async def tokenize(self, call: Call) -> None:
        await call.respond(200, await self._reading.answer("tokenize", call))

    async def detokenize(self, call: Call) -> None:
        await call.respond(200, await self._reading.answer("detokenize", call))

    async def count_tokens(self, call: Call) -> None:
        await call.respond(200, await self._reading.answer("count_tokens", call))

    async def models(self, call: Call) -> None:
        await _json(call, answers.ModelList(data=list(self._cards.values())))

    async def model(self, call: Call) -> None:
        name = call.path.removeprefix(MODELS)
        self._reading.check_model(name)
        await _json(call, self._cards[name])

    # --- for operators ---

    async def ready(self, call: Call) -> None:
        if self._draining.began:
            raise self._draining.error()
        if not self._demultiplexer.ready:
            raise NoPairError("No prefill and decode worker for the model are ready")
        await _json(call, answers.Status())

    async def live(self, call: Call) -> None:
        await _json(call, answers.Status())

    async def version(self, call: Call) -> None:
        await _json(call, answers.Version(version=tandem_version()))

    async def openapi(self, call: Call) -> None:
        await call.respond(200, openapi.document(self._unknown_fields))

    async def docs(self, call: Call) -> None:
        await call.respond(200, docs_page.page(), _HTML)


async def _json(call: Call, answer: msgspec.Struct) -> None:
    await call.respond(200, msgspec.json.encode(answer))
