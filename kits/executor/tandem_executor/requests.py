"""What a program asks an executor for. Names and meanings are those of TensorRT-LLM's Executor API;
docs/executor/moving-from-tensorrt-llm.md says where they differ.

Values are judged once a request is enqueued, and come back as an error in its response.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import timedelta
from typing import Any, ClassVar

from tandem_executor.errors import ExecutorError
from tandem_executor.left_out import refuses_left_out


class RequestType(enum.Enum):
    """Which phases a request is to go through: docs/executor/context-only.md."""

    REQUEST_TYPE_CONTEXT_AND_GENERATION = 0
    REQUEST_TYPE_CONTEXT_ONLY = 1
    """Prefill alone. Its result has ContextPhaseParams."""
    REQUEST_TYPE_GENERATION_ONLY = 2
    """Decode alone, from the ContextPhaseParams of a context-only request."""


@refuses_left_out
@dataclass(slots=True)
class ContextPhaseParams:
    """What a context-only request leaves, for one generation-only request to go on from."""

    first_gen_tokens: list[int]
    """The first token as it was shown: empty where a hook held the token back."""
    req_id: int
    """The request's id at its executor, which callbacks are given in both phases."""
    opaque_state: bytes | None = None
    """The voucher: where the KV cache is, signed by the router. It serves once, and expires."""


@refuses_left_out
@dataclass(slots=True)
class LoraConfig:
    """The LoRA adapter that runs a request: of those that the workers have, the one whose name is
    this number.
    """

    task_id: int


@refuses_left_out
@dataclass(slots=True)
class SamplingConfig:
    """How tokens are chosen. Without `top_k` above 1, `top_p` and `min_p` it is greedy, whatever
    the temperature, as it is there.
    """

    beam_width: int = 1
    """1: beams are not searched."""
    _: KW_ONLY
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    """Sequence i of a request is sampled with seed + i. None: by chance."""
    temperature: float | None = None
    min_tokens: int | None = None
    """None before so many: the logits processor `min_new_tokens`."""
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    """The logits processor `no_repeat_ngram`."""
    num_return_sequences: int | None = None
    min_p: float | None = None


@refuses_left_out
@dataclass(slots=True)
class OutputConfig:
    """What results hold beside the generated tokens."""

    return_log_probs: bool = False
    return_context_logits: bool = False
    """The row of each token of the prompt, of an engine in the program's own process."""
    return_generation_logits: bool = False
    """The row of each token that was generated, likewise."""
    exclude_input_from_output: bool = False
    """False: a result that is not streamed begins with the prompt."""
    _: KW_ONLY
    return_perf_metrics: bool = False
    """Times, what the hand-over took, and what hooks did; a router passes it on only with
    `allow_reports`."""
    return_external_scores: bool | None = None
    """What classifiers answered; a router passes it on only with `allow_external_scores`. None: of
    engines of the executor's own."""


@dataclass(slots=True)
class GuidedDecodingParams:
    """The form that an answer is to have."""

    class GuideType(enum.Enum):
        """What a guide is written in."""

        JSON = 0
        JSON_SCHEMA = 1
        REGEX = 2
        EBNF_GRAMMAR = 3
        STRUCTURAL_TAG = 4

    guide_type: GuideType
    guide: str | None = None
    """A JSON Schema, a regular expression or a grammar, as text; None for JSON."""

    def __post_init__(self) -> None:
        """Raises ExecutorError for a kind that needs a guide and has none."""
        if self.guide is None and self.guide_type is not self.GuideType.JSON:
            raise ExecutorError(f"{self.guide_type.name} needs a guide")


GuideType = GuidedDecodingParams.GuideType


@refuses_left_out
@dataclass(slots=True)
class Request:
    """One prompt, with the sampling and output that the program asks for."""

    BATCHED_POST_PROCESSOR_NAME: ClassVar[str] = "batched"

    input_token_ids: Sequence[int]
    max_tokens: int
    """The most of each sequence; at least 1."""
    _: KW_ONLY
    streaming: bool = False
    """True: a response for each token. False: one for each sequence, once it is whole."""
    sampling_config: SamplingConfig = field(default_factory=SamplingConfig)
    output_config: OutputConfig = field(default_factory=OutputConfig)
    end_id: int | None = None
    """The token that ends a sequence, as the model's own does then. None, or a negative number:
    nothing does but `stop_words` and `max_tokens`."""
    pad_id: int | None = None
    """Taken and never needed: what one response holds is of one sequence, so nothing is padded."""
    bad_words: Sequence[Sequence[int]] | None = None
    """Runs of tokens that must not come: the logits processor `banned_sequences`."""
    stop_words: Sequence[Sequence[int]] | None = None
    """Runs of tokens that end a sequence, with the run as its last tokens."""
    embedding_bias: Sequence[float] | None = None
    """Added to the logits, one number for each token of the vocabulary; an array serves too."""
    logits_post_processor_name: str | None = None
    """A callback that the workers know by this name."""
    logits_post_processor: Callable[..., Any] | None = None
    """A callback of this request alone, for an engine in the program's own process."""
    client_id: int | None = None
    """The program's own: responses and callbacks are given it."""
    return_all_generated_tokens: bool = False
    """With `streaming`: each response holds all tokens that its sequence has so far."""
    priority: float = 0.5
    """0 to 1; of requests that wait, the one with the highest starts first."""
    type: RequestType = RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION
    context_phase_params: ContextPhaseParams | None = None
    """Only a generation-only request has it, and needs it."""
    guided_decoding_params: GuidedDecodingParams | None = None
    allotted_time_ms: timedelta | int | None = None
    """From `enqueue_request` on; an int is of milliseconds. Then the request ends as TIMED_OUT."""
    lora_config: LoraConfig | None = None
    """None: the model alone."""
    cache_salt_id: int | None = None
    """Cached prefixes are those of requests with the same one."""
    metadata: Mapping[str, str] | None = None
    """For classifiers, who have it in their `request_metadata`."""
    extra_fields: Mapping[str, Any] | None = None
    """For classifiers, who have it as `extra_fields`: whatever JSON can say, by names."""

    @property
    def request_type(self) -> RequestType:
        """The constructor's `type`, as TensorRT-LLM calls the attribute."""
        return self.type

    @request_type.setter
    def request_type(self, value: RequestType) -> None:
        self.type = value

    def __eq__(self, other: object) -> bool:
        """Arrays are compared by their numbers, like lists."""
        if not isinstance(other, Request):
            return NotImplemented
        names = (each.name for each in fields(self))
        return all(_plain(getattr(self, name)) == _plain(getattr(other, name)) for name in names)


def _plain(value: Any) -> Any:
    """The numbers of an array; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value
