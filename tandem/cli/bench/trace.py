"""Traces: when requests came to somebody's service, and how long they were."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tandem.errors import ConfigError


class TracedRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a trace. `timestamp` is in ms, lengths are in tokens; equal `hash_ids` are equal
    blocks of 512 prompt tokens behind equal beginnings.
    """

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.timestamp < 0 or self.input_length < 1 or self.output_length < 1:
            raise ValueError("a timestamp is at least 0, and a length at least 1")


def read(
    path: Path, *, requests: int | None = None, seconds: float | None = None
) -> tuple[TracedRequest, ...]:
    """The requests of a file in the order of their times: the first `requests`, and those of the
    first `seconds`, where these bound them. Raises ConfigError, with the line that is wrong.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read the trace {path}: {error.strerror}") from error
    found = [_decoded(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ConfigError(f"the trace {path} has no requests")
    found.sort(key=lambda request: request.timestamp)
    ends_at = float("inf") if seconds is None else found[0].timestamp + seconds * 1000
    return tuple(request for request in found[:requests] if request.timestamp <= ends_at)


def _decoded(path: Path, number: int, line: bytes) -> TracedRequest:
    try:
        return msgspec.json.decode(line, type=TracedRequest)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}, line {number}: {error}") from error
