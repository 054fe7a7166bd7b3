"""The lifecycle of a sequence after its admission: run by a pair of legs, ended exactly once.

The pair is owned: whatever ends the sequence cancels the legs that are still open, at once.
"""

from __future__ import annotations

from collections.abc import Callable

from tandem.endings import Outcome
from tandem.errors import (
    DrainingError,
    HookError,
    InternalError,
    NoPairError,
    ParkingFullError,
    QueueFullError,
    RequestError,
    TandemError,
    WorkerError,
    WorkerLostError,
)
from tandem.timeline import NOTHING, LegTimes
from tandem.v1 import common_pb2
from tandem_router.core import resuming
from tandem_router.core.actions import EndSequence, GiveVoucher, RequestEnded
from tandem_router.core.deaths import MOST_DEATHS
from tandem_router.core.events import LegClosed, LegMade, LegParked, LegVerdict
from tandem_router.core.legs import Legs
from tandem_router.core.resuming import Made
from tandem_router.core.sequences import Leg, Request, RoutedStage, Sequence
from tandem_router.core.state import State
from tandem_router.core.stories import of_request
from tandem_router.core.story import MomentName
from tandem_router.core.values import Phase

_CONDEMNED = "a worker was lost that may have died of this request; it is not tried again"


class Lifecycle:
    """Acts on a State, and notes there what is to be done."""

    def __init__(self, state: State, legs: Legs, promptless: Callable[[bytes], bytes]) -> None:
        """`promptless` leaves of a task what is kept when its prompt is let go."""
        self._state = state
        self._legs = legs
        self._promptless = promptless

    def refuse(self, request: Request, error: TandemError) -> None:
        """End a request that is not admitted."""
        self._state.counts.requests[error.code] += 1
        request.open, request.outcome = 0, error.code
        for sequence in request.sequences:
            sequence.stage, sequence.outcome = RoutedStage.ENDED, error.code
            sequence.ended_at = self._state.now
            ended = EndSequence(request.frontend, sequence.number, error, refused=True)
            self._state.actions.append(ended)
            if request.first_span:
                self._state.actions.append(sequence.traced(error))
        story = of_request(request, self._state.fleet, self._state.now)
        self._state.actions.append(RequestEnded(story, refused=True))
        request.sequences = []  # see _forget_request

    def enqueue(self, sequence: Sequence) -> None:
        """The sequence waits for its turn, which may be at once."""
        self._state.waiting.add(sequence)
        sequence.queue_cause = ""
        self._state.queued.append(sequence)
        self._state.may_start = True

    def started(self, leg: Leg) -> None:
        """Output follows, unless it is held. It may have been shown by the time that an attempt is
        given up: then there is no other.
        """
        sequence, now = leg.sequence, self._state.now
        if sequence.stage is RoutedStage.PREFILLING:
            sequence.note(now, "started", leg.phase)
        if leg.phase is Phase.DECODE and sequence.stage is RoutedStage.PREFILLING:
            sequence.stage = RoutedStage.DECODING
            if sequence.pace is not None and sequence.begun_at is not None:
                sequence.pace.note(now, sequence.ahead, now - sequence.begun_at)
            if sequence.made is not None and sequence.made.used:
                sequence.made.forget(sequence.request.allotment)
            self._let_go(sequence.request)
        elif leg.phase is Phase.DECODE and sequence.stage is RoutedStage.RETRYING and not leg.held:
            self.end(sequence, error=sequence.failure)

    def judge(self, leg: Leg, verdict: LegVerdict) -> None:
        """Prefill's verdict: it ends the request where that worker propagates it (S0-035) or
        nothing follows prefill, and lets decode's output go otherwise. Decode's terminate ends the
        request, whatever has become of the sequence meanwhile: the worker shows nothing more of any
        output (S0-029).
        """
        sequence = leg.sequence
        sequence.request.prompt_tokens = sequence.request.prompt_tokens or verdict.prompt_tokens
        running = sequence.stage in (RoutedStage.PREFILLING, RoutedStage.DECODING)
        if leg.phase is Phase.DECODE:
            if verdict.terminate:
                spared = sequence if running else None  # its own end comes with its last row
                self.end_request(sequence.request, stop_reason=verdict.reason, spared=spared)
            return
        if sequence.judged or not running:
            return
        sequence.judged = True
        whole = sequence.request.context_only or leg.worker.profile.propagate_terminate
        if verdict.terminate and whole:
            tokens = verdict.completion_tokens
            self.end(sequence, stop_reason=verdict.reason, completion_tokens=tokens)
            self.end_request(sequence.request, stop_reason=verdict.reason)
        else:
            self._legs.release(sequence)

    def made(self, leg: Leg, event: LegMade) -> None:
        """What a decode leg's engine has made is kept, as long as it may be of use."""
        sequence, made = leg.sequence, leg.sequence.made
        if made is None or not made.may_serve or sequence.stage is not RoutedStage.DECODING:
            return
        if not made.add(event, sequence.request.allotment):
            self._let_go(sequence.request)

    def parked(self, leg: Leg, event: LegParked) -> None:
        """What a context-only sequence is to leave, once its leg has closed."""
        sequence, request = leg.sequence, leg.sequence.request
        voucher = common_pb2.Voucher(
            room=sequence.room,
            kv_peer=leg.worker.profile.kv_endpoint,
            model=request.submit.model,
            task_digest=event.task_digest,
            first_token_ids=event.token_ids,
            first_logprobs=event.logprobs,
        )
        expires_at = self._state.now + event.lease_seconds
        sequence.left = GiveVoucher(request.frontend, sequence.number, voucher, expires_at)

    def close(self, leg: Leg, closed: LegClosed) -> None:
        """The leg's one terminal event, or the loss of its worker."""
        sequence = leg.sequence
        code = closed.outcome if closed.error is None else closed.error.code
        usual = self._usual(leg, closed.times) if closed.outcome is Outcome.FINISHED else NOTHING
        sequence.note(self._state.now, "closed", leg.phase, code, times=closed.times, usual=usual)
        self._legs.forget(leg, closed.outcome)
        if leg.phase is Phase.PREFILL:
            sequence.prefill_unsent = not closed.begun
        if closed.outcome is Outcome.TERMINATED:
            self.judge(leg, LegVerdict(closed.worker, closed.leg, True, closed.reason))
        if sequence.stage is RoutedStage.RETRYING:
            self._retry_when_settled(sequence)
        elif sequence.stage is RoutedStage.ENDED:
            return
        elif leg.phase is Phase.PREFILL:
            self._prefill_closed(sequence, leg, closed)
        else:
            self._decode_closed(sequence, leg, closed)

    def _usual(self, leg: Leg, times: LegTimes | None) -> float:
        """How long the engine's work for a leg had taken of late; 0: that is not known."""
        if leg.usual is None or times is None:
            return NOTHING
        if leg.phase is Phase.PREFILL:
            tokens, took = times.prompt_tokens - times.cached_tokens, times.computing
        else:
            tokens, took = times.tokens - 1, times.generating
        if tokens <= 0:
            return NOTHING
        usual = round(leg.usual.seconds(tokens), 6) if leg.usual.tells_of(tokens) else NOTHING
        now, began = self._state.now, leg.sequence.begun_at
        assert began is not None
        # A worker's word counts as far as our clock bears it out: one sample would spoil all.
        leg.usual.note(now, tokens, min(took, now - began))
        return usual

    def end_request(
        self,
        request: Request,
        *,
        error: TandemError | None = None,
        stop_reason: str = "",
        spared: Sequence | None = None,
    ) -> None:
        """End every open sequence of a request except the spared one."""
        for sequence in request.sequences:
            if sequence.stage is not RoutedStage.ENDED and sequence is not spared:
                self.end(sequence, error=error, stop_reason=stop_reason)

    def end(
        self,
        sequence: Sequence,
        *,
        error: TandemError | None = None,
        stop_reason: str = "",
        refused: bool = False,
        completion_tokens: int = 0,
    ) -> None:
        """End with an error, or by a hook's terminate where there is none. `refused` and
        `completion_tokens`: see EndSequence.
        """
        request = sequence.request
        if request.frontend in self._state.frontends:
            ended = EndSequence(
                request.frontend,
                sequence.number,
                error,
                stop_reason,
                refused,
                completion_tokens,
                request.prompt_tokens,
            )
            self._state.actions.append(ended)
        self._ended(sequence, Outcome.TERMINATED if error is None else error.code, error)

    def settle_overdue(self, leg: Leg) -> None:
        """The worker is at fault: its slot stays taken, and nobody waits for it any longer."""
        leg.overdue = True
        leg.worker.overdue += 1
        self._state.fleet.place(leg.worker)
        self._state.counts.settle_overdue += 1
        sequence = leg.sequence
        if sequence.request.canary:
            self._legs.canary_leg_over(leg)
        if sequence.stage is RoutedStage.RETRYING:
            self.end(sequence, error=sequence.failure)

    def condemn(self, request: Request) -> None:
        """End what may have been a worker's death: all of it that would be run again, or has not
        come far enough to be sure to end.
        """
        for sequence in request.sequences:
            if sequence.stage in (RoutedStage.QUEUED, RoutedStage.RETRYING, RoutedStage.PREFILLING):
                self.end(sequence, error=WorkerLostError(_CONDEMNED))

    def _prefill_closed(self, sequence: Sequence, leg: Leg, closed: LegClosed) -> None:
        decode = sequence.decode
        held = decode is not None and decode.held
        if sequence.request.context_only and closed.outcome is Outcome.FINISHED:
            self._context_closed(sequence, leg)
        elif closed.outcome in (Outcome.FINISHED, Outcome.TERMINATED):
            if held and leg.worker.profile.has_hook:
                error = HookError("the prefill worker gave no verdict of its hook")
                self._fail(sequence, error, retryable=False)
            else:
                self._legs.release(sequence)
        elif closed.outcome is Outcome.LOST and sequence.stage is RoutedStage.DECODING and not held:
            return  # The KV has arrived and the verdict is in: prefill owes nothing more.
        else:
            if isinstance(closed.error, ParkingFullError):
                sequence.no_room_at |= {leg.worker.key}
            self._fail(sequence, _error_of(closed), retryable=closed.retryable, begun=closed.begun)

    def _context_closed(self, sequence: Sequence, leg: Leg) -> None:
        """End a context-only sequence whose prefill leg has finished."""
        if leg.worker.profile.has_hook and not sequence.judged:
            unjudged = HookError("the prefill worker gave no verdict of its hook")
            self._fail(sequence, unjudged, retryable=False)
        elif sequence.left is None:
            error = WorkerError("the prefill worker does not say what it parked")
            self._fail(sequence, error, retryable=False)
        else:
            self._state.actions.append(sequence.left)
            self._ended(sequence, Outcome.FINISHED)

    def _decode_closed(self, sequence: Sequence, leg: Leg, closed: LegClosed) -> None:
        request = sequence.request
        once = request.voucher is not None or request.let_go_bytes or request.canary
        if closed.outcome is Outcome.REGENERATE and once:
            error: TandemError = WorkerError("a decode worker asks for a run that cannot be")
            self._fail(sequence, error, retryable=False)
        elif closed.outcome is Outcome.REGENERATE:
            self._regenerate(sequence, closed.overlay)
        elif sequence.made is not None and (closed.outcome is Outcome.LOST or closed.worker_died):
            self._decode_lost(sequence, sequence.made, leg, closed)
        elif closed.outcome not in (Outcome.FINISHED, Outcome.TERMINATED):
            self._fail(sequence, _error_of(closed), retryable=closed.retryable, begun=closed.begun)
        elif leg.held:
            error = InternalError("the decode worker ended a leg that it was to hold")
            self._fail(sequence, error, retryable=False)
        else:
            self._ended(sequence, closed.outcome)

    def _decode_lost(self, sequence: Sequence, made: Made, leg: Leg, closed: LegClosed) -> None:
        """Another pair goes on with a sequence that is to be resumed, where there is one. Of one
        whose output was held nothing was shown, so it begins again.
        """
        error = _error_of(closed)
        if sequence.stage is not RoutedStage.DECODING:
            self._fail(sequence, error, retryable=closed.retryable, begun=closed.begun)
        elif made.over:
            self._ended(sequence, Outcome.FINISHED.value)
        elif obstacle := self._obstacle(sequence, made, held=leg.held):
            if not made.used:
                self._state.counts.resumed["refused"] += 1
            self.end(sequence, error=resuming.unresumed(error, obstacle))
        else:
            sequence.avoided = sequence.pair
            sequence.failure = resuming.unresumed(error, resuming.NO_PAIR)
            if leg.held:
                made.forget(sequence.request.allotment)
                sequence.made = None
                sequence.retries += 1
            else:
                made.used = True
            self._run_again(sequence, error.code, "retry" if leg.held else "resume")

    def _obstacle(self, sequence: Sequence, made: Made, *, held: bool) -> str:
        """Why it cannot be resumed; empty: it can."""
        request = sequence.request
        if made.used or (held and sequence.retries >= self._state.bounds.max_retries):
            return resuming.TWICE
        if not held and (made.obstacle or not made.steps):
            return made.obstacle or resuming.NOT_SAID
        if request.deaths >= MOST_DEATHS:
            return resuming.SUSPECT
        other = self._state.fleet.has_pair(
            request.edition, request.needs, other_than=sequence.pair, proved=False
        )
        return "" if other else resuming.NO_PAIR

    def _fail(
        self, sequence: Sequence, error: TandemError, *, retryable: bool, begun: bool = True
    ) -> None:
        """Another attempt where nothing was shown and another pair exists, or will once a worker is
        proved; else the error. A worker that was full, shut down or never got the leg has not
        tried: that costs no attempt and shuts no pair out. A phase that runs alone is not tried
        again elsewhere, whoever asked for it can; but where one worker may park no more, another
        may. A canary is of its own pair.
        """
        request = sequence.request
        repeatable = retryable and sequence.stage is RoutedStage.PREFILLING and not request.canary
        if repeatable and request.deaths >= MOST_DEATHS:
            told = WorkerLostError(_CONDEMNED) if isinstance(error, DrainingError) else error
            self.end(sequence, error=told)
        elif repeatable and (not begun or isinstance(error, QueueFullError | DrainingError)):
            self._state.counts.requeued += 1
            # Frontends take DrainingError for this router's own word, and submit again.
            kept = NoPairError(error.message) if isinstance(error, DrainingError) else error
            sequence.failure = sequence.failure or kept
            self._run_again(sequence, error.code)
        elif (
            repeatable
            and request.context_only
            and isinstance(error, ParkingFullError)
            and self._state.fleet.parkers(
                request.edition, request.needs, other_than=sequence.no_room_at
            )
        ):
            self._state.counts.requeued += 1
            sequence.failure = error
            self._run_again(sequence, error.code)
        elif (
            repeatable
            and not request.half
            and sequence.retries < self._state.bounds.max_retries
            and self._state.fleet.has_pair(
                request.edition, request.needs, other_than=sequence.pair, proved=False
            )
        ):
            sequence.retries += 1
            self._state.counts.retries += 1
            sequence.avoided = sequence.pair
            sequence.failure = error
            self._run_again(sequence, error.code)
        elif sequence.made is not None and sequence.made.used and isinstance(error, RequestError):
            lost = sequence.failure or error  # the client's request was in order when it began
            self.end(sequence, error=resuming.unresumed(lost, error.message))
        else:
            self.end(sequence, error=error)

    def _run_again(self, sequence: Sequence, code: str, moment: MomentName = "retry") -> None:
        sequence.stage = RoutedStage.RETRYING
        sequence.note(self._state.now, moment, "", code)
        self._legs.cancel(sequence, code)
        self._retry_when_settled(sequence)

    def _regenerate(self, sequence: Sequence, overlay: bytes) -> None:
        """Run it again from the start, on any pair: nothing of it was shown."""
        if sequence.request.deaths >= MOST_DEATHS:
            self.end(sequence, error=WorkerLostError(_CONDEMNED))
            return
        if sequence.regenerations >= self._state.bounds.max_regenerations:
            error = WorkerError("classifiers blocked every run of the sequence")
            self._fail(sequence, error, retryable=False)
            return
        sequence.regenerations += 1
        sequence.overlay = overlay
        if sequence.made is not None:
            sequence.made.forget(sequence.request.allotment)
            sequence.made = None
        sequence.retries = 0
        sequence.pair = sequence.avoided = None
        sequence.failure = NoPairError("no pair of workers takes the sequence a second time")
        sequence.stage = RoutedStage.RETRYING
        sequence.note(self._state.now, "regenerate")
        self._legs.cancel(sequence, Outcome.REGENERATE.value)
        self._retry_when_settled(sequence)

    def _retry_when_settled(self, sequence: Sequence) -> None:
        """Only when both legs are closed can nothing of the old attempt reach the frontend."""
        if sequence.prefill is not None or sequence.decode is not None:
            return
        if len(self._state.waiting) < self._state.bounds.max_queue:
            sequence.stage = RoutedStage.QUEUED
            sequence.queued_at = self._state.now
            sequence.note(self._state.now, "queued")
            self.enqueue(sequence)
        else:
            self.end(sequence, error=sequence.failure)

    def _ended(self, sequence: Sequence, outcome: str, error: TandemError | None = None) -> None:
        if sequence.stage is RoutedStage.QUEUED:
            self._state.waiting.remove(sequence)
            self._state.may_start = True
        sequence.stage, sequence.outcome, sequence.ended_at = (
            RoutedStage.ENDED,
            outcome,
            self._state.now,
        )
        self._legs.cancel(sequence, outcome)
        request = sequence.request
        if (made := sequence.made) is not None:
            made.forget(request.allotment)
            if made.used:
                self._state.counts.resumed["failed" if error else "finished"] += 1
        if request.canary:
            self._canary_ended(sequence, error)
            return
        self._state.open_sequences -= 1
        if request.first_span:
            self._state.actions.append(sequence.traced(error))
        request.open -= 1
        if request.outcome == Outcome.FINISHED:
            request.outcome = outcome
        if not request.open:
            self._request_ended(request)

    def _canary_ended(self, sequence: Sequence, error: TandemError | None) -> None:
        sequence.request.open = 0
        self._forget_request(sequence.request)
        self._state.ended_canaries.append((sequence, error))
        self._state.may_start = True

    def _let_go(self, request: Request) -> None:
        """Once nothing of a request is to be started any more, only its workers keep its prompt."""
        if not request.may_run:
            rest = self._promptless(request.task)
            request.let_go_bytes = len(request.task) - len(rest)
            request.task = rest
            request.allotment.give_back(request.let_go_bytes)

    def _request_ended(self, request: Request) -> None:
        self._state.traces.remove(request)
        story = of_request(request, self._state.fleet, self._state.now)
        if requests := self._state.frontends.get(request.frontend):
            for each in request.sequences:
                requests.pop(each.number, None)
        self._forget_request(request)
        self._forget_session(request)
        self._state.counts.requests[request.outcome] += 1
        self._state.actions.append(
            RequestEnded(story, request=request.number, workers=tuple(sorted(request.workers)))
        )

    def _forget_request(self, request: Request) -> None:
        self._state.deadlines.clear(request, request.deadline)
        request.sequences = []  # they refer back to it: else both wait for the garbage collector
        if not request.legs:
            request.allotment.close()

    def _forget_session(self, request: Request) -> None:
        """Let go of what was kept for the prompts to come of a session that is over, and for other
        sequences of the request.
        """
        prefixes, session = self._state.fleet.prefixes, request.submit.session
        if request.number:
            prefixes.forget_session(-request.number)
        if request.submit.ends_session and session:
            prefixes.forget_session(session)
            self._state.lost_hits.forget(session)


def _error_of(closed: LegClosed) -> TandemError:
    if closed.error is not None:
        return closed.error
    return WorkerError(f"the worker gave up a leg without a reason ({closed.outcome.value})")
