"""Reads bodies, each in one go."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import msgspec

from tandem import extra_fields
from tandem.errors import ConfigError, InvalidRequestError, RequestError
from tandem.v1 import router_pb2
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai import answers, chat_template
from tandem_frontend.openai.asked import Asked, Origin
from tandem_frontend.openai.dialects import Counting, Dialect, Generating, by_endpoint, spoken
from tandem_frontend.openai.limits import ModelLimits
from tandem_frontend.openai.prefixes import PromptPrefixes
from tandem_frontend.openai.preprocessor import Preprocessor
from tandem_frontend.openai.reading.moderations import ModerationReader
from tandem_frontend.openai.reading.wire import Answered, Read, ReadingOrder
from tandem_frontend.openai.requests import DETOKENIZE_BODY, TOKENIZE_BODY
from tandem_frontend.openai.strangers import FieldRules
from tandem_frontend.openai.tokenizer import ModelTokenizer
from tandem_frontend.openai.tools import asked_tools, shown_tools
from tandem_frontend.read_steps import ReadSteps

log = logging.getLogger(__name__)


class ReadRequest(NamedTuple):
    dialect: Dialect
    generating: Generating
    repeated: bytes
    """Fields of the request that the answer repeats, as JSON."""
    ignored: tuple[str, ...]
    """Names of the body's fields, and of tools, that were passed over."""
    steps: ReadSteps
    extra_fields: str
    """The extra fields that classifiers are given, as a JSON object."""


def field_rules(config: FrontendConfig) -> FieldRules:
    """Raises ConfigError where `extra_fields` cannot be given to classifiers."""
    names = frozenset(config.extra_fields)
    known = frozenset().union(*(each.requests.kind.names for each in spoken()))
    if taken := sorted(names & known):
        raise ConfigError(f"extra_fields: requests have `{taken[0]}` for something else")
    longest = max(map(len, names), default=1)
    if len(names) > extra_fields.MAX_FIELDS or not all(names):
        raise ConfigError(f"extra_fields takes {extra_fields.MAX_FIELDS} names, none of them empty")
    if longest > extra_fields.MAX_NAME_CHARACTERS:
        most = extra_fields.MAX_NAME_CHARACTERS
        raise ConfigError(f"extra_fields: a name has at most {most} characters")
    return FieldRules(config.unknown_fields, names, config.max_extra_fields_bytes)


def moderation_reader(config: FrontendConfig) -> ModerationReader:
    """Raises ConfigError, as `field_rules` does."""
    return ModerationReader(field_rules(config), most=config.max_choices)


def decode(dialect: Dialect, body: bytes, rules: FieldRules) -> ReadRequest:
    """What a client asks for, of whatever model. Raises RequestError with `param`."""
    steps = ReadSteps()
    own, ignored, extra = dialect.requests.decode(body, rules)
    generating, repeated = dialect.generating(own), dialect.repeated(own)
    steps.end("parse")
    return ReadRequest(dialect, generating, repeated, ignored, steps, extra)


class Reader:
    """Knows one model's files. Every failure is a RequestError with `param`."""

    def __init__(
        self, preprocessor: Preprocessor, tokenizer: ModelTokenizer, rules: FieldRules
    ) -> None:
        self.tokenizer = tokenizer
        self._preprocessor = preprocessor
        self._rules = rules

    @staticmethod
    def load(config: FrontendConfig) -> Reader:
        """Raises ConfigError where the model's files cannot be used."""
        path = Path(config.model_path)
        tokenizer = ModelTokenizer(path)
        template = chat_template.load(path)
        if template is None:
            extra = {"model": config.model_name}
            log.warning("the model has no chat template: chat completions are refused", extra=extra)
        preprocessor = Preprocessor(config, tokenizer, template)
        return Reader(preprocessor, tokenizer, field_rules(config))

    def submission(
        self,
        request: ReadRequest,
        served: router_pb2.ServedModel,
        origin: Origin,
        prefixes: PromptPrefixes | None = None,
    ) -> Asked:
        """The request, ready for the router; the rest as `Preprocessor.submission` has it."""
        try:
            asked = self._preprocessor.submission(
                request.generating, served, origin, prefixes=prefixes, steps=request.steps
            )
        except RequestError as error:
            request.dialect.name(error)
            raise
        if not (request.repeated or request.extra_fields or request.ignored or asked.passed_over):
            return asked
        asked.task.extra_fields = request.extra_fields
        hints = map(request.dialect.name_of, asked.passed_over)
        return msgspec.structs.replace(
            asked,
            repeated=request.repeated,
            passed_over=tuple(dict.fromkeys((*request.ignored, *hints))),
        )

    def read(self, order: ReadingOrder, prefixes: PromptPrefixes | None = None) -> Read | Answered:
        """`prefixes`: what is known of the prompts."""
        match order.kind:
            case "tokenize":
                return self._tokenize(order)
            case "detokenize":
                return self._detokenize(order.body)
        dialect = by_endpoint()[order.kind]  # a moderation is a ModerationReader's
        if dialect.endpoint != order.kind:
            assert dialect.counting is not None
            return self._count_tokens(dialect, dialect.counting, order.body)
        request = decode(dialect, order.body, self._rules)
        served = router_pb2.ServedModel.FromString(order.served)
        known = prefixes if order.asks else None
        return Read(self.submission(request, served, order.origin, known))

    def _tokenize(self, order: ReadingOrder) -> Answered:
        request, ignored, _ = TOKENIZE_BODY.decode(order.body, self._rules)
        if (request.prompt is None) == (request.messages is None):
            raise InvalidRequestError("Give either `prompt` or `messages`", param="prompt")
        if request.messages is not None:
            tools = shown_tools(request.tools)
            text, special = self._preprocessor.chats.text(request.messages, request, tools), False
        else:
            text, special = request.prompt or "", request.add_special_tokens
        tokens = self.tokenizer.encode(text, add_special_tokens=special)
        served = router_pb2.ServedModel.FromString(order.served)
        longest = ModelLimits(self.tokenizer, served).context_length
        answer = answers.Tokens(tokens=tokens, count=len(tokens), max_model_len=longest)
        return Answered(msgspec.json.encode(answer), ignored)

    def _count_tokens(self, dialect: Dialect, counting: Counting, body: bytes) -> Answered:
        request, ignored, _ = counting.requests.decode(body, self._rules)
        asked = counting.prompt(request)
        try:
            text = self._preprocessor.chats.text(asked.messages, asked, asked_tools(asked))
        except RequestError as error:
            dialect.name(error)
            raise
        count = counting.answer(len(self.tokenizer.encode(text, add_special_tokens=False)))
        hints = map(dialect.name_of, self._preprocessor.chats.passed_over(asked))
        return Answered(msgspec.json.encode(count), (*ignored, *hints))

    def _detokenize(self, body: bytes) -> Answered:
        request, ignored, _ = DETOKENIZE_BODY.decode(body, self._rules)
        if request.tokens and max(request.tokens) >= self.tokenizer.vocabulary:
            raise InvalidRequestError(
                f"Token ids must be below {self.tokenizer.vocabulary}", param="tokens"
            )
        answer = answers.Text(prompt=self.tokenizer.decode(request.tokens))
        return Answered(msgspec.json.encode(answer), ignored)
