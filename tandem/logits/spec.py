"""The neutral logits-processor spec: what travels with a request, whatever the engine.

A spec names processors and carries JSON arguments, never code. It goes to *both* phases with the
request's absolute positions, so that what it forces is exact from the first token although two
processes generate the text (S1-040, S1-051).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tandem.errors import UnsupportedError
from tandem.logits.processor import LogitsProcessor
from tandem.v1 import common_pb2

FORCED_SEQUENCE = "forced_sequence"
PARAM = "logits_processors"
"""The request field that errors name."""


@dataclass(slots=True, frozen=True)
class LogitsProcessorEntry:
    """One processor: its registered name and JSON-serialisable arguments."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    from_client: bool = field(default=False, compare=False)
    """Whether it came over the wire: then the deployment's rules for clients apply."""


@dataclass(slots=True, frozen=True)
class PythonProcessorSpec:
    """A live processor instead of a name, for an engine in this process only. `factory` is called
    for each sequence. It cannot be sent (S1-049).
    """

    factory: Callable[[], LogitsProcessor]

    @property
    def name(self) -> str:
        return f"python:{getattr(self.factory, '__qualname__', type(self.factory).__qualname__)}"


Entry: TypeAlias = LogitsProcessorEntry | PythonProcessorSpec


@dataclass(slots=True, frozen=True)
class LogitsProcessorSpec:
    """A request's processors, applied in order. `generation_only` leaves the first token free."""

    entries: tuple[Entry, ...]
    generation_only: bool = False

    def to_proto(self) -> common_pb2.LogitsSpec:
        """Raises UnsupportedError for a PythonProcessorSpec."""
        return common_pb2.LogitsSpec(
            processors=[
                common_pb2.LogitsProcessor(name=entry.name, args_json=json.dumps(dict(entry.args)))
                for entry in self.named()
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
            LogitsProcessorEntry(processor.name, _arguments(processor), from_client=True)
            for processor in message.processors
        )
        return LogitsProcessorSpec(entries, generation_only=message.generation_only)

    def named(self) -> tuple[LogitsProcessorEntry, ...]:
        """The entries, all of which another process can build.

        Raises UnsupportedError for a PythonProcessorSpec.
        """
        return tuple(_named(entry) for entry in self.entries)


def forced_token_sequence(token_ids: Sequence[int], eos_token_id: int) -> LogitsProcessorEntry:
    """An entry that forces exactly `token_ids`, then the end of the sequence (S1-043)."""
    return LogitsProcessorEntry(
        FORCED_SEQUENCE, {"token_ids": list(token_ids), "eos_token_id": eos_token_id}
    )


def for_role(
    spec: LogitsProcessorSpec | None, role: Literal["prefill", "decode", "aggregated"]
) -> LogitsProcessorSpec | None:
    """What `role` must apply: everything, but nothing in prefill where the spec is generation-only
    (S1-040).
    """
    if spec is None or (spec.generation_only and role == "prefill"):
        return None
    return spec


def _named(entry: Entry) -> LogitsProcessorEntry:
    if isinstance(entry, PythonProcessorSpec):
        raise UnsupportedError(
            f"{entry.name} is a live Python object and cannot leave its process: "
            "register its class with the worker and name it instead",
            param=PARAM,
        )
    return entry


def _arguments(processor: common_pb2.LogitsProcessor) -> Mapping[str, Any]:
    args = json.loads(processor.args_json or "{}")
    if not isinstance(args, dict):
        raise ValueError(f"arguments of logits processor {processor.name!r} must be a JSON object")
    return args
