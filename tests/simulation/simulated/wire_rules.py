"""What must be true of the streams: everything that was to leave has left, once and in order.

For each router and frontend: the payloads of workers' frames, as bytes, and the ends that the core
asked for, each after the payloads before it. For each router and worker: starts, releases and
cancels. At rest nothing waits for a stream that can be written.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from tandem.little_endian import to_bytes
from tandem.v1 import common_pb2, router_pb2, worker_pb2
from tandem.wire.prompt_chunks import Carrier, names_of
from tandem_router import translate
from tandem_router.core import actions

if TYPE_CHECKING:
    from simulated.network import Call


@dataclass(slots=True)
class FrontendFlow:
    """What a router owes a frontend."""

    call: Call
    pending: bytearray = field(default_factory=bytearray)
    put: int = 0
    """Bytes that were ever to leave."""
    sent: int = 0
    ends: deque[tuple[int, int]] = field(default_factory=deque)
    """Sequences, each with the bytes that come before its end."""
    draining: bool = False
    """It is to be told."""
    fleet: bool = False
    given_up: bool = False


@dataclass(slots=True)
class WorkerFlow:
    """What a router owes a worker."""

    starts: deque[int] = field(default_factory=deque)
    releases: deque[int] = field(default_factory=deque)
    cancels: deque[int] = field(default_factory=deque)
    tasks: dict[int, bytes] = field(default_factory=dict)
    """What each leg is to run that is to start."""
    kept: dict[int, bytes] = field(default_factory=dict)
    """Tasks that the worker keeps, by number."""
    prompts: dict[bytes, list[int]] = field(default_factory=dict)
    """What the prompts that went to the worker began with, by the names of their chunks."""

    def waits(self) -> bool:
        return bool(self.starts or self.releases or self.cancels)


class WireRules:
    """One router's."""

    def __init__(self, fault: Callable[[str], None]) -> None:
        self._fault = fault
        self.frontends: dict[int, FrontendFlow] = {}
        self.workers: dict[str, WorkerFlow] = {}

        self.unsettled = False
        """Something may wait for a stream."""

    # --- what is to leave ---

    def frame(self, frame: worker_pb2.WorkerFrame) -> None:
        self.unsettled = True
        for envelope in frame.envelopes:
            if flow := self.frontends.get(envelope.destination):
                flow.pending += envelope.payload
                flow.put += len(envelope.payload)

    def acted(self, action: actions.Action) -> None:
        self.unsettled = True
        match action:
            case actions.EndSequence(number, sequence) | actions.GiveVoucher(number, sequence):
                if flow := self.frontends.get(number):
                    flow.ends.append((sequence, flow.put))
            case actions.StartLeg():
                flow = self.workers[action.worker]
                flow.starts.append(action.leg)
                behind = translate.resumption(action.made)
                flow.tasks[action.leg] = action.task + action.overlay + behind
            case actions.ReleaseLeg(worker, leg):
                self.workers[worker].releases.append(leg)
            case actions.CancelLeg(worker, leg):
                self.workers[worker].cancels.append(leg)
            case actions.FleetChanged():
                for flow in self.frontends.values():
                    flow.fleet = True
            case actions.RefuseFrontend(number):
                self.frontends[number].given_up = True

    # --- what leaves ---

    def to_frontend(self, call: Call, message: router_pb2.RouterMessage) -> None:
        flow = next((each for each in self.frontends.values() if each.call is call), None)
        if flow is None:
            return
        size = len(message.payload)
        if flow.pending[:size] != message.payload:
            self._fault(f"{size} bytes leave that no worker sent, or not in this order")
        del flow.pending[:size]
        flow.sent += size
        for end in message.ends:
            wanted = flow.ends.popleft() if flow.ends else None
            if wanted is None or wanted[0] != end.sequence:
                self._fault(f"the end of sequence {end.sequence} leaves, {wanted} was to")
            elif wanted[1] > flow.sent:
                self._fault(f"the end of sequence {end.sequence} leaves before its payload")
        if message.draining:
            flow.draining = False
        if message.HasField("fleet"):
            flow.fleet = False

    def to_worker(self, address: str, message: worker_pb2.WorkerCommand) -> None:
        flow = self.workers.get(address)
        if flow is None:
            return
        self._tasks(address, flow, message)
        for pending, sent in (
            (flow.starts, [start.leg for start in message.start]),
            (flow.releases, list(message.release)),
            (flow.cancels, [cancel.leg for cancel in message.cancel]),
        ):
            for leg in sent:
                wanted = pending.popleft() if pending else None
                if leg != wanted:
                    self._fault(f"{address} is told of leg {leg}, {wanted} was to be")
        if (message.release or message.cancel) and flow.starts:
            self._fault(f"{address} is told of releases or cancels before starts")

    def _tasks(self, address: str, flow: WorkerFlow, message: worker_pb2.WorkerCommand) -> None:
        """Each is said once, and there as long as legs are to run it."""
        for each in message.keep:
            if each.number in flow.kept:
                self._fault(f"{address} is told a task again that it keeps")
            flow.kept[each.number] = self._whole(address, flow, each)
        for start in message.start:
            task = self._whole(address, flow, start)
            if start.kept_task:
                task = flow.kept.get(start.kept_task, b"") + task
            wanted = flow.tasks.pop(start.leg, b"")
            if common_pb2.Task.FromString(task) != common_pb2.Task.FromString(wanted):
                self._fault(f"{address} would run another task as leg {start.leg}")
        for number in message.forget:
            if flow.kept.pop(number, None) is None:
                self._fault(f"{address} is to forget a task that it does not keep")

    def _whole(self, address: str, flow: WorkerFlow, carrier: Carrier) -> bytes:
        """A task with its whole prompt. The beginning of it must have gone there before."""
        task = common_pb2.Task.FromString(carrier.task)
        known = flow.prompts.get(carrier.known_prompt, [])
        if carrier.known_prompt and not known:
            self._fault(f"{address} is told of a prompt that it was never told")
        token_ids = [*known, *task.prompt_token_ids]
        task.prompt_token_ids[:] = token_ids
        key = blake2b(task.cache_salt.encode()).digest() if task.cache_salt else b""
        for place, name in enumerate(names_of(memoryview(to_bytes(array("I", token_ids))), key)):
            flow.prompts[name] = token_ids[: place + 1]
        return task.SerializeToString()

    # --- at rest ---

    def at_rest(self, calls: Callable[[], dict[str, Call]]) -> None:
        """`calls`: the router's streams to workers, by address."""
        if not self.unsettled:
            return
        self.unsettled = False
        for number, flow in self.frontends.items():
            waits = flow.pending or flow.ends or flow.draining or flow.fleet
            self.unsettled |= bool(waits)
            if waits and not flow.given_up and not flow.call.down.blocked:
                self._fault(f"something waits for frontend {number}, which could be told: {flow}")
        for address, worker in self.workers.items():
            if not worker.waits():
                continue
            self.unsettled = True
            call = calls().get(address)
            if call is not None and not call.up.blocked:
                self._fault(f"something waits for {address}, which could be told: {worker}")
