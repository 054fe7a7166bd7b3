"""The neutral logits-processor spec: what travels with a request, whatever the engine.

A spec names processors and carries JSON arguments, never code. It goes to *both* phases with the
request's absolute positions, so that what it forces is exact from the first token although two
processes generate the text (S1-040, S1-051).
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from tandem.errors import InvalidRequestError, UnsupportedError
from tandem.logits.forms.limits import DEFAULT_LIMITS, SpecLimits
from tandem.logits.processor import LogitsProcessor
from tandem.v1 import common_pb2

FORCED_SEQUENCE = "forced_sequence"
PARAM = "logits_processors"
"""The request field that errors name."""
_REMEMBERED = 4


class Ready(Protocol):
    """A processor of which each sequence gets a copy."""

    def fresh(self) -> LogitsProcessor: ...


@dataclass(slots=True, frozen=True)
class LogitsProcessorEntry:
    """One processor: its registered name and JSON-serialisable arguments."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    from_client: bool = field(default=False, compare=False)
    """Whether it came over the wire: then the deployment's rules for clients apply."""
    key: str = field(default="", compare=False, repr=False)
    """Equal for equal names and arguments, of those that came over the wire."""
    ready: Ready | None = field(default=None, compare=False, repr=False)
    """A form of answers that passed its check: what this process made of it, for all sequences."""


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
    def from_proto(
        message: common_pb2.LogitsSpec, limits: SpecLimits = DEFAULT_LIMITS
    ) -> LogitsProcessorSpec | None:
        """None where the message names no processor. Raises ValueError for arguments that are no
        JSON object, or pass a limit.
        """
        if not message.processors:
            return None
        all_args = limits.parse([processor.args_json for processor in message.processors])
        entries = tuple(
            LogitsProcessorEntry(processor.name, args, from_client=True, key=_key(processor))
            for processor, args in zip(message.processors, all_args, strict=True)
        )
        return LogitsProcessorSpec(entries, generation_only=message.generation_only)

    def named(self) -> tuple[LogitsProcessorEntry, ...]:
        """The entries, all of which another process can build.

        Raises UnsupportedError for a PythonProcessorSpec.
        """
        return tuple(_named(entry) for entry in self.entries)


def write_entries(entries: Sequence[LogitsProcessorEntry]) -> str:
    """Names, arguments and whether a client asked, as JSON, for an engine's own process."""
    return json.dumps([[entry.name, dict(entry.args), entry.from_client] for entry in entries])


def read_entries(text: str) -> LogitsProcessorSpec:
    """The processors that `write_entries` wrote."""
    return LogitsProcessorSpec(tuple(LogitsProcessorEntry(*each) for each in json.loads(text)))


class SpecReader:
    """Reads specs as they travel. The sequences of one request have one spec, so the last few are
    remembered, and are read once: also those that are refused.
    """

    def __init__(self, limits: SpecLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._read: OrderedDict[bytes, LogitsProcessorSpec | str | None] = OrderedDict()

    def read(self, message: common_pb2.LogitsSpec) -> LogitsProcessorSpec | None:
        """None where the message names no processor. Raises InvalidRequestError."""
        if not message.processors:
            return None
        key = message.SerializeToString(deterministic=True)
        if key not in self._read:
            self._read[key] = self._spec(message)
            while len(self._read) > _REMEMBERED:
                self._read.popitem(last=False)
        found = self._read[key]
        if isinstance(found, str):
            raise InvalidRequestError(found, param=PARAM)
        return found

    def _spec(self, message: common_pb2.LogitsSpec) -> LogitsProcessorSpec | str | None:
        try:
            return LogitsProcessorSpec.from_proto(message, self._limits)
        except ValueError as error:
            return f"arguments of logits processors: {error}"


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


def _key(processor: common_pb2.LogitsProcessor) -> str:
    return hashlib.sha256(f"{processor.name}:{processor.args_json}".encode()).hexdigest()
