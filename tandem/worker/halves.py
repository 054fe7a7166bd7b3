"""What the two halves of one request must have in common."""

from __future__ import annotations

import hashlib

from tandem.errors import VoucherError
from tandem.v1 import common_pb2

DIGEST_BYTES = 32
_OF_EACH_HALF = (
    "trace_id",
    "streaming",
    "want_text",
    "want_token_ids",
    "want_report",
    "want_external_scores",
    "metadata",
)
"""Fields of a Task that only name a request, or say what of it is shown."""


def digest(task: common_pb2.Task) -> bytes:
    """SHA-256 of all of a task that its output depends on, but for `max_tokens`, which the first
    half has no use for.
    """
    common = common_pb2.Task()
    common.CopyFrom(task)
    for name in _OF_EACH_HALF:
        common.ClearField(name)  # type: ignore[arg-type]  # they are its fields
    common.sampling.ClearField("max_tokens")
    return hashlib.sha256(common.SerializeToString(deterministic=True)).digest()


def check(task: common_pb2.Task, expected: bytes) -> None:
    """Raises VoucherError where a task is not that of the first half."""
    if digest(task) != expected:
        raise VoucherError(
            "the request is not that of the first half: prompt, sampling, processors, salt and"
            " tenant have to be the same"
        )
