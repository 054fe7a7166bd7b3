"""What the core asks for. Each call is made once the core has taken in what happened, in the order
in which the core asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tandem.engine.base import EngineRequest, KvTransfer
from tandem.errors import TandemError
from tandem.hooks.classifiers.sequence_guard import Question
from tandem.hooks.deferred import SequenceInfo, Work
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.core.leg import Leg


class Effects(Protocol):
    """Carried out by the shell, which tells the core whatever goes wrong meanwhile."""

    def begin(
        self,
        request: EngineRequest,
        task: common_pb2.Task,
        command: worker_pb2.StartLeg,
        info: SequenceInfo,
        to_compute: int,
        judged: bool,
    ) -> None:
        """Give the request to the engine, then announce the sequence to hooks and classifiers,
        where they are to know of it (`judged`). Answer with `not_begun` where the engine does not
        take it, and with `judge_failed` where the others cannot; else with nothing. `to_compute`:
        as the leg's.
        """

    def cancel_engine(self, request_id: int) -> None:
        """The engine is to let go of a request, or of KV that it parked for nobody. It is asked
        once, and again after `not_cancelled`, which is the answer where it cannot be asked.
        """

    def judge_by_hooks(self, works: Sequence[Work]) -> None:
        """What one step brought, of all sequences. Answer with `ruled`, at once or later; with
        `judge_failed` for each where the hooks cannot be asked.
        """

    def wait_turn(self, request_id: int) -> None:
        """More of a leg waits to be replayed: answer with `play_on` once others had a turn."""

    def ask_classifiers(self, request_id: int, question: Question, finish_reason: str) -> None:
        """Begin a judgement. Answer with `judged` or `judge_failed`. At most one is open for a
        leg.
        """

    def stop_judging(self, request_id: int) -> None:
        """The output is over: tell its hooks, unless they know, and cancel its classifiers. Nothing
        that they say later counts.
        """

    def send(self, link: int) -> None:
        """Something waits for a router: take it as soon as the stream can be written."""

    def give_up(self, link: int, reason: str) -> None:
        """End a router's stream, which is at fault. `link_down` is expected."""

    def count_transfer(self, kv: KvTransfer, trace_id: str) -> None:
        """A hand-over of KV cache was measured. `trace_id`: empty: the leg is not traced."""

    def leg_closed(self, leg: Leg, at: float) -> None:
        """A leg is over, for counters, spans and the log. It does not change any more."""

    def leg_refused(
        self, link: int, command: worker_pb2.StartLeg, error: TandemError, at: float
    ) -> None:
        """A leg never began, for counters, spans and the log."""
