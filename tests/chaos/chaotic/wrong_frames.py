"""Frames of a worker, changed on their way to the router: what a worker with a bug would send."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from google.protobuf.message import DecodeError

from tandem.v1.worker_pb2 import WorkerFrame

Spoil = Callable[[WorkerFrame], list[bytes]]
"""The messages that go out in the place of one."""
_HEAD = 9
"""Bytes before an HTTP/2 frame's payload: length (3), type (1), flags (1), stream (4)."""
_DATA = 0
_PREFIX = 5
"""Bytes before a gRPC message: compressed (1), length (4)."""


def unreadable(frame: WorkerFrame) -> list[bytes]:
    """No message at all."""
    return [b"\xff" * max(16, frame.ByteSize())]


def unreadable_output(frame: WorkerFrame) -> list[bytes]:
    """The router can read it, and frontends cannot."""
    for envelope in frame.envelopes:
        envelope.payload = b"\xff" * max(16, len(envelope.payload))
    return [frame.SerializeToString()]


def lost_output(frame: WorkerFrame) -> list[bytes]:
    """The tokens of a step are missing."""
    del frame.envelopes[:]
    return [frame.SerializeToString()]


def repeated(frame: WorkerFrame) -> list[bytes]:
    """All of it comes twice."""
    return [frame.SerializeToString()] * 2


class Spoiler:
    """What comes from a worker's port, with some of its frames that carry output spoilt: each with
    probability `share`.
    """

    def __init__(self, spoil: Spoil, rng: Random, *, share: float) -> None:
        self._spoil = spoil
        self._rng = rng
        self._share = share
        self._rest = b""

    def __call__(self, data: bytes) -> bytes:
        self._rest += data
        out = []
        while len(self._rest) >= _HEAD:
            end = _HEAD + int.from_bytes(self._rest[:3], "big")
            if len(self._rest) < end:
                break
            out.append(self._frame(self._rest[:end]))
            self._rest = self._rest[end:]
        return b"".join(out)

    def _frame(self, frame: bytes) -> bytes:
        head, payload = frame[:_HEAD], frame[_HEAD:]
        whole = payload[:1] == b"\0" and int.from_bytes(payload[1:5], "big") == len(payload) - 5
        if head[3] != _DATA or not whole or self._rng.random() >= self._share:
            return frame
        try:
            message = WorkerFrame.FromString(payload[_PREFIX:])
        except DecodeError:
            return frame
        if not message.envelopes:
            return frame
        return b"".join(_written(head, each) for each in self._spoil(message))


def _written(head: bytes, message: bytes) -> bytes:
    length = (_PREFIX + len(message)).to_bytes(3, "big")
    return length + head[3:] + b"\0" + len(message).to_bytes(4, "big") + message
