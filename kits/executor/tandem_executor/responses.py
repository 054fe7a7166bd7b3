"""What an executor answers: responses, each with a result or an error."""

from __future__ import annotations

import enum
from typing import Any

from msgspec import Struct, field

from tandem_executor.errors import NoResultError
from tandem_executor.requests import ContextPhaseParams
from tandem_executor.statistics import RequestPerfMetrics


class FinishReason(enum.Enum):
    """Why a sequence has ended."""

    NOT_FINISHED = 0
    END_ID = 1
    """The end token, or the end of the form that was asked for."""
    STOP_WORDS = 2
    """A stop word, or the operator's hook or classifier: `Result.withheld` says so."""
    LENGTH = 3
    TIMED_OUT = 4
    CANCELLED = 5


class Result(Struct, kw_only=True):
    """The output of one sequence of a request, in part or whole."""

    is_final: bool = False
    """Whether this is the request's last response."""
    output_token_ids: list[list[int]] = field(default_factory=list)
    """In a list of one beam. With `streaming` the token that came, or all so far; else prompt and
    answer."""
    finish_reasons: list[FinishReason] = field(default_factory=lambda: [FinishReason.NOT_FINISHED])
    """In a list of one beam."""
    log_probs: list[list[float]] | None = None
    """Log-probabilities of every token of the sequence so far, in a list of one beam."""
    cum_log_probs: list[float] | None = None
    """The sum of all of the sequence so far."""
    context_logits: Any = None
    """(prompt tokens, vocabulary) float32, where they were asked for: with each token that is
    streamed, else where the sequence ended by itself."""
    generation_logits: Any = None
    """(1, generated tokens, vocabulary) float32, likewise; with a token that is streamed (1, 1,
    vocabulary), as (tokens, 1, vocabulary) there."""
    sequence_index: int = 0
    is_sequence_final: bool = False
    """Whether this is the sequence's last response."""
    withheld: bool = False
    """A hook or a classifier of the deployment ended the sequence."""
    stop_reason: str = ""
    """The hook's reason or the classifier's name, with `withheld`."""
    replacement: str = ""
    """The text that a classifier has in place of what was withheld; its tokens are no token's of
    the model."""
    external_scores: dict[str, Any] | None = None
    """What each classifier answered, by its name, with a sequence's last response, where
    `return_external_scores` asked for it and there are classifiers."""
    request_perf_metrics: RequestPerfMetrics | None = None
    """With a sequence's last response, where `return_perf_metrics` asked for it."""
    context_phase_params: ContextPhaseParams | None = None
    """What a context-only request leaves."""
    decoding_iter: int | None = None
    avg_decoded_tokens_per_iter: float | None = None
    encoder_output: Any = None
    additional_outputs: Any = None
    spec_dec_fast_logits_info: Any = None
    """This field and the four before it are always None: no router passes them on."""

    def __eq__(self, other: object) -> bool:
        """All but the logits: arrays are compared number by number."""
        if not isinstance(other, Result):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _COMPARED)


_COMPARED = tuple(name for name in Result.__struct_fields__ if not name.endswith("_logits"))


class Response(Struct, frozen=True):
    """What came of a request: a result, or the error that ended it."""

    request_id: int
    content: Result | str
    """The result, or what the error says."""
    client_id: int | None = None
    error_code: str = ""
    """The `code` of an error, as classes of tandem.errors have it; empty for an unknown id."""

    def has_error(self) -> bool:
        return isinstance(self.content, str)

    @property
    def error_msg(self) -> str:
        """Raises NoResultError where there is a result."""
        if not isinstance(self.content, str):
            raise NoResultError(f"request {self.request_id} has a result, and no error")
        return self.content

    @property
    def result(self) -> Result:
        """Raises NoResultError where there is an error."""
        if isinstance(self.content, str):
            raise NoResultError(f"request {self.request_id} has no result: {self.content}")
        return self.content

    def clear_context_logits(self) -> None:
        """Let their memory go, where there are any."""
        if not isinstance(self.content, str):
            self.content.context_logits = None

    def clear_generation_logits(self) -> None:
        """Let the memory of `generation_logits` go, likewise."""
        if not isinstance(self.content, str):
            self.content.generation_logits = None
