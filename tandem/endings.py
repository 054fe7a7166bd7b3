"""How an end is said wherever it crosses from one component to another.

A leg closes with an outcome, an output ends for its client with a finish reason, and each has one
spelling in the components and one on the wire.
"""

from __future__ import annotations

import enum
from typing import Literal

from tandem.v1 import common_pb2, worker_pb2

FinishReason = Literal["stop", "length", "content_filter"]
"""What a client is told. `stop`: the model, a stop string, a hook or a classifier ended it."""
WithheldReason = Literal["stop", "content_filter"]
"""What a client may be told of an output that a hook or a classifier ended, by setting."""


class Outcome(enum.StrEnum):
    """How a leg closed. LOST: its worker's stream broke, so nothing of the leg is left there."""

    FINISHED = "finished"
    TERMINATED = "terminated"
    CANCELLED = "cancelled"
    FAILED = "failed"
    LOST = "lost"
    REGENERATE = "regenerate"
    """A classifier blocked the output, and nothing was shown: the sequence is to be run again."""


OUTCOME_TO_WIRE: dict[Outcome, worker_pb2.LegClosed.Outcome.ValueType] = {
    Outcome.FINISHED: worker_pb2.LegClosed.OUTCOME_FINISHED,
    Outcome.TERMINATED: worker_pb2.LegClosed.OUTCOME_TERMINATED,
    Outcome.CANCELLED: worker_pb2.LegClosed.OUTCOME_CANCELLED,
    Outcome.FAILED: worker_pb2.LegClosed.OUTCOME_FAILED,
    Outcome.REGENERATE: worker_pb2.LegClosed.OUTCOME_REGENERATE,
}
"""No worker says LOST of itself."""
OUTCOME_FROM_WIRE = {on_wire: outcome for outcome, on_wire in OUTCOME_TO_WIRE.items()}

FINISH_TO_WIRE: dict[Literal["stop", "length"], common_pb2.FinishReason.ValueType] = {
    "stop": common_pb2.FINISH_REASON_STOP,
    "length": common_pb2.FINISH_REASON_LENGTH,
}
"""The wire says whether an output was withheld; the frontend's setting says what that is called."""
FINISH_FROM_WIRE = {on_wire: reason for reason, on_wire in FINISH_TO_WIRE.items()}
