"""The requests of a vLLM engine, and what comes of them. Lives on the worker's event loop.

Prefill: vLLM computes the prompt and a token, and keeps the pages under a lease; what decode has to
know waits in the PullServer. Decode: the PullClient asks for that, and then vLLM is given the
prompt, reads its pages, and is made to sample prefill's token again. So its seeds, penalties,
grammars and limits stand where those of one engine would.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tandem.engine import request_checks
from tandem.engine.base import (
    Delta,
    Ending,
    EngineRequest,
    EngineSettings,
    KvTransfer,
    RankLoad,
    Role,
)
from tandem.engine.kv_tag import KvTag
from tandem.engine.mailbox import Mailbox
from tandem.engine.parking import Parking
from tandem.engine.rooms import KeyedTimers
from tandem.errors import (
    CancelledError,
    DeadlineError,
    EngineError,
    KvTransferError,
    TandemError,
    VoucherError,
)
from tandem.logits.model import Model
from tandem.tasks import Tasks
from tandem.v1 import common_pb2, pull_pb2
from tandem_vllm import outputs, processors, requests, validation, words
from tandem_vllm.launch import Launched
from tandem_vllm.legs import Leg, Stage
from tandem_vllm.notes import NoteReader
from tandem_vllm.pull_client import PullClient, Readable
from tandem_vllm.pull_server import Held, PullServer

TRANSPORT = "nixl/ucx/unknown"
_MARGIN_SECONDS = 5.0
"""A lease is longer than decode may take by so much."""
_PREEMPTED = 3
"""EngineCoreEventType."""


class Traffic:
    """`server` is PREFILL's, `client` DECODE's; the other one is None."""

    def __init__(
        self,
        role: Role,
        settings: EngineSettings,
        *,
        model: Model,
        eos_token_ids: frozenset[int],
        handover_seconds: float,
        notes: NoteReader,
        server: PullServer | None,
        client: PullClient | None,
    ) -> None:
        self.mailbox = Mailbox()
        self.parking = Parking(settings.parking)
        self._role = role
        self._registry = settings.registry
        self._model = model
        self._eos = eos_token_ids
        self._seconds = handover_seconds
        self._notes = notes
        self._server = server
        self._client = client
        self._launched: Launched | None = None
        self._bounds: validation.EngineBounds | None = None
        self._layout = 0
        self._legs: dict[int, Leg] = {}
        self._rooms: set[int] = set()
        self._handed: dict[int, int] = {}
        """Pages of prompts that decode may read, by request."""
        self._deadlines: KeyedTimers[int] = KeyedTimers()
        self._waits: KeyedTimers[int] = KeyedTimers()
        self.tasks = Tasks()
        self._releases = 0
        self._waiting = 0
        """Requests that vLLM has and does not compute yet, as its scheduler last said."""
        self._stepped = 0.0
        self.retractions = 0
        """How often vLLM took a request out of its batch because the KV cache was full."""

    def begin(self, launched: Launched, bounds: validation.EngineBounds, layout: int) -> None:
        """The engine runs: take its outputs. `layout`: of the tag of its hand-overs, of which both
        phases know; 0: they have none.
        """
        self._launched, self._bounds, self._layout = launched, bounds, layout
        self.tasks.start(self._receive(launched))

    async def close(self) -> None:
        """End all tasks and `hand_on`. What is open gets no end."""
        self.mailbox.close()
        self._deadlines.clear()
        self._waits.clear()
        await self.tasks.close()

    @property
    def _running(self) -> Launched:
        assert self._launched is not None, "a request is submitted to an engine that runs"
        return self._launched

    # --- what the worker asks --------------------------------------------------------------------

    def submit(self, request: EngineRequest) -> None:
        """Raises RequestError and ParkingFullError, as an Engine does."""
        launched, bounds = self._launched, self._bounds
        if launched is None or bounds is None:
            raise EngineError("the engine was not started")
        if request.request_id in self._legs or request.room in self._rooms:
            request_checks.refuse_open(request, self._role)
        validation.check(request, bounds)
        spec = processors.spec(request, self._registry, self._model)
        leg = Leg(request, spec, Stage.COMPUTED)
        if request.park_seconds:
            self.parking.reserve(request, leg.pages(launched.page_size) * self._notes.page_bytes)
        try:
            self._begin(leg)
        except TandemError:
            self.parking.free(request.request_id)
            raise

    def cancel(self, request_id: int) -> None:
        """End a request soon, or free its parked KV."""
        leg = self._legs.get(request_id)
        if leg is not None:
            self._end(leg, CancelledError("the request was cancelled"))
            return
        room = self.parking.room(request_id)
        if room is not None and self._server is not None:
            self._server.withdraw(room, VoucherError("its KV was given up"))
            self.parking.free(request_id)

    # --- load ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._legs)

    @property
    def step_age(self) -> float | None:
        """Seconds since the last tokens; 0: none are due. None where steps do not show."""
        if self._role is Role.PREFILL:
            return None
        runs = any(leg.generated for leg in self._legs.values())
        return time.monotonic() - self._stepped if runs else 0.0

    def load(self) -> RankLoad:
        """Where each request is. vLLM's scheduler says how many of its requests it does not compute
        yet, with its outputs alone; the rest is known here.
        """
        launched = self._launched
        size = 1 if launched is None else launched.page_size
        legs = self._legs.values()
        pages = sum(leg.pages(size) for leg in legs if leg.stage in (Stage.COMPUTED, Stage.ENDING))
        pages += sum(self._handed.values())
        fresh = [leg for leg in legs if leg.stage is Stage.COMPUTED and not leg.generated]
        running = sum(leg.generated > 0 for leg in legs if leg.stage is Stage.COMPUTED)
        waiting = min(self._waiting, len(fresh))
        calling = sum(leg.stage is Stage.CALLING for leg in legs)
        held = [leg for leg in legs if leg.stage is Stage.HELD]
        called = sum(
            self._server is not None and self._server.is_called(leg.request.room) for leg in held
        )
        decode = self._role is Role.DECODE
        return RankLoad(
            running=running + (0 if decode else len(fresh) - waiting),
            queued=0 if decode else waiting,
            preallocating=waiting if decode else len(held) - called,
            transferring=calling + len(fresh) - waiting if decode else called,
            retracted=0,
            kv_tokens_used=pages * size,
            kv_tokens_total=0 if launched is None else launched.pages * size,
        )

    # --- the way of a request --------------------------------------------------------------------

    def _begin(self, leg: Leg) -> None:
        request = leg.request
        self._legs[request.request_id] = leg
        if request.room:
            self._rooms.add(request.room)
        try:
            if self._client is not None:
                leg.stage = Stage.CALLING
                self._client.call(
                    request.kv_peer,
                    request.room,
                    parked=request.parked,
                    settle=partial(self._answered, leg),
                )
                self._wait(leg, self._seconds, "prefill was not ready in time")
            elif self._server is not None:
                seconds = (request.park_seconds or self._seconds) + self._seconds + _MARGIN_SECONDS
                self._compute(leg, transfer=requests.to_be_read(seconds))
            else:
                self._compute(leg)
        except TandemError:
            self._forget(leg)
            raise
        self._deadlines.set(
            request.request_id,
            request.timeout_seconds,
            partial(self._end, leg, DeadlineError("the request's time ran out")),
        )

    def _compute(
        self, leg: Leg, *, first: int | None = None, transfer: Mapping[str, Any] | None = None
    ) -> None:
        """Give a request to vLLM. Raises InvalidRequestError."""
        launched, request = self._running, leg.request
        made = launched.made(
            leg.name,
            request.context,
            requests.sampling(
                request,
                role=self._role,
                eos_token_ids=self._eos,
                spec=leg.spec,
                first=first,
                transfer=transfer,
            ),
            cache_salt=request.cache_salt or None,
            lora_adapter=request.lora_adapter,
        )
        leg.stage = Stage.COMPUTED
        leg.ordered = time.monotonic()
        self.tasks.start(self._give(leg, launched, made))

    async def _give(self, leg: Leg, launched: Launched, made: Any) -> None:
        """A request that vLLM's client cannot send ends at once."""
        try:
            await launched.client.add_request_async(made)
        except Exception as error:  # noqa: BLE001 - of vLLM
            self._end(leg, EngineError(f"vLLM did not take the request: {type(error).__name__}"))

    def _answered(self, leg: Leg, said: Readable | TandemError) -> None:
        """DECODE: prefill's word about a room."""
        if leg.stage is not Stage.CALLING:
            return
        if isinstance(said, TandemError):
            self._end(leg, said, told=True)
            return
        leg.readable = said
        try:
            expected = self._tag_of(leg.request)
            transfer = words.transfer_of(said.ready, self._model.vocabulary, expected)
            self._compute(leg, first=said.ready.first_token, transfer=transfer)
        except TandemError as error:
            self._end(leg, error)
        else:
            left = min(self._seconds, said.until - time.monotonic())
            self._wait(leg, left, "the KV was not read in time")

    def _wait(self, leg: Leg, seconds: float, reason: str) -> None:
        failure = partial(self._end, leg, KvTransferError(reason, phase=self._role.phase))
        self._waits.set(leg.request.request_id, max(0.0, seconds), failure)

    def _end(self, leg: Leg, error: TandemError, *, told: bool = False) -> None:
        """End a request that has not ended by itself. `told`: the other phase knows."""
        if leg.stage is Stage.ENDING:
            return
        computed, leg.stage = leg.stage is Stage.COMPUTED, Stage.ENDING
        self._waits.stop(leg.request.request_id)
        if self._server is not None:
            self._server.withdraw(leg.request.room, _for_decode(error))
        if computed:
            self.tasks.start(self._drop(leg, error))
        else:
            self._over(leg, error, told=told)

    async def _drop(self, leg: Leg, error: TandemError) -> None:
        """The end is said when vLLM holds nothing any more, or does not answer."""
        with contextlib.suppress(Exception):  # of vLLM: a dead engine is told of elsewhere
            await self._running.drop([leg.name])
        self._over(leg, error)

    def _over(self, leg: Leg, error: TandemError, *, told: bool = False) -> None:
        if self._client is not None and not told:
            self._client.give_up(leg.request.room, error)
        self.parking.free(leg.request.request_id)
        cancelled = isinstance(error, CancelledError)
        delta = Delta(leg.request.request_id, (), Ending.CANCELLED if cancelled else Ending.FAILED)
        if not cancelled:
            delta.error = error
            delta.retryable = isinstance(error, KvTransferError | EngineError)
        self._forget(leg)
        self.mailbox.put([delta])

    def _tag_of(self, request: EngineRequest) -> KvTag | None:
        return words.tag_of(request, self._layout) if self._layout else None

    def _forget(self, leg: Leg) -> None:
        request_id = leg.request.request_id
        del self._legs[request_id]
        self._rooms.discard(leg.request.room)
        self._deadlines.stop(request_id)
        self._waits.stop(request_id)

    # --- what vLLM says --------------------------------------------------------------------------

    async def _receive(self, launched: Launched) -> None:
        while True:
            try:
                step = await launched.client.get_output_async()
                self.take(step.outputs, step.scheduler_stats)
            except Exception as error:  # noqa: BLE001 - of vLLM: nothing arrives any more
                said = f"vLLM failed: {type(error).__name__}: {error}"
                self.mailbox.fail(EngineError(f"{said}; the lines printed before say more"))
                return

    def take(self, step: Sequence[Any], stats: Any = None) -> None:
        """Take in all outputs of one step."""
        if stats is not None:
            self._waiting = stats.num_waiting_reqs + stats.num_skipped_waiting_reqs
        for name, error in self._notes.read().items():
            if (leg := self._leg(name)) is not None:
                self._end(leg, error)
        for output in step:
            self.retractions += sum(each.type == _PREEMPTED for each in output.events or ())
            leg = self._leg(output.request_id)
            if leg is None or leg.stage is not Stage.COMPUTED:
                if self._server is not None and output.kv_transfer_params:
                    self._release(output.request_id)  # it finished as it was dropped
                continue
            self._stepped = time.monotonic()
            if self._server is not None:
                self._prefilled(leg, output)
            else:
                self._generated(leg, output)
        self.mailbox.give()

    def _leg(self, name: str) -> Leg | None:
        number = requests.number(name)
        return None if number is None else self._legs.get(number)

    def _prefilled(self, leg: Leg, output: Any) -> None:
        """PREFILL: the only output of a request."""
        request, said = leg.request, output.kv_transfer_params
        if outputs.ending(output.finish_reason) is not Ending.LENGTH or not said:
            self._end(leg, EngineError("vLLM ended the request by itself"))
            return
        delta = self._delta(leg, output)
        delta.end = Ending.LENGTH
        leg.stage, leg.told = Stage.HELD, delta
        server = self._server
        assert server is not None
        self._handed[request.request_id] = leg.pages(self._running.page_size)
        held = Held(
            room=request.room,
            params=said,
            lease_ends=said.pop(requests.LEASE_ENDS),
            wait_seconds=request.park_seconds or self._seconds,
            first_token=delta.token_ids[0],
            logprobs=delta.logprobs,
            cached_tokens=delta.cached_tokens,
            tag=b"" if (tag := self._tag_of(request)) is None else tag.packed(),
            settle=partial(self._settled, leg),
            free=partial(self._freed, leg),
        )
        if request.park_seconds:
            self.parking.park(request)
            self._forget(leg)
            self.mailbox.put([delta])
        server.hold(held)

    def _settled(self, leg: Leg, result: pull_pb2.PullEnd | TandemError) -> None:
        """PREFILL: what decode said of a room at last, or why it says nothing."""
        if leg.request.park_seconds or leg.stage is not Stage.HELD:
            return
        if isinstance(result, TandemError):
            leg.stage = Stage.ENDING
            self._over(leg, result)
            return
        assert leg.told is not None
        leg.told.kv = KvTransfer(result.bytes, result.seconds, result.transport)
        self._forget(leg)
        self.mailbox.put([leg.told])

    def _freed(self, leg: Leg, read: bool) -> None:
        """PREFILL: nobody reads a prompt's pages any more."""
        self._handed.pop(leg.request.request_id, None)
        self.parking.free(leg.request.request_id)
        if not read:
            self._release(leg.name)

    def _release(self, name: str) -> None:
        """Have vLLM free pages that it keeps for decode."""
        launched = self._running
        self._releases += 1
        sampling = {"max_tokens": 1, "extra_args": {requests.TRANSFER: requests.releasing(name)}}
        made = launched.made(f"release-{self._releases}", [0], sampling, abort_immediately=True)
        self.tasks.start(_quietly(launched.client.add_request_async, made))

    def _generated(self, leg: Leg, output: Any) -> None:
        """DECODE and AGGREGATED: a step's tokens."""
        end = outputs.ending(output.finish_reason)
        if end is Ending.FAILED:
            failed = KvTransferError if leg.readable is not None else EngineError
            self._end(leg, failed("vLLM ended the request by itself"))
            return
        readable, leg.readable = leg.readable, None
        if readable is not None and time.monotonic() > readable.until:
            self._end(leg, KvTransferError("the KV was read after its lease"))
            return
        delta = self._delta(leg, output)
        if readable is not None:
            if delta.token_ids[0] != readable.ready.first_token:
                self._end(leg, EngineError("vLLM did not repeat the token of prefill"))
                return
            self._landed(leg, output, readable, delta)
        delta.end = end
        leg.generated += len(delta.token_ids)
        if end is not None:
            self._forget(leg)
        self.mailbox.put([delta])

    def _landed(self, leg: Leg, output: Any, readable: Readable, delta: Delta) -> None:
        """DECODE: the first token shows that the KV is there."""
        launched, client = self._running, self._client
        assert client is not None
        stats, ready = output.prefill_stats, readable.ready
        tokens = 0 if stats is None else stats.num_external_cached_tokens
        delta.kv = KvTransfer(
            -(-tokens // launched.page_size) * self._notes.page_bytes,
            time.monotonic() - leg.ordered,
            TRANSPORT,
        )
        delta.logprobs = outputs.first_logprobs(ready)
        delta.cached_tokens = ready.cached_tokens
        self._waits.stop(leg.request.request_id)
        client.end(
            pull_pb2.PullEnd(
                room=leg.request.room,
                bytes=delta.kv.bytes,
                seconds=delta.kv.seconds,
                transport=delta.kv.transport,
            )
        )

    def _delta(self, leg: Leg, output: Any) -> Delta:
        sampling, stats = leg.request.sampling, output.prefill_stats
        return Delta(
            leg.request.request_id,
            output.new_token_ids,
            logprobs=outputs.logprobs(output.new_logprobs, sampling.logprobs),
            cached_tokens=0 if stats is None else stats.num_local_cached_tokens,
            prompt_logprobs=outputs.prompt_logprobs(
                output.new_prompt_logprobs_tensors,
                leg.request.token_ids,
                sampling.prompt_logprobs,
            ),
        )


def _for_decode(error: TandemError) -> TandemError:
    """Why decode gets no KV: it was not decode's leg that was cancelled."""
    if not isinstance(error, CancelledError):
        return error
    return KvTransferError("the other phase was cancelled", phase=common_pb2.PHASE_PREFILL)


async def _quietly(send: Callable[[Any], Awaitable[object]], message: Any) -> None:
    """What is sent to a dead engine is lost: its death is told of elsewhere."""
    with contextlib.suppress(Exception):
        await send(message)
