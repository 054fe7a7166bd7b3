"""The neutral logits-processor spec: what travels with a request, whatever the engine.

A spec names processors and carries JSON arguments, never code. It goes to *both* phases with the
request's absolute positions, so that what it forces is exact from the first token although two
processes generate the text (S1-040, S1-051).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tandem.errors import UnsupportedError
from tandem.logits.processor import LogitsProcessor
from tandem.v1 import common_pb2

FORCED_SEQUENCE = "forced_sequence"


@dataclass(slots=True, frozen=True)
class LogitsProcessorEntry:
    """One processor: its registered name and JSON-serialisable arguments."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    factory: Callable[[], LogitsProcessor] | None = None
    """Instead of a registered class: makes a fresh processor in this process. Such an entry cannot
    be sent (S1-049).
    """


@dataclass(slots=True, frozen=True)
class LogitsProcessorSpec:
    """A request's processors, applied in order. `generation_only` leaves the first token free."""

    entries: tuple[LogitsProcessorEntry, ...]
    generation_only: bool = False

    def to_proto(self) -> common_pb2.LogitsSpec:
        """Raises UnsupportedError for an entry that holds a live Python object."""
        return common_pb2.LogitsSpec(
            processors=[
                common_pb2.LogitsProcessor(name=entry.name, args_json=_to_json(entry))
                for entry in self.entries
            ],
            generation_only=self.generation_only,
        )

    @staticmethod
    def from_proto(message: common_pb2.LogitsSpec) -> LogitsProcessorSpec | None:
        """None where the message names no processor. Raises ValueError for arguments that are no
        JSON object.
        """
        if not message.processors:
            return None
        entries = tuple(
            LogitsProcessorEntry(processor.name, _arguments(processor))
            for processor in message.processors
        )
        return LogitsProcessorSpec(entries, generation_only=message.generation_only)


def forced_token_sequence(token_ids: Sequence[int], eos_token_id: int) -> LogitsProcessorEntry:
    """An entry that forces exactly `token_ids`, then the end of the sequence (S1-043)."""
    return LogitsProcessorEntry(
        FORCED_SEQUENCE, {"token_ids": list(token_ids), "eos_token_id": eos_token_id}
    )


def python_processor(factory: Callable[[], LogitsProcessor]) -> LogitsProcessorEntry:
    """An entry that calls `factory` once for each sequence, for an engine in this process only
    (S1-049).
    """
    name = getattr(factory, "__qualname__", type(factory).__qualname__)
    return LogitsProcessorEntry(f"python:{name}", factory=factory)


def for_role(
    spec: LogitsProcessorSpec | None, role: Literal["prefill", "decode", "aggregated"]
) -> LogitsProcessorSpec | None:
    """What `role` must apply: everything, but nothing in prefill where the spec is generation-only
    (S1-040).
    """
    if spec is None or (spec.generation_only and role == "prefill"):
        return None
    return spec


def _to_json(entry: LogitsProcessorEntry) -> str:
    if entry.factory is not None:
        raise UnsupportedError(
            f"{entry.name} is a live Python object and cannot leave its process: "
            "register its class with the worker and name it instead",
            param="logits_processors",
        )
    return json.dumps(dict(entry.args))


def _arguments(processor: common_pb2.LogitsProcessor) -> Mapping[str, Any]:
    args = json.loads(processor.args_json or "{}")
    if not isinstance(args, dict):
        raise ValueError(f"arguments of logits processor {processor.name!r} must be a JSON object")
    return args
