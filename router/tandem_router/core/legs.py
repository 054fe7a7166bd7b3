"""The legs of sequences: how a worker is told to run one, and what is given back once it is closed.

A pair is owned: both legs are started at once, and share a room.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from operator import attrgetter

from tandem import prefix_blocks
from tandem.endings import Outcome
from tandem.errors import DrainingError, TandemError, WorkerLostError
from tandem.prefix_blocks import Blocks
from tandem.v1 import common_pb2, worker_pb2
from tandem_router.core.actions import CancelLeg, QueueWait, ReleaseLeg, StartLeg
from tandem_router.core.events import LegClosed, WorkerDown
from tandem_router.core.picking import Pair, Pick, Picked
from tandem_router.core.resuming import Made
from tandem_router.core.sequences import Leg, Request, RoutedStage, Sequence
from tandem_router.core.state import State
from tandem_router.core.story import Ahead
from tandem_router.core.values import MOST_MS, MOST_TOKENS, Phase
from tandem_router.core.waits import prefill_wait
from tandem_router.core.worker import Worker

_ROOM_DRAWS = 16
_MOST_COMPARED = 64
_TOKENS = attrgetter("tokens")


class Legs:
    """Acts on a State, and notes there what is to be done."""

    def __init__(self, state: State, new_room: Callable[[], int]) -> None:
        """`new_room` gives non-zero random numbers of at most 63 bits."""
        self._state = state
        self._new_room = new_room
        self._last_leg = 0

    def start(self, sequence: Sequence, picked: Picked) -> None:
        """Start both legs, from the queue: decode asks prefill for the KV as soon as it can."""
        self._begin(sequence, self._fresh_room())
        prefill, decode, chosen, sequence.ahead, sequence.pace = picked
        ahead = self._ahead(prefill.worker)
        if (waiting := prefill_wait(sequence, ahead)) is not None:
            self._state.actions.append(waiting)
        self._state.counts.ways[chosen.way, chosen.reason] += 1
        sequence.note(
            self._state.now,
            "pair_chosen",
            prefill=prefill.choice,
            decode=decode.choice,
            way=chosen.told,
            ahead=ahead,
        )
        # What was to be said before its first output was said before it was resumed.
        fresh = sequence.made is None or not sequence.made.used
        request, submit = sequence.request, sequence.request.submit
        # Prefill has more to say.
        waits = submit.want_report or submit.want_cost or submit.prompt_logprobs
        hold = prefill.worker.profile.has_hook or waits
        if fresh and submit.resume and not request.half:
            sequence.made = Made()
        self._open_pair(sequence, Pair(prefill.worker, decode.worker), held=hold and fresh)

    def start_canary(self, sequence: Sequence, pair: Pair) -> None:
        """Start both legs, beside the queue. Nobody judges them."""
        self._run(sequence, self._fresh_room())
        self._open_pair(sequence, pair, held=False)

    def start_prefill(self, sequence: Sequence, picked: Pick) -> None:
        """All of a context-only sequence, from the queue."""
        self._begin(sequence, self._fresh_room())
        ahead = self._ahead(picked.worker)
        sequence.note(self._state.now, "pair_chosen", prefill=picked.choice, ahead=ahead)
        sequence.prefill = self._open(sequence, picked.worker, kv_peer="", held=False)

    def start_decode(self, sequence: Sequence, picked: Pick, voucher: common_pb2.Voucher) -> None:
        """All of a sequence whose KV is parked, from the queue. Prefill's hooks have judged it."""
        self._begin(sequence, voucher.room)
        sequence.note(self._state.now, "pair_chosen", decode=picked.choice)
        sequence.decode = self._open(sequence, picked.worker, kv_peer=voucher.kv_peer, held=False)

    def _begin(self, sequence: Sequence, room: int) -> None:
        """The sequence leaves the queue, and its legs are started."""
        self._state.waiting.begin(sequence)
        seconds, request = self._state.now - sequence.queued_at, sequence.request
        self._state.counts.queue_seconds.observe(seconds)
        if request.submit.want_report:
            waited = QueueWait(request.frontend, sequence.number, seconds, sequence.queue_cause)
            self._state.actions.append(waited)
        self._run(sequence, room)

    def _run(self, sequence: Sequence, room: int) -> None:
        sequence.begun_at = self._state.now
        sequence.stage = RoutedStage.PREFILLING
        sequence.room = room
        sequence.judged = False
        sequence.prefill_unsent = False
        sequence.left = None
        self._state.rooms.add(room)

    def _open_pair(self, sequence: Sequence, pair: Pair, *, held: bool) -> None:
        sequence.pair = pair
        says = pair.decode.profile.judges_logprobs and not sequence.request.canary
        sequence.prefill = self._open(
            sequence, pair.prefill, kv_peer="", held=False, says_logprobs=says
        )
        endpoint = pair.prefill.profile.kv_endpoint
        sequence.decode = self._open(
            sequence, pair.decode, kv_peer=endpoint, held=held, says_logprobs=says
        )

    def _open(
        self,
        sequence: Sequence,
        worker: Worker,
        *,
        kv_peer: str,
        held: bool,
        says_logprobs: bool = False,
    ) -> Leg:
        state, request = self._state, sequence.request
        self._last_leg += 1
        made = sequence.made if sequence.made is not None and sequence.made.used else None
        says_made = worker.phase is Phase.DECODE and sequence.made is not None and made is None
        is_prefill, voucher = worker.phase is Phase.PREFILL, request.voucher
        tokens = self._tokens(request, worker, made)
        sent: Blocks = state.fleet.prefixes.send(worker, request.prompt) if is_prefill else ()
        canary = request.canary
        usual = None if worker.side is None or canary else worker.side.usual
        leg = Leg(self._last_leg, worker.phase, worker, sequence, tokens, usual, sent, held)
        worker.take(leg.number, tokens)
        state.fleet.place(worker)
        state.legs[leg.number] = leg
        request.legs += 1
        if request.number:
            request.workers.add(worker.key)
        left_ms = int((request.deadline - state.now) * 1000)
        state.actions.append(
            StartLeg(
                worker=worker.key,
                command=worker_pb2.StartLeg(
                    leg=leg.number,
                    destination=request.frontend,
                    sequence=sequence.number,
                    output_index=sequence.output_index,
                    room=sequence.room,
                    kv_peer=kv_peer,
                    timeout_ms=min(max(1, left_ms), MOST_MS),
                    hold_output=held,
                    context_only=request.context_only,
                    say_made=says_made,
                    say_logprobs=says_logprobs,
                    task_digest=b"" if voucher is None else voucher.task_digest,
                    parent_span=sequence.span,
                    canary=canary,
                    to_compute=min(tokens, MOST_TOKENS) if is_prefill else None,
                    new_blocks=prefix_blocks.pack(sent),
                ),
                task=request.task,
                chunk_names=request.chunk_names,
                overlay=sequence.overlay,
                made=bytes(made.steps) if made else b"",
                request=request.number,
            )
        )
        return leg

    def _ahead(self, worker: Worker) -> Ahead | None:
        """What a prefill worker has to compute before the next leg; of many legs some are compared
        for the largest.
        """
        if not worker.waiting_tokens:
            return None
        legs = [self._state.legs[each] for each in islice(worker.legs, _MOST_COMPARED)]
        largest = max(legs, key=_TOKENS, default=None)
        tokens, trace_id = 0, ""
        if largest is not None:
            tokens, trace_id = largest.tokens, largest.sequence.request.submit.trace_id
        return Ahead(worker.waiting_tokens, len(worker.legs), tokens, trace_id)

    def _tokens(self, request: Request, worker: Worker, made: Made | None) -> int:
        """The load of a leg: what prefill computes of the prompt, or what decode holds. `made`:
        what the sequence goes on from.
        """
        prompt, further = request.prompt, made.tokens if made else 0
        if worker.phase is Phase.DECODE:
            return prompt.tokens + max(request.submit.expected_tokens, further)
        tokens = worker.to_compute(prompt)
        if not request.canary:
            self._state.counts.prompt_tokens += prompt.tokens
            self._state.counts.cached_tokens += prompt.tokens - tokens
        return tokens + further

    def release(self, sequence: Sequence) -> None:
        decode = sequence.decode
        if decode is not None and decode.held:
            decode.held = False
            self._state.actions.append(ReleaseLeg(decode.worker.key, decode.number))

    def cancel(self, sequence: Sequence, reason: str) -> None:
        for leg in (sequence.prefill, sequence.decode):
            if leg is None or leg.settle_by is not None:
                continue
            leg.settle_by = self._state.now + self._state.bounds.settle_seconds
            self._state.settling.set(leg, leg.settle_by)
            if not sequence.request.canary:
                self._state.counts.cancels[reason] += 1
            self._state.actions.append(CancelLeg(leg.worker.key, leg.number, reason))

    def forget(self, leg: Leg, outcome: Outcome) -> None:
        """The leg is closed: its slot is free, and its room once the other leg is closed too."""
        sequence, worker = leg.sequence, leg.worker
        worker.give_back(leg.number, leg.tokens)
        self._state.fleet.prefixes.settle(worker, leg.fresh, self._state.now)
        del self._state.legs[leg.number]
        request = sequence.request
        request.legs -= 1
        if request.canary:
            self.canary_leg_over(leg)
        if not request.open and not request.legs:
            request.allotment.close()
        if leg.settle_by is not None:
            self._state.settling.clear(leg, leg.settle_by)
        worker.overdue -= leg.overdue
        if self._state.fleet.place(worker):
            self._state.may_start = True
        if leg.phase is Phase.PREFILL:
            sequence.prefill = None
        else:
            sequence.decode = None
        if sequence.prefill is None and sequence.decode is None:
            assert sequence.begun_at is not None
            self._state.rooms.discard(sequence.room)
            sequence.room = 0
            if not request.canary:
                self._state.waiting.settle(sequence, self._state.now - sequence.begun_at)
            self._state.may_start = True  # another key may be next
        if not request.canary:
            self._state.counts.legs[leg.phase, outcome] += 1

    def canary_leg_over(self, leg: Leg) -> None:
        self._state.canary_legs_over.append(leg.worker)
        self._state.may_start = True

    def _fresh_room(self) -> int:
        for _ in range(_ROOM_DRAWS):
            room = self._new_room()
            if room and room not in self._state.rooms:
                return room
        raise RuntimeError("the source of room numbers repeats itself")


def lost_leg(leg: Leg, down: WorkerDown) -> LegClosed:
    """How a leg closes with its worker's stream."""
    error: TandemError = WorkerLostError(f"the {leg.phase} worker was lost: {down.reason}")
    if leg.worker.draining and leg.sequence.stage is RoutedStage.PREFILLING:
        # It ended in good order, or had died before, and its leg was still on the way to it.
        error = DrainingError(f"the {leg.phase} worker shut down: {down.reason}")
    return LegClosed(
        down.worker,
        leg.number,
        Outcome.LOST,
        error=error,
        retryable=True,
        begun=leg.number not in down.unsent,
    )
