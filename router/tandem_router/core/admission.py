"""Whether a request may enter: refused at once, as a whole, or not at all."""

from __future__ import annotations

from collections.abc import Collection

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
from tandem.v1 import common_pb2
from tandem_router.core.events import Submit
from tandem_router.core.sequences import Request, RoutedStage
from tandem_router.core.state import State
from tandem_router.core.values import Edition, Needs, Offer


def refusal(state: State, request: Request, fault: TandemError | None) -> TandemError | None:
    """Why the router refuses the request; None: the request is admitted, its task allotted.
    `fault`: the event's.
    """
    submit = request.submit
    if state.draining:
        return DrainingError("the router is shutting down")
    if fault is not None:
        return fault
    if too_large := _size_error(request, state.bounds.max_fanout_bytes):
        return too_large
    fleet = state.fleet
    mine = fleet.editions.get(request.edition)
    if mine is None and fleet.editions and not fleet.serves(submit.model):
        return UnknownModelError(f"no worker serves the model {submit.model!r}", param="model")
    waits = mine is not None and mine.waits and not request.half
    if mine is None or not (mine.ready_pairs or waits):
        none = "no matching prefill and decode workers are ready"
        return NoPairError(none + being_proved(state, request.edition))
    if not mine.meeting(request.needs):
        return _unmet_error(mine.offers, request)
    if request.half and (error := _half_error(state, request)):
        return error
    waiting = len(state.waiting)
    places = state.bounds.max_queue - waiting
    if submit.tenant:
        # No key takes more places than it leaves: there is always one for who comes next.
        places -= state.waiting.count_of(submit.tenant)
    if submit.fairness:
        # Nor does a flow, of its key's.
        places -= state.waiting.count_of_flow(submit.tenant, submit.fairness)
    too_many = submit.n - places
    # What starts at once takes no place in the queue.
    if too_many > 0 and too_many > _free_slots(state, request):
        return QueueFullError(f"{waiting} sequences are waiting already; try again later")
    try:
        request.allotment.admit(len(request.task))
    except QueueFullError as full:
        return full
    return None


def being_proved(state: State, edition: Edition) -> str:
    """What a client is told beside that there is no pair: canaries of its edition are open, the
    oldest of them for so long; empty: none is.
    """
    since = [
        sequence.request.arrived
        for sequence in state.canaries.values()
        if sequence.request.edition == edition and sequence.stage is not RoutedStage.ENDED
    ]
    if not since:
        return ""
    return f": a pair is being proved for {state.now - min(since):.0f} s"


def edition(state: State, asked: Submit) -> Edition:
    """What the request is of. Parked KV says it where the request does not."""
    submit, voucher = asked.message, asked.voucher
    if voucher is not None and not submit.tokenizer_sha256:
        keeper = state.fleet.keeper(voucher.kv_peer)
        if keeper is not None and keeper.profile.fingerprint.model == submit.model:
            return keeper.profile.fingerprint.edition
    return state.fleet.edition(submit.model, submit.tokenizer_sha256)


def parking_error(state: State, edition: Edition, needs: Needs) -> TandemError | None:
    """Why no worker may run a context-only request of an edition; None: some may."""
    if state.fleet.parkers(edition, needs):
        return None
    return UnsupportedError(
        "context-only requests are not offered: no prefill worker parks KV (SGLang's do not), or"
        " its first token would be shown where only decode's hooks and classifiers could judge it:"
        " see docs/executor/context-only.md",
        param="type",
    )


def voucher_error(
    state: State, request: Request, voucher: common_pb2.Voucher
) -> TandemError | None:
    """Why nothing can go on from a voucher that this deployment signed; None: as far as the router
    knows it can.
    """
    if voucher.model != request.submit.model:
        return VoucherError("it is of another model")
    keeper = state.fleet.keeper(voucher.kv_peer)
    if keeper is None:
        return VoucherError("the worker that kept its KV is gone")
    if keeper.profile.fingerprint.edition != request.edition:
        return VoucherError("it is of workers with another tokenizer")
    if voucher.room in state.rooms:
        return VoucherError("it is being used already")
    if not state.fleet.decoders(voucher.kv_peer):
        return NoPairError("no decode worker that can read its KV takes work")
    return None


def _half_error(state: State, request: Request) -> TandemError | None:
    if request.submit.n != 1:
        return InvalidRequestError("a request whose phases run apart has one output", param="n")
    if request.voucher is None:
        return parking_error(state, request.edition, request.needs)
    return voucher_error(state, request, request.voucher)


def _free_slots(state: State, request: Request) -> int:
    """How many sequences such as its could start now. Nobody passes one of one phase that is next,
    nor does such a one pass others.
    """
    head = state.waiting.queue(request).head()
    if head is not None and (request.half or head.request.half):
        return 0
    if request.voucher is not None:
        return state.fleet.decode_slots(request.voucher.kv_peer)
    if request.context_only:
        return state.fleet.parking_slots(request.edition, request.needs)
    return state.fleet.free_pairs(request.edition, request.needs)


def _unmet_error(offers: Collection[Offer], request: Request) -> TandemError | None:
    """Why no pair can run a request, whatever its others would do."""
    submit, needs = request.submit, request.needs
    offers = [each for each in offers if each.adapts(needs)]
    if not offers:
        told = f"{submit.model}:{needs.lora_adapter}"
        return UnknownModelError(f"no worker serves the model {told!r:.200}", param="model")
    names = needs.logits_processors
    knowing = [each for each in offers if names <= each.logits_processors]
    if not knowing:
        told = ", ".join(sorted(names))
        return UnsupportedError(f"no pair knows these logits processors: {told:.200}")
    drawing = [each for each in knowing if needs.sampling.isdisjoint(each.cannot_sample)]
    if not drawing:
        refused = frozenset.union(*(each.cannot_sample for each in knowing))
        names = needs.sampling & refused
        told = ", ".join(sorted(names))
        return UnsupportedError(f"no pair's engine takes {told}", param=min(names))
    context = max(each.context_length for each in drawing)
    return context_error(submit.prompt_tokens, submit.max_tokens, context)


def _size_error(request: Request, max_fanout_bytes: int) -> TooLargeError | None:
    size, n = len(request.task), request.submit.n
    if size > MAX_TASK_BYTES:
        return TooLargeError(f"a request of {size} bytes is more than {MAX_TASK_BYTES}")
    if size * n > max_fanout_bytes:
        return TooLargeError(
            f"{n} outputs of a request of {size} bytes are more than {max_fanout_bytes}",
            param="n",
        )
    return None
