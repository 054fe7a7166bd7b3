"""Whether a request may enter: refused at once, as a whole, or not at all."""

from __future__ import annotations

from router.core.events import Submit
from router.core.state import State
from tandem.byte_budget import Allotment
from tandem.errors import (
    DrainingError,
    NoPairError,
    QueueFullError,
    TandemError,
    TooLargeError,
    UnknownModelError,
)
from tandem.message_limits import MAX_TASK_BYTES
from tandem.token_limits import context_error


def refusal(state: State, submit: Submit, allotment: Allotment) -> TandemError | None:
    """Why the request is not admitted; None: it is, and `allotment` has its task."""
    if state.draining:
        return DrainingError("the router is shutting down")
    if submit.fault is not None:
        return submit.fault
    if too_large := _size_error(submit, state.bounds.max_fanout_bytes):
        return too_large
    models = state.fleet.models
    model = models.get(submit.model)
    if model is None and models:
        return UnknownModelError(f"no worker serves the model {submit.model!r}", param="model")
    if model is None or not model.served.ready_pairs:
        return NoPairError("no matching prefill and decode workers are ready")
    context = model.served.context_length
    too_long = context_error(submit.prompt_tokens, submit.max_tokens, context)
    if too_long and submit.prompt_tokens:
        return too_long
    waiting = len(state.waiting)
    places = state.bounds.max_queue - waiting
    if submit.tenant:
        # No key takes more places than it leaves: there is always one for who comes next.
        places -= state.waiting.count_of(submit.tenant)
    too_many = submit.n - places
    # What starts at once takes no place in the queue.
    if too_many > 0 and too_many > state.fleet.free_pairs(submit.model):
        return QueueFullError(f"{waiting} sequences are waiting already; try again later")
    try:
        allotment.admit(len(submit.task))
    except QueueFullError as error:
        return error
    return None


def _size_error(submit: Submit, max_fanout_bytes: int) -> TooLargeError | None:
    size = len(submit.task)
    if size > MAX_TASK_BYTES:
        return TooLargeError(f"a request of {size} bytes is more than {MAX_TASK_BYTES}")
    if size * submit.n > max_fanout_bytes:
        return TooLargeError(
            f"{submit.n} outputs of a request of {size} bytes are more than {max_fanout_bytes}",
            param="n",
        )
    return None
