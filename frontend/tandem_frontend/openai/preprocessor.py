"""From a decoded request to what the router gets of it: defaults, ranges that depend on the model,
and this deployment's limits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from tandem import kv_hints
from tandem.errors import InvalidRequestError, UnsupportedError
from tandem.keys.grant import Grant
from tandem.logits.contradictions import fields as contradictions
from tandem.logits.spec import LogitsProcessorSpec
from tandem.sampling import TOP_K_OFF
from tandem.upstream.submission import SubmittedPrompt
from tandem.v1 import common_pb2, router_pb2
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.asked import Asked, Origin, Parsing
from tandem_frontend.openai.chat_template import ChatTemplate
from tandem_frontend.openai.chats import Chats, family_of
from tandem_frontend.openai.forced import behind_thought, form_with_calls
from tandem_frontend.openai.formats import form_of
from tandem_frontend.openai.limits import ModelLimits
from tandem_frontend.openai.nvext import KvHints
from tandem_frontend.openai.prefixes import PromptPrefixes, ReadText
from tandem_frontend.openai.processors import processors_of
from tandem_frontend.openai.prompts import Cache, PromptMaker
from tandem_frontend.openai.requests import (
    MAX_LOGIT_BIASES,
    NO_SEED,
    TIER_PRIORITIES,
    ChatRequest,
    CompletionRequest,
    GenerationFields,
    metadata_texts,
    shows_token_ids,
)
from tandem_frontend.openai.tokenizer import ModelTokenizer
from tandem_frontend.openai.tools import asked_tools
from tandem_frontend.read_steps import ReadSteps


class Preprocessor:
    """Checks requests for one model. Every failure is a RequestError with `param`."""

    def __init__(
        self, config: FrontendConfig, tokenizer: ModelTokenizer, template: ChatTemplate | None
    ) -> None:
        """Raises ConfigError for a `model_family` that nobody knows."""
        self._config = config
        self._tokenizer = tokenizer
        family = family_of(config, tokenizer, template)
        self._ends = [tokenizer.decode([token]) for token in tokenizer.eos_token_ids]
        self._markers = tokenizer.special_ids_of(family.markers if family else ())
        self.chats = Chats(config, template, family)
        self._lower_first = config.priority_order == "lower-first"
        self._served: router_pb2.ServedModel | None = None
        self._limits: ModelLimits

    def _passed_over(self, request: GenerationFields) -> tuple[str, ...]:
        names = self.chats.passed_over(request) if isinstance(request, ChatRequest) else ()
        dropped = not self._config.allow_kv_hints and _hints(request.kv_hints)
        return (*names, kv_hints.PARAM) if dropped else names

    def submission(
        self,
        request: ChatRequest | CompletionRequest,
        served: router_pb2.ServedModel,
        origin: Origin,
        *,
        prefixes: PromptPrefixes | None = None,
        steps: ReadSteps | None = None,
    ) -> Asked:
        """`prefixes`: known beginnings of prompts; None: none. `steps`: of reading so far."""
        steps = steps or ReadSteps()
        limits = self._limits_of(served)
        self._check_common(request)
        if origin.grant is not None:
            self._check_allowed(request, origin.grant)
        shared = "" if self._config.share_prefix_cache else origin.salt
        cache = Cache(_salt(request, shared), origin.lora_adapter)
        maker = PromptMaker(
            self._tokenizer, limits, self._config.model_name, cache, prefixes, steps
        )
        parsing, tools, thought = None, None, None
        if isinstance(request, ChatRequest):
            tools = asked_tools(request)
            steps.skip()
            text = self.chats.text(request.messages, request, tools)
            steps.end("render")
            thought = self.chats.thought(request, text)
            parsing = self.chats.parsing(request, tools, thought)
            prompts, read = maker.of_chat(request, text)
            logprobs = (request.top_logprobs or 0) if request.logprobs else None
            of_prompt = request.prompt_logprobs
        else:
            prompts, read = maker.of_completion(request, most=self._config.max_choices)
            logprobs = request.logprobs
            of_prompt = _of_prompt(request)
        form = form_with_calls(tools, parsing, form_of(request), ends=self._ends)
        form = behind_thought(form, thought)
        sampling = _sampling(request, limits, logprobs)
        if of_prompt is not None:
            self._check_prompt_logprobs(request, prompts, of_prompt)
            sampling.prompt_logprobs = of_prompt
        limits.check_token_ids(request.stop_token_ids or (), param="stop_token_ids")
        if sampling.stop and parsing and (marks := parsing.thought_marks()):
            sampling.thought.CopyFrom(marks)
        processors = processors_of(request, form, limits, self._config, thought=thought)
        contradictions.check(
            processors.spec,
            max_tokens=min(prompt.max_tokens for prompt in prompts),
            fields=processors.fields,
        )
        return self._asked(
            request,
            prompts,
            parsing,
            processors.fields,
            task=self._task(request, sampling, processors.spec, parsing, origin, cache),
            origin=origin,
            read=tuple(read) if any(read) else (),
            steps=steps,
        )

    def _limits_of(self, served: router_pb2.ServedModel) -> ModelLimits:
        """Limits of `served`, which is the same message until routers say another."""
        if served is not self._served:
            self._served, self._limits = served, ModelLimits(self._tokenizer, served)
        return self._limits

    def _check_prompt_logprobs(
        self, request: GenerationFields, prompts: Sequence[SubmittedPrompt], alternatives: int
    ) -> None:
        if request.stream and request.prompt_logprobs is not None:
            raise UnsupportedError(
                "`prompt_logprobs` is not offered in streams; see `echo`", param="prompt_logprobs"
            )
        count = sum(prompt.tokens for prompt in prompts) * (request.n or 1) * (1 + alternatives)
        if count > self._config.max_prompt_logprobs:
            raise InvalidRequestError(
                f"The log-probabilities of the prompt would be {count} numbers (its tokens, times"
                " one more than the alternatives, for each choice); at most"
                f" {self._config.max_prompt_logprobs} are offered",
                param="echo" if request.prompt_logprobs is None else "prompt_logprobs",
            )

    def _check_common(self, request: GenerationFields) -> None:
        config = self._config
        if (request.n or 1) > min(config.max_n, config.max_choices):
            limit = min(config.max_n, config.max_choices)
            raise InvalidRequestError(f"`n` must not exceed {limit}", param="n")
        if request.best_of not in (None, request.n or 1):
            raise UnsupportedError("Choices are not ranked: `best_of` is `n`", param="best_of")
        if request.stream_options and request.stream_options.include_obfuscation:
            raise UnsupportedError(
                "Events of a stream are not padded", param="stream_options.include_obfuscation"
            )
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

    def _check_allowed(self, request: GenerationFields, grant: Grant) -> None:
        grant.check(
            n=request.n or 1,
            priority=self._priority(request, grant),
            processors=[choice.name for choice in request.logits_processors or ()],
            lower_first=self._lower_first,
        )

    def _priority(self, request: GenerationFields, grant: Grant | None) -> int:
        """The priority that a request asks for, of which a higher one is admitted first; a hint, or
        else a tier, asks for no more than its key is allowed.
        """
        if request.priority is not None:
            return -request.priority if self._lower_first else request.priority
        hinted = request.nvext.priority if request.nvext else None
        asked = TIER_PRIORITIES.get(request.service_tier or "", 0) if hinted is None else hinted
        return asked if grant is None or asked <= 0 else min(asked, grant.max_priority)

    def _asked(
        self,
        request: GenerationFields,
        prompts: Sequence[SubmittedPrompt],
        parsing: Parsing | None,
        processor_fields: Sequence[str],
        *,
        task: common_pb2.Task,
        origin: Origin,
        read: tuple[ReadText | None, ...],
        steps: ReadSteps,
    ) -> Asked:
        options, hints = request.stream_options, request.nvext
        conversation = (hints and hints.session) or request.prompt_cache_key or ""
        want_usage = bool(options and options.include_usage)
        return Asked(
            parsing=parsing,
            passed_over=self._passed_over(request),
            read=read,
            steps=steps.done(),
            id=origin.id,
            alias=request.model,
            prompts=prompts,
            task=task,
            submit=self._submit(request, origin.grant),
            processor_fields=processor_fields,
            want_usage=want_usage,
            want_running_usage=want_usage and bool(options and options.continuous_usage_stats),
            want_prompt_logprobs=request.prompt_logprobs is not None,
            withheld_reason=self._config.withheld_finish_reason,
            timeout_seconds=request.timeout or self._config.request_timeout_seconds,
            says_tier=request.service_tier is not None,
            session=conversation or request.user or "",
            session_is_user=not conversation,
        )

    def _task(
        self,
        request: GenerationFields,
        sampling: common_pb2.SamplingParams,
        spec: LogitsProcessorSpec | None,
        parsing: Parsing | None,
        origin: Origin,
        cache: Cache,
    ) -> common_pb2.Task:
        tandem = request.tandem
        return common_pb2.Task(
            trace_id=origin.trace_id,
            model=self._config.model_name,
            sampling=sampling,
            logits=spec.to_proto() if spec else None,
            streaming=bool(request.stream),
            want_text=request.detokenize is not False,
            want_token_ids=shows_token_ids(request),
            want_report=bool(tandem and tandem.report),
            want_cost=bool(self._config.prices),
            want_external_scores=bool(tandem and tandem.external_scores),
            metadata=metadata_texts(request) or None,  # protobuf's Python takes an empty one
            tenant="" if origin.grant is None else origin.grant.name,
            kv_hints=_kv_hints(request.kv_hints) if self._config.allow_kv_hints else "",
            shown_special_tokens=self._markers if parsing else (),
            **cache._asdict(),
        )

    def _submit(self, request: GenerationFields, grant: Grant | None) -> router_pb2.Submit:
        hints = request.nvext
        return router_pb2.Submit(
            n=request.n or 1,
            tokenizer_sha256=self._tokenizer.sha256,
            ends_session=hints is not None and hints.closes,
            expected_tokens=hints.expected_tokens if hints else 0,
            priority=self._priority(request, grant),
            resume=self._config.resume if request.resume is None else request.resume,
            weight=1 if grant is None else grant.weight,
        )


def _of_prompt(request: CompletionRequest) -> int | None:
    """How many alternatives of the prompt's tokens are to be told; None: nothing is."""
    echoed = request.logprobs if request.echo else None
    if echoed is None or request.prompt_logprobs is None:
        return request.prompt_logprobs if echoed is None else echoed
    if echoed != request.prompt_logprobs:
        raise InvalidRequestError(
            "`logprobs` and `prompt_logprobs` differ, and `echo` shows the prompt's in both",
            param="prompt_logprobs",
        )
    return echoed


def _kv_hints(given: KvHints) -> str:
    """The envelope for the engines, as JSON; empty: there is none. Raises InvalidRequestError."""
    text = _hints(given)
    if text:
        kv_hints.read(text)
    return text.decode()


def _hints(given: KvHints) -> bytes:
    """The hints as JSON; empty where a request has none."""
    text = b"" if given is msgspec.UNSET else bytes(given)
    return b"" if text == b"null" else text


def _salt(request: GenerationFields, salt: str) -> str:
    """The tenant's, and what the request adds to it, of a length that does not depend on either."""
    if not (request.cache_salt or request.extra_key):
        return salt
    added = msgspec.json.encode((salt, request.cache_salt or "", request.extra_key or ""))
    return hashlib.sha256(added).hexdigest()


def _sampling(
    request: GenerationFields, limits: ModelLimits, logprobs: int | None
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
        logit_bias=bias or None,  # protobuf takes a mapping in Python, be it empty
        logprobs=logprobs,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
