"""Which requests a worker may have died of, and what they may still risk.

A request that ends its worker, through its engine or through user code, would end the next one too.
Nobody can tell which of the requests that had begun there it was, so each of them may risk one
further worker; one that was there alone may risk none. What had not reached the worker is no
suspect. The prompts of one client's request are one request here: they have one trace id. A canary
may have been what the worker died of, and has nothing to risk itself.
"""

from __future__ import annotations

from collections.abc import Collection

from tandem_router.core.actions import Suspect, WorkerDied
from tandem_router.core.sequences import Leg, Request
from tandem_router.core.state import State
from tandem_router.core.values import Phase
from tandem_router.core.worker import Worker

MOST_DEATHS = 2
"""A request that so many workers may have died of is not run again. Each death counts as one, and
as all of them where nothing else had begun there.
"""


def count_death(
    state: State, worker: Worker, reason: str, unsent: Collection[int] = (), *, told: bool
) -> list[Request]:
    """Count a worker's death for what had begun there, once. Returns the requests that are not to
    be run again: once their legs on that worker are closed, they are condemned. `told`: the worker
    has said itself that its engine died, by one of its legs; else its stream broke.

    The process of an aggregated worker dies once, and the decode phase has all that it ran.
    """
    if worker.twin is not None and worker.phase is Phase.PREFILL:
        if not told:
            return []  # the stream of the decode phase breaks too
        worker = worker.twin
    if worker.died:
        return []
    worker.died = True
    if worker.twin is not None:
        worker.twin.died = True
    legs = [state.legs[number] for number in worker.legs]
    begun = {leg.sequence.request for leg in legs if leg.number not in unsent or _half_sent(leg)}
    clients = [each for each in begun if not each.canary]
    if not clients:
        return []
    suspects = {each for request in clients for each in _one_with(state, request)}
    alone = len({_whose(each) for each in begun}) == 1 and not worker.other_legs
    for request in suspects:
        request.deaths += MOST_DEATHS if alone else 1
    clients.sort(key=lambda each: each.submit.first_sequence)
    found = [Suspect(each.submit, each.task, each.let_go_bytes) for each in clients]
    condemned = [each for each in suspects if each.deaths >= MOST_DEATHS]
    condemned.sort(key=lambda each: (each.frontend, each.submit.first_sequence))
    state.actions.append(WorkerDied(worker.key, reason, tuple(found)))
    return condemned


def _half_sent(leg: Leg) -> bool:
    """Whether the process of an aggregated worker may have had the other leg of a sequence."""
    return leg.worker.aggregated and not leg.sequence.prefill_unsent


def _whose(request: Request) -> tuple[int, str | int]:
    submit = request.submit
    return request.frontend, submit.trace_id or submit.first_sequence


def _one_with(state: State, request: Request) -> set[Request]:
    """The open requests that are prompts of the same client's request, itself included."""
    trace_id = request.submit.trace_id
    mine = state.traces.all(trace_id) if trace_id else ()
    return {request, *(each for each in mine if _whose(each) == _whose(request))}
