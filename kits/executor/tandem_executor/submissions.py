"""From a program's Request to a Submission for a router, or to the error that says why not."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from datetime import timedelta
from itertools import compress
from math import isnan
from operator import index
from typing import Any, SupportsIndex, TypeGuard

from tandem import extra_fields, ids, sampling, token_limits
from tandem.endings import WithheldReason
from tandem.errors import (
    InvalidRequestError,
    LoadError,
    NoPairError,
    RequestError,
    UnknownModelError,
    UnsupportedError,
)
from tandem.extra_fields import PARAM as EXTRA_FIELDS
from tandem.little_endian import to_bytes
from tandem.logits.callbacks import with_client_id
from tandem.logits.contradictions import fields as contradictions
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec
from tandem.sampling import TOP_K_OFF
from tandem.upstream.submission import Submission, SubmittedPrompt
from tandem.v1 import common_pb2, router_pb2
from tandem_executor import halves
from tandem_executor.config import MOST_SECONDS, ExecutorConfig
from tandem_executor.core import Enqueued
from tandem_executor.live import ELSEWHERE, OF_REQUEST
from tandem_executor.requests import GuidedDecodingParams, GuideType, Request

_ANY_JSON = {"type": ["object", "array"]}
_PRIORITIES = 2000
"""Steps between the priorities 0 and 1 on the wire, on which 0 is what nobody asked for."""
_WHOLE = ("max_tokens", "end_id", "client_id", "cache_salt_id")
WITHHELD: WithheldReason = "content_filter"
"""What a Submission calls the end of a withheld output, and nothing else."""


def asked(
    request: Request,
    config: ExecutorConfig,
    *,
    refused: Mapping[str, str] = ELSEWHERE,
    scores: bool = False,
) -> Enqueued:
    """What the core is to know of a request. Whatever can be wrong with it without a look at the
    model is its `fault`. `refused`: arguments that this executor refuses, and why. `scores`:
    requests that do not say ask for what classifiers answered.
    """
    try:
        request = _snapshot(request)
        if request.output_config.return_external_scores is None:
            request.output_config.return_external_scores = scores
        n = request.sampling_config.num_return_sequences
        sequences = _count("num_return_sequences", 1 if n is None else n)
        max_tokens = _count("max_tokens", request.max_tokens)
        seconds = _seconds(request.allotted_time_ms, config.request_timeout_seconds)
        if halves.is_context_only(request):
            max_tokens = 1  # all that comes of it
        _check(request)
        _check_offered(request, refused)
    except RequestError as error:
        return Enqueued(request, error)
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        return Enqueued(request, InvalidRequestError(f"a field is of a wrong kind: {error}"))
    rows = _logits_rows(request, sequences * max_tokens)
    return Enqueued(request, None, sequences, sequences * max_tokens, seconds, rows)


def submission(
    request_id: int,
    request: Request,
    served: router_pb2.ServedModel,
    config: ExecutorConfig,
    *,
    seconds: float,
) -> Submission:
    """What goes to a router that serves such a model. `seconds` are left of its time.

    Raises RequestError, naming the field, and NoPairError.
    """
    try:
        return _submission(request_id, request, served, config, seconds)
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"a field is of a wrong kind: {error}") from error


def _snapshot(request: Request) -> Request:
    """The request as it is now: the program may change its own for the next one. Numbers are
    plain ones: those of an array have a kind of their own.
    """
    try:
        prompt = array("I", _values(request.input_token_ids))
    except (TypeError, OverflowError) as error:
        raise InvalidRequestError(
            "input_token_ids must be token ids", param="input_token_ids"
        ) from error
    given = {name: getattr(request, name) for name in _WHOLE}
    whole = {name: each for name, each in given.items() if _is_whole(each)}
    plain: dict[str, Any] = {name: index(each) for name, each in whole.items()}
    if plain.get("end_id", 0) < 0:
        plain["end_id"] = None  # no token has it, so nothing ends
    return replace(
        request,
        **plain,
        input_token_ids=prompt,
        sampling_config=copy(request.sampling_config),
        output_config=copy(request.output_config),
        metadata=None if request.metadata is None else dict(request.metadata),
        extra_fields=deepcopy(request.extra_fields),
    )


def _is_whole(value: object) -> TypeGuard[SupportsIndex]:
    """To ask for the protocol by isinstance takes Python 3.11 four to eight microseconds."""
    return type(value) is int or hasattr(type(value), "__index__")


def _values(given: Any) -> list[Any]:
    """A list of plain numbers, also from an array."""
    return list(given.tolist() if hasattr(given, "tolist") else given)


def _submission(
    request_id: int,
    request: Request,
    served: router_pb2.ServedModel,
    config: ExecutorConfig,
    seconds: float,
) -> Submission:
    vocabulary = served.limits.vocabulary
    if not vocabulary:  # its workers have gone, and with them what is known of it
        raise NoPairError("no prefill and decode worker for the model are ready")
    prompt = request.input_token_ids
    token_limits.check_token_ids(prompt, vocabulary, param="input_token_ids")
    params = _sampling(request, vocabulary)
    sampling.check_ranges(params)
    params.ClearField("max_tokens")
    entries = tuple(_processors(request_id, request))
    spec = LogitsProcessorSpec(entries) if entries else None
    contradictions.check(spec, max_tokens=request.max_tokens)
    salt = "" if request.cache_salt_id is None else str(request.cache_salt_id)
    adapter = _lora_adapter(request, served)
    task = common_pb2.Task(
        trace_id=ids.new_trace_id(),
        model=served.name,
        sampling=params,
        logits=None if spec is None else spec.to_proto(),
        embedding_bias=_bias(request.embedding_bias, vocabulary),
        streaming=request.streaming,
        want_token_ids=True,
        want_report=bool(request.output_config.return_perf_metrics),
        want_external_scores=bool(request.output_config.return_external_scores),
        metadata=request.metadata or None,  # protobuf takes a mapping in Python, be it empty
        extra_fields=_extra_fields(request),
        tenant=config.tenant,
        cache_salt=salt,
        lora_adapter=adapter,
    )
    submit = router_pb2.Submit(
        n=request.sampling_config.num_return_sequences or 1,
        tokenizer_sha256=served.tokenizer_sha256,
        priority=round((request.priority - 0.5) * _PRIORITIES),
        weight=config.weight,
        context_only=halves.is_context_only(request),
        voucher=halves.voucher_of(request),
        resume=config.resume,
    )
    return Submission(
        id=f"executor-{request_id}",
        prompts=[
            SubmittedPrompt.of(
                prompt, max_tokens=request.max_tokens, cache_salt=salt, lora_adapter=adapter
            )
        ],
        task=task,
        submit=submit,
        withheld_reason=WITHHELD,
        timeout_seconds=seconds,
    )


def _lora_adapter(request: Request, served: router_pb2.ServedModel) -> str:
    """The name of the one that it asks for; empty: it asks for none. Raises UnknownModelError."""
    if request.lora_config is None:
        return ""
    name = str(index(request.lora_config.task_id))
    if name not in served.lora_adapters:
        raise UnknownModelError(
            f"no worker has a LoRA adapter whose name is {name}", param="lora_config"
        )
    return name


def _check(request: Request) -> None:
    """Raises RequestError for what no model can take."""
    if not request.input_token_ids:
        raise InvalidRequestError("the prompt has no tokens", param="input_token_ids")
    halves.check(request)
    _check_texts(request.metadata or {})
    _extra_fields(request)
    if request.sampling_config.beam_width != 1:
        raise UnsupportedError("beams are not searched: beam_width is 1", param="beam_width")
    if not 0 <= request.priority <= 1:
        raise InvalidRequestError("priority must be from 0 to 1", param="priority")
    if not isinstance(request.client_id, int | None):
        raise InvalidRequestError("client_id must be a whole number", param="client_id")
    for name in ("stop_words", "bad_words"):
        for word in getattr(request, name) or ():
            if not len(word):
                raise InvalidRequestError(f"{name} holds an entry without tokens", param=name)
    if request.logits_post_processor is not None:
        try:
            with_client_id(request.logits_post_processor)
        except LoadError as error:
            raise InvalidRequestError(str(error), param=OF_REQUEST) from error
        if request.logits_post_processor_name is not None:
            raise InvalidRequestError("give a function or a name, not both", param=OF_REQUEST)
    _form(request.guided_decoding_params)


def _check_texts(metadata: Mapping[str, str]) -> None:
    if not all(isinstance(each, str) for pair in metadata.items() for each in pair):
        raise InvalidRequestError("metadata must be texts by texts", param="metadata")


def _extra_fields(request: Request) -> str:
    """As JSON. Raises InvalidRequestError for what JSON cannot say, or is too much."""
    given = request.extra_fields
    if not given:
        return ""
    try:
        text = json.dumps(given, allow_nan=False, ensure_ascii=False)
        extra_fields.read(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f"extra_fields must be what JSON can say: {type(error).__name__}", param=EXTRA_FIELDS
        ) from error
    return text


def _check_offered(request: Request, refused: Mapping[str, str]) -> None:
    """Raises UnsupportedError, naming the argument."""
    for name, reason in refused.items():
        if getattr(request, name, None) or getattr(request.output_config, name, None):
            raise UnsupportedError(f"{name}: {reason}", param=name)


def _logits_rows(request: Request, most_tokens: int) -> int:
    output = request.output_config
    context = len(request.input_token_ids) if output.return_context_logits else 0
    return context + (most_tokens if output.return_generation_logits else 0)


def _count(name: str, value: object) -> int:
    if not _is_whole(value) or not 1 <= index(value) <= sampling.MAX_INT32:
        raise InvalidRequestError(f"{name} must be a whole number of at least 1", param=name)
    return index(value)


def _seconds(allotted: timedelta | int | None, default: float) -> float:
    if allotted is None:
        return default
    seconds = allotted.total_seconds() if isinstance(allotted, timedelta) else allotted / 1000
    if not 0 < seconds <= MOST_SECONDS:
        raise InvalidRequestError(
            f"allotted_time_ms must be above 0 and at most {MOST_SECONDS} seconds",
            param="allotted_time_ms",
        )
    return seconds


def _sampling(request: Request, vocabulary: int) -> common_pb2.SamplingParams:
    config = request.sampling_config
    top_k, top_p = config.top_k or 0, config.top_p or 0.0
    sampled = top_k > 1 or (top_k != 1 and (top_p > 0 or config.min_p is not None))
    stops = [] if request.end_id is None else [request.end_id]
    words = [_values(word) for word in request.stop_words or ()]
    token_limits.check_token_ids(stops, vocabulary, param="end_id")
    sampling.check_stop_words(words, vocabulary)
    return common_pb2.SamplingParams(
        max_tokens=request.max_tokens,
        temperature=_or(config.temperature, 1.0) if sampled else 0.0,
        top_p=top_p or 1.0,
        top_k=top_k or TOP_K_OFF,
        min_p=config.min_p or 0.0,
        frequency_penalty=config.frequency_penalty or 0.0,
        presence_penalty=config.presence_penalty or 0.0,
        repetition_penalty=_or(config.repetition_penalty, 1.0),
        seed=config.seed,
        stop_token_ids=stops,
        stop_words=[common_pb2.StopWord(token_id=word) for word in words],
        ignore_eos=request.end_id is None and request.guided_decoding_params is None,
        logprobs=0 if request.output_config.return_log_probs else None,
    )


def _bias(given: Sequence[float] | None, vocabulary: int) -> common_pb2.EmbeddingBias | None:
    """What differs from 0 of a bias on the whole vocabulary. Values that are out of the wire's
    range, infinite ones among them, mean always and never, as its ends do.
    """
    if given is None:
        return None
    if len(given) != vocabulary:
        raise InvalidRequestError(
            f"embedding_bias has {len(given)} numbers; the vocabulary has {vocabulary} tokens",
            param="embedding_bias",
        )
    whole, most = _values(given), sampling.MOST_EMBEDDING_BIAS
    values = array("f", filter(None, whole))
    if not values:
        return None
    if any(map(isnan, values)):
        raise InvalidRequestError("embedding_bias has NaN", param="embedding_bias")
    if max(values) > most or min(values) < -most:
        values = array("f", [min(max(value, -most), most) for value in values])
    token_ids = array("I", compress(range(vocabulary), whole))
    return common_pb2.EmbeddingBias(token_ids=to_bytes(token_ids), values=to_bytes(values))


def _processors(request_id: int, request: Request) -> Iterator[LogitsProcessorEntry]:
    """The logits processors behind a request's fields, in the order in which they apply."""
    config = request.sampling_config
    if (form := _form(request.guided_decoding_params)) is not None:
        yield form
    if request.bad_words:
        words = [_values(word) for word in request.bad_words]
        yield LogitsProcessorEntry("banned_sequences", {"sequences": words})
    if config.no_repeat_ngram_size:
        yield LogitsProcessorEntry("no_repeat_ngram", {"size": config.no_repeat_ngram_size})
    if config.min_tokens and (request.end_id is not None or request.stop_words):
        args: dict[str, Any] = {"count": config.min_tokens}
        if request.end_id is not None:
            args["eos_token_ids"] = [request.end_id]
        yield LogitsProcessorEntry("min_new_tokens", args)
    name, own_id = request.logits_post_processor_name, request_id
    if request.logits_post_processor is not None:
        name = OF_REQUEST
    elif request.context_phase_params is not None:
        own_id = request.context_phase_params.req_id  # both phases of one sequence have one id
    if name is not None:
        caller: dict[str, int] = {"request_id": own_id}
        if request.client_id is not None:
            caller["client_id"] = request.client_id
        yield LogitsProcessorEntry(name, caller)


def _form(params: GuidedDecodingParams | None) -> LogitsProcessorEntry | None:
    """The form that an answer is to have. Raises RequestError for one that cannot be."""
    if params is None:
        return None
    name = "guided_decoding_params"
    if params.guide_type is GuideType.JSON:
        return LogitsProcessorEntry("json_schema", {"schema": _ANY_JSON})
    if params.guide_type is GuideType.STRUCTURAL_TAG:
        raise UnsupportedError("structural tags are not offered", param=name)
    if not params.guide:
        raise InvalidRequestError(f"{params.guide_type.name} needs a guide", param=name)
    match params.guide_type:
        case GuideType.REGEX:
            return LogitsProcessorEntry("regex", {"pattern": params.guide})
        case GuideType.EBNF_GRAMMAR:
            return LogitsProcessorEntry("ebnf", {"grammar": params.guide})
    try:
        return LogitsProcessorEntry("json_schema", {"schema": json.loads(params.guide)})
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the schema is no JSON: {error}", param=name) from error


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
