"""Reads bodies, each in one go."""

from __future__ import annotations

from pathlib import Path

import msgspec

from frontend.config import FrontendConfig
from frontend.openai import answers, chat_template
from frontend.openai.decoding import Body, Decoded
from frontend.openai.dialects import CHAT, COMPLETION, Dialect
from frontend.openai.foreign import OF_TOKENS
from frontend.openai.preprocessor import Preprocessor
from frontend.openai.reading.wire import Answered, Order, Read
from frontend.openai.requests import (
    AnyDetokenizeRequest,
    AnyTokenizeRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from frontend.openai.strangers import UnknownFields
from frontend.openai.tokenizer import Tokenizer
from tandem.errors import InvalidRequestError
from tandem.v1 import router_pb2

_TOKENIZE = Body.of(TokenizeRequest, AnyTokenizeRequest, OF_TOKENS)
_DETOKENIZE = Body.of(DetokenizeRequest, AnyDetokenizeRequest, {})


class Reader:
    """Knows the model's files. Every failure is a RequestError with `param`."""

    def __init__(
        self, preprocessor: Preprocessor, tokenizer: Tokenizer, unknown_fields: UnknownFields
    ) -> None:
        self.preprocessor = preprocessor
        self._tokenizer = tokenizer
        self._unknown_fields = unknown_fields

    @staticmethod
    def load(config: FrontendConfig) -> Reader:
        """Raises ConfigError where the model's files cannot be used."""
        path = Path(config.model_path)
        tokenizer = Tokenizer(path)
        preprocessor = Preprocessor(config, tokenizer, chat_template.load(path))
        return Reader(preprocessor, tokenizer, config.unknown_fields)

    def request(
        self, dialect: Dialect, body: bytes
    ) -> Decoded[ChatRequest] | Decoded[CompletionRequest]:
        """What a client asks for."""
        return dialect.requests.decode(body, self._unknown_fields)

    def read(self, order: Order) -> Read | Answered:
        match order.kind:
            case "tokenize":
                return self._tokenize(order.body)
            case "detokenize":
                return self._detokenize(order.body)
        request, ignored = self.request(CHAT if order.kind == "chat" else COMPLETION, order.body)
        submission = self.preprocessor.submission(
            request,
            router_pb2.ServedModel.FromString(order.served),
            id=order.id,
            trace_id=order.trace_id,
            grant=order.grant,
            salt=order.salt,
        )
        return Read(submission, ignored)

    def _tokenize(self, body: bytes) -> Answered:
        request, ignored = _TOKENIZE.decode(body, self._unknown_fields)
        self.preprocessor.check_model(request.model)
        if (request.prompt is None) == (request.messages is None):
            raise InvalidRequestError("Give either `prompt` or `messages`", param="prompt")
        if request.messages is not None:
            text, special = self.preprocessor.chat_text(request.messages), False
        else:
            text, special = request.prompt or "", request.add_special_tokens
        tokens = self._tokenizer.encode(text, add_special_tokens=special)
        longest = self._tokenizer.context_length
        answer = answers.Tokens(tokens=tokens, count=len(tokens), max_model_len=longest)
        return Answered(msgspec.json.encode(answer), ignored)

    def _detokenize(self, body: bytes) -> Answered:
        request, ignored = _DETOKENIZE.decode(body, self._unknown_fields)
        self.preprocessor.check_model(request.model)
        if request.tokens and max(request.tokens) >= self._tokenizer.vocabulary:
            raise InvalidRequestError(
                f"Token ids must be below {self._tokenizer.vocabulary}", param="tokens"
            )
        answer = answers.Text(prompt=self._tokenizer.decode(request.tokens))
        return Answered(msgspec.json.encode(answer), ignored)
