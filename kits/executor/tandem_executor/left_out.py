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
_WORKERS = "the workers' own settings decide"
_RESULTS = "a router passes on tokens and log-probabilities, and nothing else of the model"
_KV_EVENTS = "a router's stream says how full KV caches are, and of no event in them"

FIELDS: Mapping[str, Mapping[str, str]] = {
    "Request": {
        "max_new_tokens": "it is the older name of max_tokens",
        "position_ids": _INPUTS,
        "external_draft_tokens_config": _DRAFTS,
        "prompt_tuning_config": _INPUTS,
        "multimodal_input": _INPUTS,
        "multimodal_embedding": _INPUTS,
        "mrope_config": _INPUTS,
        "lookahead_config": _DRAFTS,
        "eagle_config": _DRAFTS,
        "kv_cache_retention_config": "workers evict what was used least recently",
        "encoder_input_token_ids": _ENCODER,
        "encoder_input_features": _ENCODER,
        "encoder_output_length": _ENCODER,
        "cross_attention_mask": _ENCODER,
        "skip_cross_attn_blocks": _ENCODER,
        "num_return_sequences": "SamplingConfig has num_return_sequences",
        "language_adapter_uid": _LANGUAGES,
        "disagg_request_id": "context_phase_params say whose the KV cache is",
    },
    "ContextPhaseParams": {"draft_tokens": _DRAFTS},
    "LoraConfig": {"weights": _OWN_ADAPTERS, "config": _OWN_ADAPTERS},
    "SamplingConfig": {
        "random_seed": "it is the older name of seed",
        "min_length": "it is the older name of min_tokens",
        "top_p_min": "top_p does not decay",
        "top_p_reset_ids": "top_p does not decay",
        "top_p_decay": "top_p does not decay",
        "prompt_ignore_length": "penalties count what the engine counts",
        "beam_search_diversity_rate": _BEAMS,
        "length_penalty": _BEAMS,
        "early_stopping": _BEAMS,
        "beam_width_array": _BEAMS,
    },
    "OutputConfig": {
        "return_encoder_output": _ENCODER,
        "additional_model_outputs": _RESULTS,
    },
    "ExecutorConfig": {
        "normalize_log_probs": "log-probabilities are never divided by a length",
        "decoding_config": _DRAFTS,
        "spec_dec_config": _DRAFTS,
        "guided_decoding_config": "every worker compiles forms of answers",
        "additional_model_outputs": _RESULTS,
        "prompt_table_offloading": _INPUTS,
        "mm_embedding_offloading": _INPUTS,
    },
}
"""Arguments, by class. None and False ask for nothing, so they pass."""

FALSE = frozenset({"return_encoder_output", "prompt_table_offloading", "mm_embedding_offloading"})
"""Arguments whose default is False; the default of the others is None."""

UNUSED: Mapping[str, str] = {
    "scheduler_config": _WORKERS,
    "kv_cache_config": _WORKERS,
    "enable_chunked_context": _WORKERS,
    "max_batch_size": _WORKERS,
    "max_num_tokens": _WORKERS,
    "parallel_config": _WORKERS,
    "peft_cache_config": _WORKERS,
    "use_gpu_direct_storage": _WORKERS,
    "gpu_weights_percent": _WORKERS,
    "extended_runtime_perf_knob_config": _WORKERS,
    "debug_config": _WORKERS,
    "recv_poll_period_ms": "an executor does not poll",
    "max_seq_idle_microseconds": "every request has a deadline instead",
    "cache_transceiver_config": _WORKERS,
    "gather_generation_logits": "each request asks for its own logits",
    "fail_fast_on_attention_window_too_large": _WORKERS,
    "enable_trt_overlap": _WORKERS,
}
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

NAMES: Mapping[str, str] = {
    "AdditionalModelOutput": _RESULTS,
    "AdditionalOutput": _RESULTS,
    "DebugTensorsPerIteration": _RESULTS,
    "DecodingConfig": _DRAFTS,
    "DecodingMode": _DRAFTS,
    "EagleConfig": _DRAFTS,
    "ExternalDraftTokensConfig": _DRAFTS,
    "GuidedDecodingConfig": "every worker compiles forms of answers",
    "KvCacheRetentionConfig": "workers evict what was used least recently",
    "KvCacheTransferMode": "workers evict what was used least recently",
    "LookaheadDecodingConfig": _DRAFTS,
    "ModelType": "models are decoders alone, and the workers' folder says which",
    "MropeConfig": _INPUTS,
    "MultimodalInput": _INPUTS,
    "PromptTuningConfig": _INPUTS,
    "SpecDecodingStats": _DRAFTS,
    "SpeculativeDecodingConfig": _DRAFTS,
    "SpeculativeDecodingFastLogitsInfo": _DRAFTS,
    "SpeculativeDecodingMetrics": _DRAFTS,
    "StaticBatchingStats": "nothing runs in static batches",
    "deserialize_result": "results are pickled",
    "kv_cache": _KV_EVENTS,
}
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
