"""What each path does that does not generate. Keys, methods and errors are the app's."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tandem.errors import NoPairError
from tandem.upstream.demultiplexer import Demultiplexer
from tandem.version import tandem_version
from tandem_frontend.http.draining import Draining
from tandem_frontend.http.messages import Call
from tandem_frontend.openai import answers, docs_page, openapi
from tandem_frontend.openai.reading.bodies import BodyReading
from tandem_frontend.openai.reading.models import Models
from tandem_frontend.openai.strangers import FieldRules

MODELS = "/v1/models/"
DOCS = "/docs"
_HTML = b"text/html; charset=utf-8"


class Endpoints:
    """Handlers of all that does not generate. Each answers its call, or raises."""

    def __init__(
        self,
        models: Models,
        reading: BodyReading,
        demultiplexer: Demultiplexer,
        draining: Draining,
        rules: FieldRules,
    ) -> None:
        self._models = models
        self._rules = rules
        self._reading = reading
        self._demultiplexer = demultiplexer
        self._draining = draining

    @property
    def serving(self) -> bool:
        """Whether the process takes new clients, and a request would be served or wait."""
        return not self._draining.began and self._demultiplexer.ready

    # --- tokens and models ---

    async def read(self, endpoint: str, call: Call) -> None:
        """Answer a body that asks for no more than to be read: into tokens, or their number."""
        await call.respond(200, await self._reading.answer(endpoint, call))

    async def models(self, call: Call) -> None:
        await _json(call, answers.ModelList(data=self._models.cards(call.grant)))

    async def model(self, call: Call) -> None:
        await _json(call, self._models.card(call.path.removeprefix(MODELS), call.grant))

    # --- for who looks around ---

    async def index(self, home: str, pages: Mapping[str, str], call: Call) -> None:
        """`home`: where a browser goes. `pages`: sentences on what is beside the API, by path."""
        if b"text/html" in (call.header(b"accept") or b""):
            await call.respond(307, b"", _HTML, [(b"location", home.encode())])
            return
        paths = {**openapi.index(), **pages}
        body = {"name": "Tandem", "version": tandem_version(), "paths": paths}
        await call.respond(200, msgspec.json.encode(body))

    # --- for operators ---

    async def ready(self, call: Call) -> None:
        if self._draining.began:
            raise self._draining.error()
        if not self._demultiplexer.ready:
            raise NoPairError("No prefill and decode worker for a model are ready")
        await _json(call, answers.Status())

    async def paired(self, call: Call) -> None:
        if self._draining.began:
            raise self._draining.error()
        if not self._demultiplexer.paired:
            raise NoPairError("No prefill and decode worker take work now: requests wait")
        await _json(call, answers.Status())

    async def live(self, call: Call) -> None:
        await _json(call, answers.Status())

    async def version(self, call: Call) -> None:
        await _json(call, answers.Version(version=tandem_version()))

    async def openapi(self, call: Call) -> None:
        await call.respond(200, openapi.document(self._rules))

    async def docs(self, call: Call) -> None:
        await call.respond(200, docs_page.page(self._rules), _HTML)


async def _json(call: Call, answer: msgspec.Struct) -> None:
    await call.respond(200, msgspec.json.encode(answer))
