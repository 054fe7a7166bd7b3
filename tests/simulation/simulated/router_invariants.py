"""What must be true of the core's state after every event.

`check` looks at the state alone. What can be judged only from the order of events and actions is in
router_rules.py. Tests run both after every event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from simulated.fleet_invariants import fleet_faults
from tandem_router.core.sequences import Request, RoutedStage, Sequence
from tandem_router.core.state import State


class InvariantError(AssertionError):
    """The core broke its own rules; the message lists every rule that does not hold."""


def check(state: State) -> None:
    """Raises InvariantError where the state is impossible."""
    broken = [
        *_queue(state),
        *_slots(state),
        *_canaries(state),
        *_rooms(state),
        *_requests(state),
        *_timers(state),
        *_memory(state),
        *fleet_faults(state.fleet),
    ]
    if broken:
        raise InvariantError("; ".join(broken))


def _requests_of(state: State) -> list[Request]:
    requests = (each for requests in state.frontends.values() for each in requests.values())
    return list(dict.fromkeys(requests))


def _canaries_of(state: State) -> list[Request]:
    """Those that have not ended."""
    return [each.request for each in set(state.canaries.values()) if each.request.open]


def _sequences_of(state: State) -> list[Sequence]:
    return [each for request in _requests_of(state) for each in request.sequences]


def _queue(state: State) -> Iterator[str]:
    waiting = list(state.waiting)
    if len(waiting) != len(state.waiting):
        yield f"the queue counts {len(state.waiting)} and holds {len(waiting)}"
    if len(waiting) > state.bounds.max_queue:
        yield f"{len(waiting)} sequences wait, over the bound of {state.bounds.max_queue}"
    if any(each.stage is not RoutedStage.QUEUED for each in waiting):
        yield "something in the queue is not queued"
    queued = sum(each.stage is RoutedStage.QUEUED for each in _sequences_of(state))
    if queued != len(waiting):
        yield f"{queued} sequences are queued, {len(waiting)} are in the queue"


def _slots(state: State) -> Iterator[str]:
    seen: set[int] = set()
    for worker in state.fleet.workers.values():
        seen |= worker.legs
        if len(worker.legs) > worker.capacity:
            yield f"{worker.key} has {len(worker.legs)} legs, over its {worker.capacity}"
        if worker.overdue != sum(
            leg.overdue for leg in state.legs.values() if leg.worker is worker
        ):
            yield f"{worker.key} counts {worker.overdue} overdue legs and has others"
    if seen != state.legs.keys():
        yield "the open legs are not those of the workers"
    for leg in state.legs.values():
        if leg not in (leg.sequence.prefill, leg.sequence.decode):
            yield f"leg {leg.number} is open and its sequence does not know it"
        stage = leg.sequence.stage
        if (leg.settle_by is None) == (stage in (RoutedStage.ENDED, RoutedStage.RETRYING)):
            yield f"leg {leg.number} of a sequence that is {stage.value} is cancelled, or is not"


def _canaries(state: State) -> Iterator[str]:
    """A worker may be held for an overdue leg as long as time alone has passed."""
    legs = [each for each in state.legs.values() if each.sequence.request.canary]
    overdue = {(each.worker, each.sequence) for each in legs if each.overdue}
    expected = {(each.worker, each.sequence) for each in legs if not each.overdue}
    for sequence in set(state.canaries.values()):
        if sequence.request.open and sequence.pair is not None:
            expected |= {(each, sequence) for each in sequence.pair}
    held = set(state.canaries.items())
    if not expected <= held <= expected | overdue:
        yield "canaries are held for workers that run none, or not for those that do"
    for worker in state.fleet.workers.values():
        clients = [each for each in worker.legs if not state.legs[each].sequence.request.canary]
        if worker.trust.unproved and clients:
            yield f"{worker.key} has yet to be proved and runs {clients}"


def _rooms(state: State) -> Iterator[str]:
    owners = Counter({leg.sequence.room: 0 for leg in state.legs.values()})
    for sequence in {leg.sequence for leg in state.legs.values()}:
        owners[sequence.room] += 1
    if 0 in owners:
        yield "an open leg has no room"
    if any(count > 1 for count in owners.values()):
        yield "two sequences share a room"
    if owners.keys() != state.rooms:
        yield "the rooms in use are not those of the open legs"


def _requests(state: State) -> Iterator[str]:
    open_sequences = 0
    for request in _requests_of(state):
        still_open = [each for each in request.sequences if each.stage is not RoutedStage.ENDED]
        open_sequences += len(still_open)
        if len(still_open) != request.open or not still_open:
            yield f"a request counts {request.open} open sequences and has {len(still_open)}"
        for sequence in still_open:
            yield from _stage(sequence)
    if open_sequences != state.open_sequences:
        yield f"{state.open_sequences} open sequences are counted, {open_sequences} are there"


def _stage(sequence: Sequence) -> Iterator[str]:
    legs = [each for each in (sequence.prefill, sequence.decode) if each is not None]
    stage = sequence.stage
    if stage is RoutedStage.QUEUED and legs:
        yield f"sequence {sequence.number} is queued and has legs"
    if stage is RoutedStage.RETRYING and not legs:
        yield f"sequence {sequence.number} waits for legs that are closed"
    alone = sequence.request.submit.context_only
    if (
        stage in (RoutedStage.PREFILLING, RoutedStage.DECODING)
        and (sequence.decode is None) is not alone
    ):
        yield f"sequence {sequence.number} runs without a decode leg, or with one too many"


def _memory(state: State) -> Iterator[str]:
    """Tasks count from admission to the last leg that runs them, however their requests end."""
    legs = Counter(leg.sequence.request for leg in state.legs.values())
    kept = dict.fromkeys([*_requests_of(state), *_canaries_of(state), *legs])
    for request in kept:
        if request.legs != legs[request]:
            yield f"a request counts {request.legs} legs and has {legs[request]}"
        if request.allotment.size != _kept(request):
            yield f"{request.allotment.size} bytes are held for a task of another size"
    backlogs = sum(each.size for each in state.budget._endable)
    tasks = sum(map(_kept, kept))
    if state.budget.held - backlogs != tasks:
        yield f"{state.budget.held - backlogs} bytes are held for tasks of {tasks}"


def _kept(request: Request) -> int:
    made = (len(each.made.steps) for each in request.sequences if each.made is not None)
    return len(request.task) + sum(made)


def _timers(state: State) -> Iterator[str]:
    if set(state.deadlines) != {*_requests_of(state), *_canaries_of(state)}:
        yield "the requests with a deadline are not the open requests"
    expected = {leg for leg in state.legs.values() if leg.settle_by is not None and not leg.overdue}
    if set(state.settling) != expected:
        yield "the legs with a settle time are not the cancelled ones"
