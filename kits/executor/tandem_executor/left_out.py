"""What TensorRT-LLM's Executor API has and this one leaves out, and why: it is refused by name, or
taken and not used, and docs/executor/moving-from-tensorrt-llm.md lists it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from tandem.errors import UnsupportedError

_Class = TypeVar("_Class", bound=type)

_BEAMS = "beams are not searched: every sequence is sampled"
_DRAFTS = "engines draft tokens by their own settings, if at all"
_INPUTS = "a request is made of token ids alone"
_LANGUAGES = "no engine here serves adapters of languages"
_OWN_ADAPTERS = "workers load adapters by their own settings, and a task_id names one"
_ENCODER = "models are decoders alone"
_EVICTION = "workers evict what was used least recently"
_FORMS = "every worker compiles forms of answers"
_WORKERS = "the workers' own settings decide"
_RESULTS = "a router passes on tokens and log-probabilities, and nothing else of the model"
_KV_EVENTS = "a router's stream says how full KV caches are, and of no event in them"


def _by_name(*given: tuple[str, tuple[str, ...]]) -> dict[str, str]:
    """Reasons by name, from a reason and all that it is the reason for."""
    return {name: reason for reason, names in given for name in names}


FIELDS: Mapping[str, Mapping[str, str]] = {
    "Request": _by_name(
        ("it is the older name of max_tokens", ("max_new_tokens",)),
        (_INPUTS, ("position_ids", "prompt_tuning_config", "multimodal_input")),
        (_INPUTS, ("multimodal_embedding", "mrope_config")),
        (_DRAFTS, ("external_draft_tokens_config", "lookahead_config", "eagle_config")),
        (_EVICTION, ("kv_cache_retention_config",)),
        (_ENCODER, ("encoder_input_token_ids", "encoder_input_features")),
        (_ENCODER, ("encoder_output_length", "cross_attention_mask", "skip_cross_attn_blocks")),
        ("SamplingConfig has num_return_sequences", ("num_return_sequences",)),
        (_LANGUAGES, ("language_adapter_uid",)),
        ("context_phase_params say whose the KV cache is", ("disagg_request_id",)),
    ),
    "ContextPhaseParams": {"draft_tokens": _DRAFTS},
    "LoraConfig": {"weights": _OWN_ADAPTERS, "config": _OWN_ADAPTERS},
    "SamplingConfig": _by_name(
        ("it is the older name of seed", ("random_seed",)),
        ("it is the older name of min_tokens", ("min_length",)),
        ("top_p does not decay", ("top_p_min", "top_p_reset_ids", "top_p_decay")),
        ("penalties count what the engine counts", ("prompt_ignore_length",)),
        (_BEAMS, ("beam_search_diversity_rate", "length_penalty", "early_stopping")),
        (_BEAMS, ("beam_width_array",)),
    ),
    "OutputConfig": {
        "return_encoder_output": _ENCODER,
        "additional_model_outputs": _RESULTS,
    },
    "ExecutorConfig": _by_name(
        ("log-probabilities are never divided by a length", ("normalize_log_probs",)),
        (_DRAFTS, ("decoding_config", "spec_dec_config")),
        (_FORMS, ("guided_decoding_config",)),
        (_RESULTS, ("additional_model_outputs",)),
        (_INPUTS, ("prompt_table_offloading", "mm_embedding_offloading")),
    ),
}
"""Arguments, by class. None and False ask for nothing, so they pass."""

FALSE = frozenset({"return_encoder_output", "prompt_table_offloading", "mm_embedding_offloading"})
"""Arguments whose default is False; the default of the others is None."""

UNUSED: Mapping[str, str] = _by_name(
    (_WORKERS, ("scheduler_config", "kv_cache_config", "enable_chunked_context")),
    (_WORKERS, ("max_batch_size", "max_num_tokens", "parallel_config", "peft_cache_config")),
    (_WORKERS, ("use_gpu_direct_storage", "gpu_weights_percent", "debug_config")),
    (_WORKERS, ("extended_runtime_perf_knob_config", "cache_transceiver_config")),
    (_WORKERS, ("fail_fast_on_attention_window_too_large", "enable_trt_overlap")),
    ("an executor does not poll", ("recv_poll_period_ms",)),
    ("every request has a deadline instead", ("max_seq_idle_microseconds",)),
    ("each request asks for its own logits", ("gather_generation_logits",)),
)
"""Arguments of ExecutorConfig that are taken and change nothing, with a warning."""

ORDER: Mapping[str, tuple[str, ...]] = {
    "Request": ("input_token_ids", "max_tokens"),
    "ContextPhaseParams": ("first_gen_tokens", "req_id", "opaque_state", "draft_tokens"),
    "LoraConfig": ("task_id", "weights", "config"),
    "SamplingConfig": ("beam_width",),
    "OutputConfig": (
        "return_log_probs",
        "return_context_logits",
        "return_generation_logits",
        "exclude_input_from_output",
        "return_encoder_output",
        "return_perf_metrics",
        "additional_model_outputs",
    ),
    "ExecutorConfig": (
        "max_beam_width",
        "scheduler_config",
        "kv_cache_config",
        "enable_chunked_context",
        "normalize_log_probs",
        "iter_stats_max_iterations",
        "request_stats_max_iterations",
        "batching_type",
    ),
}
"""Arguments that TensorRT-LLM takes by position."""

NAMES: Mapping[str, str] = _by_name(
    (_RESULTS, ("AdditionalModelOutput", "AdditionalOutput", "DebugTensorsPerIteration")),
    (_DRAFTS, ("DecodingConfig", "DecodingMode", "EagleConfig", "ExternalDraftTokensConfig")),
    (_DRAFTS, ("LookaheadDecodingConfig", "SpecDecodingStats", "SpeculativeDecodingConfig")),
    (_DRAFTS, ("SpeculativeDecodingFastLogitsInfo", "SpeculativeDecodingMetrics")),
    (_FORMS, ("GuidedDecodingConfig",)),
    (_EVICTION, ("KvCacheRetentionConfig", "KvCacheTransferMode")),
    ("models are decoders alone, and the workers' folder says which", ("ModelType",)),
    (_INPUTS, ("MropeConfig", "MultimodalInput", "PromptTuningConfig")),
    ("nothing runs in static batches", ("StaticBatchingStats",)),
    ("results are pickled", ("deserialize_result",)),
    (_KV_EVENTS, ("kv_cache",)),
)
"""Names of the module."""

METHODS: Mapping[str, str] = {
    "get_latest_debug_tensors": _RESULTS,
    "get_kv_cache_event_manager": _KV_EVENTS,
}
"""Methods of an executor."""


class _LeftOut:
    """An attribute that is left out: it reads as its default, and refuses whatever asks for
    something.
    """

    def __init__(self, name: str, reason: str, default: bool | None) -> None:
        self._name, self._reason, self._default = name, reason, default

    def __get__(self, instance: object, owner: type) -> bool | None:
        return self._default

    def __set__(self, instance: object, value: object) -> None:
        if value is not None and value is not False:
            refuse(self._name, self._reason)


def refuses_left_out(made: _Class) -> _Class:
    """A class whose constructor and attributes refuse what `FIELDS` has of it, with
    UnsupportedError. Its constructor takes the arguments of `ORDER` by their place, too.
    """
    reasons, order = FIELDS[made.__name__], ORDER[made.__name__]
    init: Callable[..., None] = made.__init__  # type: ignore[misc]  # it is this class's own

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        if len(args) > len(order):
            raise TypeError(f"{made.__name__} takes {len(order)} arguments by place, not more")
        for name, value in zip(order, args, strict=False):
            if name in given:
                raise TypeError(f"{made.__name__} got {name} by place and by name")
            given[name] = value
        for name in given.keys() & reasons.keys():
            setattr(self, name, given.pop(name))
        init(self, **given)

    made.__init__ = checked  # type: ignore[misc]
    for name, reason in reasons.items():
        default = False if name in FALSE else None
        setattr(made, name, _LeftOut(f"{made.__name__}.{name}", reason, default))
    return made


def refuse(name: str, reason: str) -> NoReturn:
    """Raises UnsupportedError for something that is left out."""
    raise UnsupportedError(f"{name} is left out: {reason}", param=name.rpartition(".")[2])
