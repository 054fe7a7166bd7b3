"""What a router last said of the model that requests are for, and what was sent there since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from math import inf

from tandem.upstream.served_model import longest_context, takes
from tandem.upstream.submission import Submission
from tandem.v1 import router_pb2


class EditionView:
    """The model with one tokenizer, at one router."""

    def __init__(self, model: router_pb2.ServedModel) -> None:
        self.takes = takes(model)
        self.paired = model.ready_pairs > 0
        self.longest_context = longest_context(model) or inf
        self.processors = {*model.logits_processors, *model.any_logits_processors}
        self.adapters = {"", *model.lora_adapters}
        self.free_slots = model.free_slots if model.HasField("free_slots") else None
        """Sequences that could start there, less those that waited; None: it does not say."""
        self.sent = 0
        """Sequences sent to the router since."""

    @property
    def says_room(self) -> bool:
        return self.free_slots is not None

    def can_run(self, submission: Submission) -> bool:
        """Whether some pair there may: it takes as many tokens, and its workers know the names."""
        return (
            submission.context_tokens <= self.longest_context
            and submission.processor_names <= self.processors
            and submission.task.lora_adapter in self.adapters
        )

    @property
    def left(self) -> float:
        """Sequences that could start there now, as far as is known here; below 0 so many wait."""
        return inf if self.free_slots is None else self.free_slots - self.sent


@dataclass(eq=False)
class RouterView:
    models: Sequence[router_pb2.ServedModel] = ()
    """Models that requests may be for, as the router said them last."""
    _: KW_ONLY
    foreign: bool = False
    """The router serves the model with other tokenizers alone."""
    expects: bool = False
    """The router is set to expect workers of the model."""
    pair_wait_seconds: float = 0.0
    """How long requests may wait there for the model's first pair."""

    def __post_init__(self) -> None:
        self._editions = {each.tokenizer_sha256: EditionView(each) for each in self.models}

    def edition(self, tokenizer_sha256: str) -> EditionView | None:
        """The model with a tokenizer; None: the router does not know it."""
        return self._editions.get(tokenizer_sha256)
