"""What a phase decides of its legs. Everything else about legs is the same in both."""

from __future__ import annotations

from typing import Protocol

from tandem.engine.base import KvTransfer
from tandem.hooks.classifiers.classifier_set import Judgement
from tandem.hooks.classifiers.sequence_guard import SequenceGuard
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.core.leg import Closing, Leg
from tandem.worker.core.output import Finish


class PhaseRules(Protocol):
    """One phase, as plain values and functions without I/O."""

    @property
    def phase(self) -> common_pb2.Phase.ValueType:
        """The phase of these rules, as a number of the wire."""

    @property
    def shows(self) -> bool:
        """Whether the client is sent what this phase's hooks let through. Then a leg that has
        brought output cannot be run elsewhere, and a terminate silences its siblings.
        """

    @property
    def max_held_rows(self) -> int:
        """Rows that may wait for the router's release."""

    def guard(self, *, streaming: bool) -> SequenceGuard | None:
        """A new sequence's way past the classifiers; None: there are none."""

    def started(self, kv: KvTransfer | None) -> worker_pb2.LegStarted | None:
        """What the router is told of a leg's first output, before hooks see it."""

    def verdict(self, leg: Leg, end: Finish) -> worker_pb2.LegVerdict | None:
        """What the router is told once hooks have ruled on all of a leg's output."""

    def closing(self, end: Finish) -> Closing:
        """How a leg ends whose output came to an end."""

    def finish(self, leg: Leg, end: Finish) -> common_pb2.Finish | None:
        """The client's last word of a leg that ended by itself."""

    def regeneration(self, leg: Leg, judgement: Judgement) -> common_pb2.Regeneration | None:
        """How to make a finished output again that classifiers judged; None: it stays."""
