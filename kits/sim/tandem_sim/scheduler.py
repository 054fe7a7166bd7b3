"""What happens to each request of a sim engine, from its submission to its one end.

Computing is model.py's, time is runners.py's, and the hand-over is tandem_sim.kv_transfer's.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Collection
from typing import Any

from tandem.engine.base import Delta, Ending, KvTransfer, RankLoad, Role
from tandem.engine.mailbox import Mailbox
from tandem.engine.parking import Parking
from tandem.engine.ucx_log import UNKNOWN
from tandem.errors import CancelledError, DeadlineError, EngineError, KvTransferError, TandemError
from tandem.tasks import Tasks
from tandem.v1 import kv_pb2
from tandem_sim.faults import Fault
from tandem_sim.handover import Handover
from tandem_sim.kv_pool import KvPool
from tandem_sim.kv_transfer.receiver import Expected
from tandem_sim.kv_transfer.sender import Export
from tandem_sim.model import SimModel, landed_of
from tandem_sim.options import SimOptions
from tandem_sim.runners import DecodeRunner, PrefillRunner, Troubles
from tandem_sim.sequence import SequenceStage, SimSequence

_OFFERED_SECONDS = 0.02  # by then an offer is on its way


class Scheduler:
    """The open sequences of one engine, and whose step is next."""

    def __init__(
        self,
        role: Role,
        options: SimOptions,
        *,
        max_sequences: int,
        pool: KvPool,
        model: SimModel,
        handover: Handover,
        troubles: Troubles,
        mailbox: Mailbox,
        parking: Parking,
    ) -> None:
        self._role = role
        self._phase = role.phase
        self._options = options
        self._max_sequences = max_sequences
        self._pool = pool
        self._model = model
        self._handover = handover
        self._troubles = troubles
        self._mailbox = mailbox
        self._parking = parking
        self._prefilling = PrefillRunner(
            model, troubles, computed=self._computed, failed=self._end_failed
        )
        self._decoding = DecodeRunner(model, troubles, mailbox, ended=self._forget_all)
        self._sequences: dict[int, SimSequence] = {}
        self._rooms: dict[int, SimSequence] = {}
        self._queue: deque[SimSequence] = deque()
        self._admitted = 0
        self._closed = False

    def start(self, tasks: Tasks) -> None:
        tasks.start(self._prefilling.run(), name="sim prefill")
        tasks.start(self._decoding.run(), name="sim decode")

    def is_open(self, request_id: int, room: int) -> bool:
        return request_id in self._sequences or room in self._rooms

    def add(self, sequence: SimSequence) -> None:
        """Raises ParkingFullError where its KV may not be parked."""
        if sequence.request.park_seconds:
            options = self._options
            tokens = sequence.prompt_pages * options.page_size
            self._parking.reserve(sequence.request, tokens * options.kv_bytes_per_token)
        self._sequences[sequence.id] = sequence
        if sequence.request.room:
            self._rooms[sequence.request.room] = sequence
        loop = asyncio.get_running_loop()
        sequence.deadline = loop.call_later(
            sequence.request.timeout_seconds, self._expire, sequence
        )
        sequence.since = time.monotonic()
        self._queue.append(sequence)
        self.admit()

    def cancel(self, request_id: int) -> None:
        sequence = self._sequences.get(request_id)
        reason = CancelledError("cancelled", phase=self._phase)
        if sequence is not None:
            self._give_up(sequence, reason)
        elif (room := self._parking.room(request_id)) is not None:
            self._handover.sender.withdraw(room, reason)

    def admit(self) -> None:
        """First come, first served: who does not fit holds up those behind."""
        while self._queue and self._admitted < self._max_sequences and not self._closed:
            sequence = self._queue[0]
            pages = self._pool.allocate(sequence.total_pages)
            if pages is None:
                return
            self._queue.popleft()
            self._admitted += 1
            now = time.monotonic()
            sequence.times.room, sequence.since = now - sequence.since, now
            sequence.pages = pages
            sequence.generation = self._pool.generation(pages)
            if self._role is Role.DECODE:
                self._expect(sequence)
            else:
                sequence.stage = SequenceStage.PREFILL
                self._prefilling.add(sequence)

    def _computed(self, sequence: SimSequence) -> None:
        """The prompt's KV and the first token are there."""
        if self._role is Role.AGGREGATED:
            self._begin_decode(sequence, None)
            return
        faults = sequence.faults
        if Fault.CORRUPT in faults:
            self._pool.damage(sequence.pages, 0)
        if Fault.REUSED in faults:
            self._pool.release(sequence.pages)
            others = self._pool.allocate(len(sequence.pages))
            assert others is not None, "they were released just now"
            self._pool.clear(others)
        if Fault.DROP in faults:
            self._lose_patience(sequence, self._options.handover_timeout_seconds)
        elif Fault.DELAY in faults:
            delay = self._troubles.faults.delay_ms / 1000
            loop = asyncio.get_running_loop()
            sequence.patience = loop.call_later(delay, self._export, sequence)
        else:
            self._export(sequence)

    def _export(self, sequence: SimSequence) -> None:
        settle, pages = self._handed_over, sequence.pages[: sequence.prompt_pages]
        if sequence.request.park_seconds:
            self._park(sequence)
            settle = self._taken
        else:
            sequence.stage = SequenceStage.TRANSFER
        seconds, faults = self._options.handover_timeout_seconds, sequence.faults
        delay = self._troubles.faults.delay_ms / 1000
        self._handover.sender.export(
            Export(
                landed=landed_of(sequence),
                tag=sequence.tag,
                intact=lambda: self._pool.generation(pages) == sequence.generation,
                pages=pages,
                wait_seconds=sequence.request.park_seconds or seconds,
                settle=lambda result: settle(sequence, result),
                withheld=int(Fault.WITHHOLD in faults),
                belated_seconds=delay if Fault.BELATED in faults else 0.0,
                again_seconds=delay if Fault.DOUBLED in faults else 0.0,
                on_write=lambda: self._troubles.crash((sequence,), "transfer"),
            )
        )

    def _handed_over(self, sequence: SimSequence, result: kv_pb2.KvLanded | TandemError) -> None:
        if isinstance(result, TandemError):
            self._end_failed(sequence, sequence.given_up or result)
            return
        token, logprobs = sequence.first_token, sequence.first_logprobs
        kv = self._measured(result)
        self._end(
            sequence,
            Ending.LENGTH,
            token_ids=(token,),
            logprobs=logprobs,
            kv=kv,
            cached_tokens=sequence.cached_tokens,
            prompt_logprobs=sequence.prompt_logprobs,
            times=sequence.times,
        )

    def _park(self, sequence: SimSequence) -> None:
        """The request ends here, and its KV waits for another."""
        self._parking.park(sequence.request)
        self._leave(sequence)
        token, logprobs = sequence.first_token, sequence.first_logprobs
        delta = Delta(sequence.id, (token,), Ending.LENGTH, logprobs)
        delta.cached_tokens, delta.times = sequence.cached_tokens, sequence.times
        self._mailbox.put([delta])
        self.admit()

    def _taken(self, sequence: SimSequence, result: kv_pb2.KvLanded | TandemError) -> None:
        """Parked KV was handed over, or is not to be."""
        self._free(sequence)

    def _expect(self, sequence: SimSequence) -> None:
        """DECODE: offer the prompt's pages to the request's prefill engine. A request whose time is
        over aborts its room; a lease that ends in the middle of a write costs the whole stream.
        """
        request, seconds = sequence.request, self._options.handover_timeout_seconds
        sequence.stage = SequenceStage.TRANSFER
        self._model.expect(sequence)
        self._lose_patience(sequence, seconds)
        self._handover.receiver.expect(
            request.kv_peer,
            Expected(
                room=request.room,
                pages=sequence.pages[: sequence.prompt_pages],
                generation=sequence.generation,
                lease_seconds=seconds,
                settle=lambda result: self._arrived(sequence, result),
                parked=request.parked,
            ),
        )
        if Fault.CRASH in sequence.faults:
            # Once the offer is on its way.
            loop = asyncio.get_running_loop()
            loop.call_later(_OFFERED_SECONDS, self._troubles.crash, (sequence,), "transfer")

    def _arrived(self, sequence: SimSequence, result: kv_pb2.KvLanded | TandemError) -> None:
        if isinstance(result, TandemError):
            # The receiver frees the prompt's pages, when no write can touch them any more.
            sequence.pages = sequence.pages[sequence.prompt_pages :]
            self._end_failed(sequence, sequence.given_up or result)
            return
        try:
            self._model.receive(sequence, result)
        except KvTransferError as error:
            self._end_failed(sequence, error)
            return
        self._begin_decode(sequence, self._measured(result))

    def _measured(self, landed: kv_pb2.KvLanded) -> KvTransfer:
        transport = f"{self._handover.library}/{landed.transport or UNKNOWN}"
        return KvTransfer(landed.bytes, landed.seconds, transport)

    def _begin_decode(self, sequence: SimSequence, kv: KvTransfer | None) -> None:
        """The first token goes out at once, whatever the step's time."""
        if sequence.patience is not None:
            sequence.patience.cancel()
            sequence.patience = None
        sequence.stage = SequenceStage.DECODE
        end = self._model.ending_of_first(sequence)
        if end is not None:
            self._forget(sequence)
        delta = Delta(
            sequence.id,
            (sequence.first_token,),
            end,
            sequence.first_logprobs,
            kv=kv,
            cached_tokens=sequence.cached_tokens,
            prompt_logprobs=sequence.prompt_logprobs,
            times=sequence.times,
        )
        self._mailbox.put([delta])
        if end is None:
            self._decoding.add(sequence)

    # --- ends ---------------------------------------------------------------------------------

    def _expire(self, sequence: SimSequence) -> None:
        self._give_up(sequence, DeadlineError("the request's time ran out", phase=self._phase))

    def _lose_patience(self, sequence: SimSequence, seconds: float) -> None:
        error = KvTransferError("the hand-over did not happen in time", phase=self._phase)
        loop = asyncio.get_running_loop()
        sequence.patience = loop.call_later(seconds, self._give_up, sequence, error)

    def _give_up(self, sequence: SimSequence, reason: TandemError) -> None:
        """End it now, or when its transfer has settled."""
        if sequence.given_up is not None:
            return
        sequence.given_up = reason
        room = sequence.request.room
        if sequence.stage is not SequenceStage.TRANSFER:
            self._end_failed(sequence, reason)
        elif self._role is Role.DECODE:
            self._handover.receiver.abort(room, reason)
        else:
            self._handover.sender.withdraw(room, reason)

    def _end_failed(self, sequence: SimSequence, error: TandemError) -> None:
        if self._role is Role.PREFILL and sequence.stage is not SequenceStage.TRANSFER:
            # Decode waits for this room: it should not wait in vain.
            self._handover.sender.withdraw(sequence.request.room, error)
        if isinstance(error, CancelledError) and sequence.given_up is error:
            self._end(sequence, Ending.CANCELLED)
        else:
            retryable = isinstance(error, KvTransferError | EngineError)
            self._end(sequence, Ending.FAILED, error=error, retryable=retryable)

    def _end(self, sequence: SimSequence, end: Ending, **rest: Any) -> None:
        self._forget(sequence)
        self._mailbox.put([Delta(sequence.id, rest.pop("token_ids", ()), end, **rest)])

    def _forget_all(self, sequences: list[SimSequence]) -> None:
        for sequence in sequences:
            self._forget(sequence)

    def _forget(self, sequence: SimSequence) -> None:
        """Free all that a sequence holds."""
        self._leave(sequence)
        self._free(sequence)

    def _leave(self, sequence: SimSequence) -> None:
        """Free its queue place and its timers."""
        if sequence.stage is SequenceStage.QUEUED:
            self._queue.remove(sequence)
        else:
            self._admitted -= 1
        if sequence.stage is SequenceStage.DECODE:
            self._decoding.remove(sequence)
        sequence.stage = SequenceStage.ENDED
        sequence.stop_timers()
        del self._sequences[sequence.id]

    def _free(self, sequence: SimSequence) -> None:
        """Free its pages and its room."""
        self._parking.free(sequence.id)
        self._rooms.pop(sequence.request.room, None)
        pages, sequence.pages = sequence.pages, []
        self._pool.release(pages)
        self.admit()

    def close(self) -> None:
        """Cancel what is still open. The hand-over is closed before."""
        self._closed = True
        for sequence in list(self._sequences.values()):
            self._end(sequence, Ending.CANCELLED)

    @property
    def step_age(self) -> float:
        """Seconds since whatever has work made a step; 0 where nothing has."""
        return max(self._prefilling.pace.age, self._decoding.pace.age)

    def sequences(self) -> Collection[SimSequence]:
        """Sequences that have not ended."""
        return self._sequences.values()

    def load(self) -> RankLoad:
        """Where each sequence is, and the pages of the KV cache. Nothing is retracted: an output's
        pages are allocated at once.
        """
        stages = Counter(each.stage for each in self.sequences())
        uncomputed = queued = self._prefilling.waiting
        preallocating, moving = 0, stages[SequenceStage.TRANSFER]
        if self._role is Role.DECODE:
            preallocating = stages[SequenceStage.QUEUED]
        else:
            queued += stages[SequenceStage.QUEUED]
        if self._role is Role.PREFILL:
            preallocating = sum(
                each.stage is SequenceStage.TRANSFER
                and self._handover.sender.awaits_offer(each.request.room)
                for each in self.sequences()
            )
            moving -= preallocating
        computed = stages[SequenceStage.PREFILL] + stages[SequenceStage.DECODE]
        return RankLoad(
            running=computed - uncomputed,
            queued=queued,
            preallocating=preallocating,
            transferring=moving,
            retracted=0,
            kv_tokens_used=self._pool.used_tokens,
            kv_tokens_total=self._pool.total_tokens,
        )

    def __len__(self) -> int:
        return len(self._sequences)
