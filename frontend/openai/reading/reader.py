"""Reads bodies, each in one go."""

from __future__ import annotations

from pathlib import Path

import msgspec

from frontend.config import FrontendConfig
from frontend.openai import answers, chat_template
from frontend.openai.decoding import decode
from frontend.openai.dialects import CHAT, COMPLETION
from frontend.openai.preprocessor import Preprocessor
from frontend.openai.reading.wire import Answered, Order, Read
from frontend.openai.requests import DetokenizeRequest, TokenizeRequest
from frontend.openai.tokenizer import Tokenizer
from tandem.errors import InvalidRequestError
from tandem.v1 import router_pb2

_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


class Reader:
    """Knows the model's files. Every failure is a RequestError with `param`."""

    def __init__(self, preprocessor: Preprocessor, tokenizer: Tokenizer) -> None:
        self.preprocessor = preprocessor
        self._tokenizer = tokenizer

    @staticmethod
    def load(config: FrontendConfig) -> Reader:
        """Raises ConfigError where the model's files cannot be used."""
        path = Path(config.model_path)
        tokenizer = Tokenizer(path)
        return Reader(Preprocessor(config, tokenizer, chat_template.load(path)), tokenizer)

    def read(self, order: Order) -> Read | Answered:
        match order.kind:
            case "tokenize":
                return Answered(self._tokenize(order.body))
            case "detokenize":
                return Answered(self._detokenize(order.body))
        dialect = CHAT if order.kind == "chat" else COMPLETION
        submission = self.preprocessor.submission(
            dialect.decode(order.body),
            router_pb2.ServedModel.FromString(order.served),
            id=order.id,
            trace_id=order.trace_id,
            grant=order.grant,
            salt=order.salt,
        )
        return Read(submission)

    def _tokenize(self, body: bytes) -> bytes:
        request = decode(_TOKENIZE, body)
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
        return msgspec.json.encode(answer)

    def _detokenize(self, body: bytes) -> bytes:
        request = decode(_DETOKENIZE, body)
        self.preprocessor.check_model(request.model)
        if request.tokens and max(request.tokens) >= self._tokenizer.vocabulary:
            raise InvalidRequestError(
                f"Token ids must be below {self._tokenizer.vocabulary}", param="tokens"
            )
        return msgspec.json.encode(answers.Text(prompt=self._tokenizer.decode(request.tokens)))
