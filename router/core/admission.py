"""Whether a request may enter: refused at once, as a whole, or not at all."""

from __future__ import annotations

from router.core.events import Submit
from router.core.state import State
from router.core.values import Voucher
from tandem.byte_budget import Allotment
from tandem.errors import (
    DrainingError,
    InvalidRequestError,
    NoPairError,
    QueueFullError,
    TandemError,
    TooLargeError,
    UnknownModelError,
    UnsupportedError,
    VoucherError,
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
    if submit.half and (error := _half_error(state, submit)):
        return error
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
    if too_many > 0 and too_many > _free_slots(state, submit):
        return QueueFullError(f"{waiting} sequences are waiting already; try again later")
    try:
        allotment.admit(len(submit.task))
    except QueueFullError as full:
        return full
    return None


def parking_error(state: State, model: str) -> TandemError | None:
    """Why no worker may run a context-only request of a model; None: some may."""
    if state.fleet.parkers(model):
        return None
    return UnsupportedError(
        "context-only requests are not offered: no prefill worker parks KV (SGLang's do not), or"
        " its first token would be shown where only decode's hooks and classifiers could judge it:"
        " see docs/executor/context-only.md",
        param="type",
    )


def voucher_error(state: State, model: str, voucher: Voucher) -> TandemError | None:
    """Why nothing can go on from a voucher that this deployment signed; None: as far as the router
    knows it can.
    """
    if voucher.model != model:
        return VoucherError("it is of another model")
    if state.fleet.keeper(voucher.kv_peer) is None:
        return VoucherError("the worker that kept its KV is gone")
    if voucher.room in state.rooms:
        return VoucherError("it is being used already")
    if not state.fleet.decoders(voucher.kv_peer):
        return NoPairError("no decode worker that can read its KV takes work")
    return None


def _half_error(state: State, submit: Submit) -> TandemError | None:
    if submit.n != 1:
        return InvalidRequestError("a request whose phases run apart has one output", param="n")
    if submit.voucher is None:
        return parking_error(state, submit.model)
    return voucher_error(state, submit.model, submit.voucher)


def _free_slots(state: State, submit: Submit) -> int:
    """How many sequences such as its could start now. Nobody passes one of one phase that is next,
    nor does such a one pass others.
    """
    head = state.waiting.queue(submit).head()
    if head is not None and (submit.half or head.request.submit.half):
        return 0
    if submit.voucher is not None:
        return sum(each.free for each in state.fleet.decoders(submit.voucher.kv_peer))
    if submit.context_only:
        return sum(each.free for each in state.fleet.parkers(submit.model))
    return state.fleet.free_pairs(submit.model)


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
