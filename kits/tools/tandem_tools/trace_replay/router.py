"""A router in virtual time: the real core, told what frontends and workers do, and heard."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tandem import prefix_blocks
from tandem.endings import Outcome
from tandem.errors import QueueFullError, RouterLostError, TandemError
from tandem.v1 import router_pb2
from tandem_router.core import actions, events
from tandem_router.core.machine import RouterCore
from tandem_router.core.values import Bounds, Fingerprint, Phase, Profile, Reason, Way
from tandem_router.policies import PolicyFactory
from tandem_tools.trace_replay.agenda import Agenda
from tandem_tools.trace_replay.fleet import FleetFile, ReplayedPool
from tandem_tools.trace_replay.legs import HandOver, ReplayedLeg, ReplayedRequest

if TYPE_CHECKING:
    from tandem_tools.trace_replay.workers import ReplayedWorker

MODEL = "replayed"
LINK_SECONDS = 0.0005
"""From a router to a worker, or back."""
_FINGERPRINT = Fingerprint(MODEL, "", "replay", "", "", 1, "", "", 1, "", 1)
_CONTEXT = 2**32 - 1
"""A trace is replayed whatever the lengths of its prompts are."""
_FRONTEND = 1


@dataclass(slots=True, frozen=True)
class Policies:
    """How the routers choose: a factory for each phase."""

    prefill: PolicyFactory
    decode: PolicyFactory


def worker_up(key: str, phase: Phase, pool: ReplayedPool, *, process: str = "") -> events.WorkerUp:
    """What a router is told of a worker of a pool. `process`: that of an aggregated worker, of
    which this is one phase.
    """
    profile = Profile(
        name=process or key,
        instance=process or key,
        phase=phase,
        fingerprint=_FINGERPRINT._replace(aggregated=bool(process)),
        max_sequences=pool.slots,
        context_length=_CONTEXT,
        kv_endpoint=key,
    )
    return events.WorkerUp(worker=key, listed_as=phase, profile=profile)


class Router:
    """One of several that serve the same workers."""

    def __init__(
        self,
        agenda: Agenda,
        fleet: FleetFile,
        policies: Policies,
        workers: Mapping[str, ReplayedWorker],
        *,
        rooms: Callable[[], int],
        ended: Callable[[ReplayedRequest, TandemError | None, bool], None],
    ) -> None:
        """`rooms` gives numbers that no other router is given. `ended` is told how a request ended,
        and whether it was refused and so may go to another router.
        """
        self._agenda = agenda
        self._timeout_seconds = fleet.timeout_seconds
        self._workers = workers
        self._ended = ended
        self._core = RouterCore(
            bounds=Bounds(max_queue=fleet.max_queue),
            prefill_policy=policies.prefill,
            decode_policy=policies.decode,
            new_room=rooms,
            disaggregate=fleet.disaggregate,
        )
        self.alive = True
        self._numbers = itertools.count(1)
        self._requests: dict[int, ReplayedRequest] = {}
        """The open ones, by their sequence's number."""
        self._legs: dict[int, ReplayedLeg] = {}
        """The legs that are open for the core, by number."""
        self._hand_overs: dict[int, HandOver] = {}
        """By room, until both legs are started."""
        self._carry: dict[type[Any], Callable[[Any], None]] = {
            actions.StartLeg: self._start_leg,
            actions.CancelLeg: self._cancel_leg,
            actions.EndSequence: self._end_sequence,
        }
        self._loads = {key: worker.loads() for key, worker in workers.items()}
        self.feed(events.FrontendUp(_FRONTEND))
        for worker in workers.values():
            self.feed(worker.up)
            self.hear(worker)

    @property
    def ways(self) -> Counter[tuple[Way, Reason]]:
        """How many sequences went which way, and why."""
        return self._core.snapshot().counts.ways

    def feed(self, event: events.Event) -> None:
        """Tell the core, and do what it asks for. One that was killed hears nothing."""
        if not self.alive:
            return
        for action in self._core.handle(self._agenda.now, (event,)):
            carry = self._carry.get(type(action))
            if carry is not None:
                carry(action)

    def hear(self, worker: ReplayedWorker) -> None:
        """Feed the core what a worker reports to this router."""
        self.feed(self._loads[worker.up.worker]())

    def kill(self) -> None:
        """The router's process ends: its requests are lost, and workers let go of them."""
        self.alive = False
        legs, self._legs = self._legs, {}
        for leg in legs.values():
            self._agenda.after(LINK_SECONDS, _let_go, leg)
        requests, self._requests = self._requests, {}
        for request in requests.values():
            self._ended(request, RouterLostError("the router was killed"), False)

    def submit(self, request: ReplayedRequest) -> None:
        """A request has come from a frontend."""
        number = next(self._numbers)
        self._requests[number] = request
        message = router_pb2.Submit(
            first_sequence=number,
            n=1,
            model=MODEL,
            timeout_ms=int(self._timeout_seconds * 1000),
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.line.output_length,
            trace_id=f"{number:032x}",
            weight=1,
        )
        self.feed(events.Submit(_FRONTEND, message, b" ", request.blocks))

    # --- what workers say ------------------------------------------------------------------------

    def started(self, leg: ReplayedLeg) -> None:
        self._agenda.after(LINK_SECONDS, self._started, leg)

    def finished(self, leg: ReplayedLeg) -> None:
        self._agenda.after(LINK_SECONDS, self._closed, leg, Outcome.FINISHED, None)

    def refused(self, leg: ReplayedLeg) -> None:
        error = QueueFullError("no slot is free")
        self._agenda.after(LINK_SECONDS, self._closed, leg, Outcome.FAILED, error)

    def _started(self, leg: ReplayedLeg) -> None:
        if leg.number not in self._legs:
            return
        if leg.request.first is None:
            leg.request.first = self._agenda.now
        self.feed(events.LegStarted(leg.worker.up.worker, leg.number))

    def _closed(self, leg: ReplayedLeg, outcome: Outcome, error: TandemError | None) -> None:
        if self._legs.pop(leg.number, None) is None:
            return
        if leg.worker.up.profile.phase is Phase.DECODE and outcome is Outcome.FINISHED:
            self._finish(leg)
        refused = error is not None
        self.feed(
            events.LegClosed(
                leg.worker.up.worker,
                leg.number,
                outcome,
                error=error,
                retryable=refused,
                begun=not refused,
            )
        )

    def _finish(self, leg: ReplayedLeg) -> None:
        """The client has the last token, which tells it that all went well: the core need not."""
        request = self._requests.pop(leg.sequence, None)
        if request is not None:
            self._ended(request, None, False)

    # --- what the core asks for ------------------------------------------------------------------

    def _start_leg(self, action: actions.StartLeg) -> None:
        command = action.command
        request = self._requests[command.sequence]
        hand_over = self._hand_overs.pop(command.room, None)
        if hand_over is None:
            hand_over = self._hand_overs[command.room] = HandOver()
        worker = self._workers[action.worker]
        leg = ReplayedLeg(
            command.leg,
            command.sequence,
            request,
            worker,
            self,
            command.to_compute,
            prefix_blocks.unpacked(command.new_blocks),
            hand_over,
        )
        if worker.up.profile.phase is Phase.PREFILL:
            hand_over.prefill = leg
        else:
            hand_over.decode = leg
        self._legs[leg.number] = leg
        self._agenda.after(LINK_SECONDS, worker.start, leg)

    def _cancel_leg(self, action: actions.CancelLeg) -> None:
        self._agenda.after(LINK_SECONDS, self._cancel, self._legs[action.leg])

    def _cancel(self, leg: ReplayedLeg) -> None:
        if leg.open and leg.number in self._legs:
            leg.worker.cancel(leg)
            self._agenda.after(LINK_SECONDS, self._closed, leg, Outcome.CANCELLED, None)

    def _end_sequence(self, action: actions.EndSequence) -> None:
        request = self._requests.pop(action.sequence, None)
        if request is not None:
            self._ended(request, action.error, action.refused)


def _let_go(leg: ReplayedLeg) -> None:
    if leg.open:
        leg.worker.cancel(leg)
