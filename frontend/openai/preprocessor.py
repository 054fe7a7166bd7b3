"""From a decoded request to a Submission: defaults, ranges that depend on the model, and this
deployment's limits.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from frontend.config import FrontendConfig
from frontend.openai.chat_template import ChatTemplate
from frontend.openai.formats import Form, check_arguments, form_of
from frontend.openai.limits import Limits
from frontend.openai.requests import (
    MAX_LOGIT_BIASES,
    MAX_METADATA_CHARACTERS,
    NO_SEED,
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    GenerationFields,
    LogitsProcessorChoice,
)
from frontend.openai.tokenizer import Tokenizer
from tandem.errors import (
    InvalidRequestError,
    UnknownModelError,
    UnsupportedError,
)
from tandem.keys.grant import Grant
from tandem.logits.spec import PARAM, LogitsProcessorEntry, LogitsProcessorSpec
from tandem.sampling import TOP_K_OFF
from tandem.upstream.submission import Prompt, Submission
from tandem.v1 import common_pb2, router_pb2

_DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for plain completions. A chat may use all that is left of the context."""


class Preprocessor:
    """Checks requests for the one model that this frontend serves. Every failure is a RequestError
    with `param`.
    """

    def __init__(
        self, config: FrontendConfig, tokenizer: Tokenizer, template: ChatTemplate | None
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._template = template

    def check_model(self, model: str | None) -> None:
        """None means the served one. Raises UnknownModelError."""
        if model is not None and model != self._config.model_name:
            raise UnknownModelError(f"The model `{model[:100]}` does not exist", param="model")

    def chat_text(self, messages: Sequence[ChatMessage]) -> str:
        """The prompt of a chat. The template writes all special tokens: the tokenizer must not."""
        if self._template is None:
            raise UnsupportedError("The model has no chat template", param="messages")
        for position, message in enumerate(messages):
            if message.content is None and message.role != "assistant":
                raise InvalidRequestError(
                    "`content` is null for the assistant alone",
                    param=f"messages[{position}].content",
                )
        return self._template.render([message.as_template_input() for message in messages])

    def submission(
        self,
        request: ChatRequest | CompletionRequest,
        served: router_pb2.ServedModel,
        *,
        id: str,
        trace_id: str,
        grant: Grant | None = None,
        salt: str = "",
    ) -> Submission:
        """`id` is what the answer will be called. `grant` is of the key it came with, and `salt`
        its prefix cache's; None: no key was asked.
        """
        limits = Limits(self._tokenizer, served)
        self._check_common(request)
        if grant is not None:
            _check_allowed(request, grant)
        if isinstance(request, ChatRequest):
            prompts = [self._chat_prompt(request, limits)]
            logprobs = (request.top_logprobs or 0) if request.logprobs else None
        else:
            prompts = self._completion_prompts(request, limits)
            logprobs = request.logprobs
        return self._submission(
            request, limits, prompts, logprobs, id=id, trace_id=trace_id, grant=grant, salt=salt
        )

    def _chat_prompt(self, request: ChatRequest, limits: Limits) -> Prompt:
        if request.top_logprobs and not request.logprobs:
            raise InvalidRequestError("`top_logprobs` needs `logprobs`", param="top_logprobs")
        asked = _same(request.max_completion_tokens, request.max_tokens)
        text = self.chat_text(request.messages)
        limits.check_text(text, param="messages")
        token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        max_tokens = limits.max_tokens(token_ids, asked, limits.context_length, param="messages")
        return Prompt.of(token_ids, max_tokens=max_tokens)

    def _completion_prompts(self, request: CompletionRequest, limits: Limits) -> list[Prompt]:
        if request.echo and request.logprobs is not None:
            raise UnsupportedError("`echo` is not offered with `logprobs`", param="echo")
        if request.echo and request.detokenize is False:
            raise UnsupportedError("`echo` is not offered without text", param="echo")
        prompts = _prompts(request.prompt)
        if len(prompts) * (request.n or 1) > self._config.max_choices:
            raise InvalidRequestError(
                f"At most {self._config.max_choices} choices (prompts times `n`) are offered",
                param="prompt" if len(prompts) > 1 else "n",
            )
        return [self._prompt(request, limits, prompt) for prompt in prompts]

    def _prompt(
        self, request: CompletionRequest, limits: Limits, prompt: str | list[int]
    ) -> Prompt:
        if isinstance(prompt, str):
            limits.check_text(prompt, param="prompt")
            token_ids = self._tokenizer.encode(prompt, add_special_tokens=True) if prompt else []
        else:
            token_ids = prompt
        max_tokens = limits.max_tokens(
            token_ids, request.max_tokens, _DEFAULT_COMPLETION_TOKENS, param="prompt"
        )
        limits.check_token_ids(token_ids, param="prompt")
        echo = None
        if request.echo:
            echo = prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)
        return Prompt.of(token_ids, max_tokens=max_tokens, echo=echo)

    def _check_common(self, request: GenerationFields) -> None:
        config = self._config
        self.check_model(request.model)
        if (request.n or 1) > min(config.max_n, config.max_choices):
            limit = min(config.max_n, config.max_choices)
            raise InvalidRequestError(f"`n` must not exceed {limit}", param="n")
        if request.best_of not in (None, request.n or 1):
            raise UnsupportedError("Choices are not ranked: `best_of` is `n`", param="best_of")
        if request.stream_options and request.stream_options.include_obfuscation:
            raise UnsupportedError("Nothing is padded", param="stream_options.include_obfuscation")
        if request.timeout is not None and request.timeout > config.request_timeout_seconds:
            raise InvalidRequestError(
                f"`timeout` must not exceed {config.request_timeout_seconds:g} seconds",
                param="timeout",
            )
        if request.tandem and request.tandem.report and not config.allow_reports:
            raise UnsupportedError("This deployment gives no reports", param="tandem.report")
        if request.tandem and request.tandem.external_scores and not config.allow_external_scores:
            raise UnsupportedError(
                "This deployment gives no external scores", param="tandem.external_scores"
            )

    def _submission(
        self,
        request: GenerationFields,
        limits: Limits,
        prompts: Sequence[Prompt],
        logprobs: int | None,
        *,
        id: str,
        trace_id: str,
        grant: Grant | None,
        salt: str,
    ) -> Submission:
        limits.check_token_ids(request.stop_token_ids or (), param="stop_token_ids")
        form = form_of(request)
        spec = self._logits(form, request, limits)
        options = request.stream_options
        return Submission(
            id=id,
            trace_id=trace_id,
            model=self._config.model_name,
            tokenizer_sha256=self._tokenizer.sha256,
            prompts=prompts,
            n=request.n or 1,
            sampling=_sampling(request, limits, logprobs),
            logits=spec.to_proto() if spec else None,
            form=form.field if form else "",
            streaming=bool(request.stream),
            want_usage=bool(options and options.include_usage),
            want_running_usage=bool(
                options and options.include_usage and options.continuous_usage_stats
            ),
            want_token_ids=request.detokenize is False,
            want_report=bool(request.tandem and request.tandem.report),
            want_external_scores=bool(request.tandem and request.tandem.external_scores),
            metadata=_metadata(request),
            withheld_reason=self._config.withheld_finish_reason,
            timeout_seconds=request.timeout or self._config.request_timeout_seconds,
            priority=request.priority or 0,
            tenant="" if grant is None else grant.name,
            weight=1 if grant is None else grant.weight,
            cache_salt="" if self._config.share_prefix_cache else salt,
        )

    def _logits(
        self, form: Form | None, request: GenerationFields, limits: Limits
    ) -> LogitsProcessorSpec | None:
        """The form first, as grammars must be."""
        choices = request.logits_processors or ()
        self._check_offered(choices, limits)
        entries = [LogitsProcessorEntry(choice.name, choice.args) for choice in choices]
        if form is not None:
            _check_form(form, request, limits)
            entries.insert(0, form.processor)
            self._check_size(form.field, [form.processor])
        if choices:
            self._check_size(PARAM, entries)
        return LogitsProcessorSpec(tuple(entries)) if entries else None

    def _check_size(self, field: str, entries: Sequence[LogitsProcessorEntry]) -> None:
        try:
            check_arguments(entries, self._config.spec_limits)
        except ValueError as error:
            raise InvalidRequestError(f"`{field}` is too large: {error}", param=field) from error

    def _check_offered(self, choices: Sequence[LogitsProcessorChoice], limits: Limits) -> None:
        allowed = set(self._config.client_logits_processors).intersection(limits.logits_processors)
        for position, choice in enumerate(choices):
            if choice.name not in allowed:
                raise UnsupportedError(
                    f"The logits processor `{choice.name}` is not offered",
                    param=f"logits_processors[{position}].name",
                )


def _check_allowed(request: GenerationFields, grant: Grant) -> None:
    grant.check(
        n=request.n or 1,
        priority=request.priority or 0,
        processors=[choice.name for choice in request.logits_processors or ()],
    )


def _check_form(form: Form, request: GenerationFields, limits: Limits) -> None:
    """Forms are OpenAI's: `client_logits_processors` need not name them."""
    if form.processor.name not in limits.logits_processors:
        raise UnsupportedError(
            "This deployment's workers offer no such form of answers", param=form.field
        )
    if request.ignore_eos:
        raise InvalidRequestError(
            f"`ignore_eos` is not offered with `{form.field}`, which says where answers end",
            param="ignore_eos",
        )


def _sampling(
    request: GenerationFields, limits: Limits, logprobs: int | None
) -> common_pb2.SamplingParams:
    bias = request.logit_bias or {}
    if len(bias) > MAX_LOGIT_BIASES:
        raise InvalidRequestError(
            f"`logit_bias` must not have more than {MAX_LOGIT_BIASES} entries", param="logit_bias"
        )
    if bias and min(bias) < 0:
        raise InvalidRequestError("Token ids must not be negative", param="logit_bias")
    limits.check_token_ids(tuple(bias), param="logit_bias")
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return common_pb2.SamplingParams(
        temperature=_or(request.temperature, 1.0),
        top_p=_or(request.top_p, 1.0),
        top_k=request.top_k or TOP_K_OFF,
        min_p=_or(request.min_p, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        seed=None if request.seed == NO_SEED else request.seed,
        stop=[each for each in stop if each],
        stop_token_ids=request.stop_token_ids,
        ignore_eos=bool(request.ignore_eos),
        logit_bias=bias,
        logprobs=logprobs,
    )


def _metadata(request: GenerationFields) -> dict[str, str]:
    """As texts: of what is none, its JSON."""
    given = request.metadata or {}
    return {name: _as_text(name, value) for name, value in given.items()}


def _as_text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    text = msgspec.json.encode(value).decode()
    if len(text) > MAX_METADATA_CHARACTERS:
        raise InvalidRequestError(
            f"A value of `metadata` must not be longer than {MAX_METADATA_CHARACTERS} characters"
            " of JSON",
            param=f"metadata.{name}",
        )
    return text


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _same(first: int | None, second: int | None) -> int | None:
    if first is not None and second is not None and first != second:
        raise InvalidRequestError(
            "`max_tokens` and `max_completion_tokens` differ; give one of them", param="max_tokens"
        )
    return second if first is None else first


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """A prompt is a text or token ids; a request has one of them or a list of one kind."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequestError("The prompt must not be empty", param="prompt")
    texts = [item for item in prompt if isinstance(item, str)]
    lists = [item for item in prompt if isinstance(item, list)]
    if len(texts) == len(prompt):
        return [*texts]
    if len(lists) == len(prompt):
        return [*lists]
    token_ids = [item for item in prompt if isinstance(item, int)]
    if len(token_ids) == len(prompt):
        return [token_ids]
    raise InvalidRequestError(
        "`prompt` must hold only texts, only token ids, or only lists of token ids", param="prompt"
    )
