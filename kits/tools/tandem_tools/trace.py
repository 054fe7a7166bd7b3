"""Traces: when requests came to somebody's service, and how long they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tandem.errors import ConfigError

BLOCK_TOKENS = 512
"""Tokens that one of the `hash_ids` stands for; the last of a prompt may stand for fewer."""
MAX_LINE_BYTES = 1 << 20
"""A line is bounded, so that a file of something else is refused at its beginning."""
MAX_REQUESTS = 2_000_000
"""A trace is held in memory as a whole: so many requests take some two gigabytes."""


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
            raise ValueError("timestamps must be at least 0, and lengths at least 1")


def read(
    path: Path, *, requests: int | None = None, seconds: float | None = None
) -> tuple[TracedRequest, ...]:
    """The requests of a file in the order of their times: the first `requests`, and those of the
    first `seconds`, where these bound them. Raises ConfigError, with the line that is wrong.
    """
    found = list(_decoded(path))
    if not found:
        raise ConfigError(f"the trace {path} has no requests")
    found.sort(key=lambda request: request.timestamp)
    ends_at = float("inf") if seconds is None else found[0].timestamp + seconds * 1000
    return tuple(request for request in found[:requests] if request.timestamp <= ends_at)


def write(path: Path, requests: Iterable[TracedRequest]) -> None:
    """A file that `read` reads. Raises ConfigError where it cannot be written."""
    lines = b"".join(msgspec.json.encode(request) + b"\n" for request in requests)
    try:
        path.write_bytes(lines)
    except OSError as error:
        raise ConfigError(f"cannot write the trace {path}: {error.strerror}") from error


def _decoded(path: Path) -> Iterator[TracedRequest]:
    decoder = msgspec.json.Decoder(TracedRequest)
    count = 0
    for number, line in _lines(path):
        if line.isspace():
            continue
        try:
            request = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}, line {number}: {error}") from error
        count += 1
        if count > MAX_REQUESTS:
            raise ConfigError(f"{path}, line {number}: more than {MAX_REQUESTS:,} requests")
        yield request


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    reason = f"a line of more than {MAX_LINE_BYTES:,} bytes"
                    raise ConfigError(f"{path}, line {number}: {reason}")
                yield number, line
    except OSError as error:
        raise ConfigError(f"cannot read the trace {path}: {error.strerror}") from error
