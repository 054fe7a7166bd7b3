"""What each path does. Keys, methods and errors are the app's."""

from __future__ import annotations

import time

import msgspec

from frontend.config import FrontendConfig
from frontend.http.draining import Draining
from frontend.http.messages import Call
from frontend.metrics import Metrics
from frontend.openai import answers, docs_page, openapi
from frontend.openai.decoding import decode
from frontend.openai.dialects import CHAT, COMPLETION
from frontend.openai.generation import Generation
from frontend.openai.preprocessor import Preprocessor
from frontend.openai.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from frontend.openai.tokenizer import Tokenizer
from frontend.upstream.demultiplexer import Demultiplexer
from tandem.errors import DrainingError, InvalidRequestError, NoPairError, TandemError
from tandem.metrics import tandem_version

MODELS = "/v1/models/"
_HTML = b"text/html; charset=utf-8"
_CHAT = msgspec.json.Decoder(ChatRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)
_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


class Endpoints:
    """Handlers. Each answers its call, or raises; a failure told within a stream is returned."""

    def __init__(
        self,
        config: FrontendConfig,
        tokenizer: Tokenizer,
        preprocessor: Preprocessor,
        demultiplexer: Demultiplexer,
        metrics: Metrics,
        draining: Draining,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._preprocessor = preprocessor
        self._demultiplexer = demultiplexer
        self._generation = Generation(
            demultiplexer, tokenizer, metrics, backlog_limit=config.max_backlog_bytes
        )
        self._created = int(time.time())
        self._draining = draining

    @property
    def draining(self) -> bool:
        """Whether the process shuts down."""
        return self._draining.began

    @property
    def serving(self) -> bool:
        """Whether it takes new clients, and a request would be served now."""
        return not self.draining and self._demultiplexer.ready

    # --- generation ---

    async def chat(self, call: Call) -> TandemError | None:
        arrived = time.monotonic()
        if call.connection.refused:
            raise _draining()
        request = decode(_CHAT, await self._body(call))
        served = await self._demultiplexer.offer(call.connection, request.timeout)
        submission = await self._preprocessor.chat(request, served, call.trace_id)
        return await self._generation.run(
            call,
            CHAT,
            submission,
            include_usage=bool(request.stream_options and request.stream_options.include_usage),
            echo=False,
            arrived=arrived,
        )

    async def completions(self, call: Call) -> TandemError | None:
        arrived = time.monotonic()
        if call.connection.refused:
            raise _draining()
        request = decode(_COMPLETION, await self._body(call))
        served = await self._demultiplexer.offer(call.connection, request.timeout)
        submission = await self._preprocessor.completion(request, served, call.trace_id)
        return await self._generation.run(
            call,
            COMPLETION,
            submission,
            include_usage=bool(request.stream_options and request.stream_options.include_usage),
            echo=bool(request.echo),
            arrived=arrived,
        )

    # --- tokens and models ---

    async def tokenize(self, call: Call) -> None:
        request = decode(_TOKENIZE, await self._body(call))
        self._preprocessor.check_model(request.model)
        if (request.prompt is None) == (request.messages is None):
            raise InvalidRequestError("Give either `prompt` or `messages`", param="prompt")
        if request.messages is not None:
            tokens = await self._preprocessor.chat_tokens(request.messages)
        else:
            tokens = await self._tokenizer.encode(
                request.prompt or "", add_special_tokens=request.add_special_tokens
            )
        longest = self._tokenizer.context_length
        await _json(call, answers.Tokens(tokens=tokens, count=len(tokens), max_model_len=longest))

    async def detokenize(self, call: Call) -> None:
        request = decode(_DETOKENIZE, await self._body(call))
        self._preprocessor.check_model(request.model)
        if request.tokens and max(request.tokens) >= self._tokenizer.vocabulary:
            raise InvalidRequestError(
                f"Token ids must be below {self._tokenizer.vocabulary}", param="tokens"
            )
        await _json(call, answers.Text(prompt=self._tokenizer.decode(request.tokens)))

    async def models(self, call: Call) -> None:
        await _json(call, answers.ModelList(data=[self._served_model()]))

    async def model(self, call: Call) -> None:
        self._preprocessor.check_model(call.path.removeprefix(MODELS))
        await _json(call, self._served_model())

    def _served_model(self) -> answers.ModelCard:
        return answers.ModelCard(
            id=self._config.model_name,
            created=self._created,
            max_model_len=self._tokenizer.context_length,
        )

    # --- for operators ---

    async def ready(self, call: Call) -> None:
        if self.draining:
            raise _draining()
        if not self._demultiplexer.ready:
            raise NoPairError("No prefill and decode worker for the model are ready")
        await _json(call, answers.Status())

    async def live(self, call: Call) -> None:
        await _json(call, answers.Status())

    async def version(self, call: Call) -> None:
        await _json(call, answers.Version(version=tandem_version()))

    async def openapi(self, call: Call) -> None:
        await call.respond(200, openapi.document())

    async def docs(self, call: Call) -> None:
        await call.respond(200, docs_page.page(), _HTML)

    async def _body(self, call: Call) -> bytes:
        return await call.body(
            limit=self._config.max_body_bytes,
            timeout_seconds=self._config.receive_timeout_seconds,
        )


async def _json(call: Call, answer: msgspec.Struct) -> None:
    await call.respond(200, msgspec.json.encode(answer))


def _draining() -> DrainingError:
    return DrainingError("The frontend is shutting down; try again elsewhere")
