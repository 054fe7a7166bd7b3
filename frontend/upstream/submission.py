"""A checked request, ready for the router: one Submit for each prompt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tandem.endings import WithheldReason
from tandem.logits.spec import PARAM, LogitsProcessorSpec
from tandem.v1 import common_pb2, router_pb2

_PLACE = re.compile(rf"{PARAM}\[(\d+)\]")


@dataclass(slots=True, frozen=True, kw_only=True)
class Prompt:
    token_ids: Sequence[int]
    max_tokens: int
    text: str = ""
    """What the client wrote, or what its token ids stand for; only for echo."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Submission:
    trace_id: str
    model: str
    prompts: Sequence[Prompt]
    n: int
    sampling: common_pb2.SamplingParams
    """Without max_tokens, which each prompt has for itself."""
    logits: LogitsProcessorSpec | None
    form: str = ""
    """The field that asked for a form of the answer, which is the first of `logits`; empty: none
    did."""
    streaming: bool
    want_token_ids: bool
    """Token ids instead of text."""
    want_report: bool
    want_external_scores: bool
    metadata: Mapping[str, str]
    """The client's own, for classifiers."""
    withheld_reason: WithheldReason
    """The finish_reason of a choice that a hook or a classifier ended."""
    timeout_seconds: float
    priority: int

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    def client_param(self, param: str) -> str:
        """A request field as the client named it, from how a worker names it."""
        place = _PLACE.fullmatch(param)
        if place is None or not self.form:
            return param
        index = int(place[1])
        return f"{PARAM}[{index - 1}]" if index else self.form

    def to_submits(
        self, first_sequences: Iterable[int], *, parent_span: int = 0
    ) -> list[router_pb2.Submit]:
        """`parent_span`: the request's; 0: it is not traced."""
        return [
            router_pb2.Submit(
                first_sequence=first,
                n=self.n,
                trace_id=self.trace_id,
                model=self.model,
                prompt_tokens=len(prompt.token_ids),
                max_tokens=prompt.max_tokens,
                timeout_ms=max(1, min(round(self.timeout_seconds * 1000), 2**32 - 1)),
                priority=self.priority,
                want_report=self.want_report,
                task=self._task(prompt),
                parent_span=parent_span,
            )
            for first, prompt in zip(first_sequences, self.prompts, strict=True)
        ]

    def _task(self, prompt: Prompt) -> bytes:
        task = common_pb2.Task(
            trace_id=self.trace_id,
            model=self.model,
            prompt_token_ids=prompt.token_ids,
            sampling=self.sampling,
            logits=self.logits.to_proto() if self.logits else None,
            streaming=self.streaming,
            want_text=not self.want_token_ids,
            want_token_ids=self.want_token_ids,
            want_report=self.want_report,
            want_external_scores=self.want_external_scores,
            metadata=self.metadata,
        )
        task.sampling.max_tokens = prompt.max_tokens
        return task.SerializeToString()
