"""Whose turn it is: the heads of the queues start as soon as workers have slots for them, or end
where no pair has taken work for too long.
"""

from __future__ import annotations

from tandem.errors import NoPairError
from tandem_router.core import admission
from tandem_router.core.edition import EditionFleet
from tandem_router.core.legs import Legs
from tandem_router.core.lifecycle import Lifecycle
from tandem_router.core.picking import Pair
from tandem_router.core.sequences import Sequence
from tandem_router.core.state import State
from tandem_router.core.values import Edition, Offer
from tandem_router.core.waiting import Queue


class Starts:
    """Acts on a State, and notes there what is to be done."""

    def __init__(self, state: State, legs: Legs, lifecycle: Lifecycle) -> None:
        self._state = state
        self._legs = legs
        self._lifecycle = lifecycle

    def start(self) -> None:
        """Start the heads of all queues, until workers have no more free slots."""
        waiting = self._state.waiting
        if waiting:
            for queue in waiting.of_decode():
                self._decodes(queue)
            for queue in waiting.of_both():
                self._pairs(queue)

    def end_overdue(self) -> None:
        """End sequences for which no pair has taken work for too long."""
        wait = self._state.bounds.pair_wait_seconds
        for queue in (*self._state.waiting.of_decode(), *self._state.waiting.of_both()):
            mine = self._state.fleet.editions[queue.edition]
            if mine.pairless_since is None and mine.offered_since is None and not mine.proves:
                continue
            for sequence in queue.all():
                since = self._pairless_since(mine, sequence)
                if since is not None and self._state.now - since >= wait:
                    said = f"no pair of workers has come within {wait:g} seconds"
                    none = NoPairError(said + admission.being_proved(self._state, queue.edition))
                    error = sequence.failure if sequence.avoided else none
                    # Where nothing has run, another router may have a pair for it.
                    refused = not sequence.request.started
                    self._lifecycle.end(sequence, error=error, refused=refused)

    def _pairs(self, queue: Queue) -> None:
        """What the free pairs cannot run, or only the one that it avoids, lets the others pass and
        keeps its turn. Nobody passes what waits for prefill alone, which itself passes others only
        while pairs are free.
        """
        fleet, edition = self._state.fleet, queue.edition
        mine = fleet.editions[edition]
        stuck: set[tuple[Pair | None, frozenset[Offer]]] = set()

        def is_stuck(each: Sequence) -> bool:
            request = each.request
            alone = request.context_only
            return not alone and (each.avoided, mine.meeting(request.needs)) in stuck

        while sequence := queue.head(is_stuck if stuck else None):
            request, avoided = sequence.request, sequence.avoided
            needs = request.needs
            if request.context_only:
                passes = bool(stuck) and not fleet.free_pairs(edition)
                if passes or not self._prefill(sequence, edition):
                    break
                stuck.clear()  # another may be next: what started counts as its key's share
            elif picked := fleet.pick(
                edition, needs, request.prompt, other_than=avoided, now=self._state.now
            ):
                self._legs.start(sequence, picked)
            elif avoided and not fleet.has_pair(edition, needs, other_than=avoided, proved=False):
                # No other pair is left, nor to be proved.
                self._lifecycle.end(sequence, error=sequence.failure)
            elif fleet.free_pairs(edition):
                stuck.add((avoided, mine.meeting(needs)))
            else:
                break

    def _prefill(self, sequence: Sequence, edition: Edition) -> bool:
        """Whether a context-only sequence has left the queue."""
        fleet, full, needs = self._state.fleet, sequence.no_room_at, sequence.request.needs
        prompt = sequence.request.prompt
        if picked := fleet.pick_parker(edition, needs, prompt, other_than=full):
            self._legs.start_prefill(sequence, picked)
        elif fleet.parkers(edition, needs, other_than=full):
            return False
        else:
            no_parker = admission.parking_error(self._state, edition, needs)
            self._lifecycle.end(sequence, error=sequence.failure if full else no_parker)
        return True

    def _decodes(self, queue: Queue) -> None:
        """Start sequences that go on from parked KV."""
        while sequence := queue.head():
            request, voucher = sequence.request, sequence.request.voucher
            assert voucher is not None
            if error := admission.voucher_error(self._state, request, voucher):
                self._lifecycle.end(sequence, error=error)
            elif picked := self._state.fleet.pick_decoder(voucher.kv_peer, request.prompt):
                self._legs.start_decode(sequence, picked, voucher)
            else:
                break

    def _pairless_since(self, mine: EditionFleet, sequence: Sequence) -> float | None:
        """Since when a sequence waits and no pair for it takes work; None: one does."""
        needs, avoided = sequence.request.needs, sequence.avoided
        unmet = mine.unmet_since(needs)
        if unmet is not None:
            return max(unmet, sequence.queued_at)
        if avoided and not self._state.fleet.has_pair(mine.edition, needs, other_than=avoided):
            return sequence.queued_at
        return None
