"""How a request's story is made of what the core knows of it, and how open ones are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby, islice
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from tandem.errors import NoPairError
from tandem.story_book import MOST_OF_ONE_TRACE
from tandem_router.core.fleet import Fleet
from tandem_router.core.rejections import of_model, of_model_now, told
from tandem_router.core.sequences import MOST_TOLD, Request, RoutedStage, Sequence
from tandem_router.core.story import Holders, Rejected, SequenceStory, Story
from tandem_router.core.values import Phase

if TYPE_CHECKING:
    from tandem_router.core.state import State

_OTHERS = "others wait before it"
_MOST_LOOKED_AT = 256
_MOST_TENANTS = 4
_MOST_UNFIT = 8
_UNFIT_SECONDS = 1.0
"""For so long workers that would not do are told as they were: a look costs a pass over all."""


class Traces:
    """The open requests by trace id."""

    def __init__(self) -> None:
        self._open: dict[str, dict[Request, None]] = {}

    def add(self, request: Request) -> None:
        self._open.setdefault(request.submit.trace_id, {})[request] = None

    def remove(self, request: Request) -> None:
        trace_id = request.submit.trace_id
        mine = self._open.get(trace_id, {})
        mine.pop(request, None)
        if not mine:
            self._open.pop(trace_id, None)

    def all(self, trace_id: str) -> Iterable[Request]:
        """In the order in which they came."""
        return self._open.get(trace_id, {})

    def last(self, trace_id: str) -> list[Request]:
        """The last that came, the latest first."""
        return list(islice(reversed(self._open.get(trace_id, {})), MOST_OF_ONE_TRACE))

    def __len__(self) -> int:
        return len(self._open)


def of_request(request: Request, fleet: Fleet, now: float) -> Story:
    """What happened to it until now."""
    submit, sequences = request.submit, request.sequences
    return Story(
        submit.trace_id,
        submit.model,
        submit.tenant,
        submit.n,
        submit.priority,
        submit.prompt_tokens,
        submit.max_tokens,
        submit.timeout_ms / 1000,
        round(now - request.arrived, 6),
        "" if request.open else request.outcome,
        tuple([_of_sequence(each, request.arrived) for each in sequences[:MOST_TOLD]]),
        _more(sequences[MOST_TOLD:]) if len(sequences) > MOST_TOLD else {},
        _rejected(request, fleet),
    )


def note_queue_causes(state: State, queued: Iterable[Sequence]) -> None:
    """Note of sequences that have just been queued why those wait that could not start at once.
    Costs the same however many workers there are, but for a pass over them once a second, and
    after each change of who takes work.
    """
    waiting = [each for each in queued if each.stage is RoutedStage.QUEUED]
    for request, same in groupby(waiting, key=attrgetter("request")):
        sequences = list(same)
        cause = queue_cause(sequences[0], state.fleet)
        holders, workers = _holders(request, state), _unfit(request, state)
        for each in sequences:
            each.note_queue_cause(cause, holders, workers)


def _holders(request: Request, state: State) -> Holders | None:
    """Who has the slots that a request waits for; None: nobody of this router."""
    accounts = islice(state.waiting.queue(request).accounts.items(), _MOST_LOOKED_AT)
    running = {key: account.running for key, account in accounts if account.running}
    if not running:
        return None
    most = sorted(running, key=running.__getitem__, reverse=True)[:_MOST_TENANTS]
    tenants = {key: running[key] for key in most}
    for leg in islice(state.legs.values(), _MOST_LOOKED_AT):
        other, begun = leg.sequence.request, leg.sequence.begun_at
        if begun is not None and not other.canary and other.edition == request.edition:
            return Holders(tenants, other.submit.trace_id, round(state.now - begun, 6))
    return Holders(tenants, "", 0.0)


def _unfit(request: Request, state: State) -> Rejected:
    """The workers of a model that would not do, as they were within the last second."""
    model = request.submit.model
    since, workers = state.unfit_workers.get(model, (-inf, None))
    if workers is None or state.now - since >= _UNFIT_SECONDS:
        found = of_model_now(state.fleet, model)
        workers = Rejected(found[:_MOST_UNFIT], max(0, len(found) - _MOST_UNFIT))
        state.unfit_workers[model] = state.now, workers
    return workers


def queue_cause(sequence: Sequence, fleet: Fleet) -> str:
    """Why a sequence waits, for people."""
    request = sequence.request
    if request.context_only:
        free = fleet.parking_slots(request.edition, request.needs)
        return _OTHERS if free else "no slot is free on a prefill worker that parks KV"
    kv_peer = "" if request.voucher is None else request.voucher.kv_peer
    groups = fleet.groups_for(request.edition, request.needs, kv_peer)
    full = []
    adapter = request.needs.lora_adapter
    with_it = f" with the adapter {adapter}" if adapter else ""
    for phase in (Phase.DECODE,) if kv_peer else Phase:
        sides = [group.side(phase) for group in groups]
        capacity = sum(side.capacity for side in sides)
        if not capacity:
            return f"no {phase} worker{with_it} that could run it takes work"
        if not any(side.slots for side in sides):
            full.append(f"no slot is free on {phase}{with_it}, which has {capacity}")
    if full:
        return "; ".join(full)
    if not (kv_peer or any(group.free_pairs for group in groups)):
        return "free slots are on workers that do not match"
    return "only the pair that failed is free" if sequence.avoided else _OTHERS


def _more(sequences: list[Sequence]) -> dict[str, int]:
    return dict(Counter(each.outcome or each.stage.value for each in sequences))


def _rejected(request: Request, fleet: Fleet) -> Rejected | None:
    if not request.open:
        no_pair = request.outcome == NoPairError.code
        return told(of_model(fleet, request.submit.model)) if no_pair else None
    if any(each.stage is RoutedStage.QUEUED for each in request.sequences):
        return told(of_model_now(fleet, request.submit.model))
    return None


def _of_sequence(sequence: Sequence, arrived: float) -> SequenceStory:
    return SequenceStory(
        sequence.output_index,
        sequence.stage.value,
        sequence.outcome,
        round(sequence.ended_at - arrived, 6) if sequence.outcome else 0.0,
        tuple(sequence.moments or ()),
    )
