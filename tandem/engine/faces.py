"""One aggregated engine behind the seam of two: a prefill face and a decode face, for two workers
of one process.

Both legs of a sequence become one request of the engine, joined by their room. Its first token ends
the prefill leg; the decode leg goes on with the same request, and no KV moves. So workers, hooks,
verdicts and request ids are those of a pair, and so is their code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from msgspec import structs

from tandem.engine.base import (
    Delta,
    Ending,
    Engine,
    EngineDescription,
    EngineFigures,
    EngineRequest,
    EngineSettings,
    Logprobs,
    Role,
    Step,
)
from tandem.engine.factory import EngineName
from tandem.engine.mailbox import Mailbox
from tandem.errors import (
    DeadlineError,
    EngineError,
    InvalidRequestError,
    KvTransferError,
    TandemError,
)
from tandem.ids import counter
from tandem.v1 import worker_pb2

ENDPOINT = "aggregated"
"""Where decode is told that its prefill engine is: in the same process."""

Make = Callable[[EngineName, Role, EngineSettings], Engine]


@dataclass(slots=True, eq=False)
class _Joined:
    """The legs of one sequence that are open, by the role of their face."""

    room: int
    legs: dict[Role, EngineRequest] = field(default_factory=dict)
    engine_id: int = 0
    """The engine's request; 0: it has none yet, because a leg is missing."""
    cancelled: set[Role] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None
    """Ends the leg that waits for the other."""


class Face:
    """The engine as the worker of one phase knows it. Implements Engine."""

    def __init__(self, engine: TwoFacedEngine, role: Role) -> None:
        self.mailbox = Mailbox()
        self._engine = engine
        self._role = role

    async def start(self) -> EngineDescription:
        description = await self._engine.start()
        endpoint = ENDPOINT if self._role is Role.PREFILL else ""
        prefixes = description.prefixes if self._role is Role.PREFILL else None
        return replace(description, kv_endpoint=endpoint, prefixes=prefixes)

    def submit(self, request: EngineRequest) -> None:
        """Raises RequestError, for either leg once both are there."""
        self._engine.join(self._role, request)

    def cancel(self, request_id: int) -> None:
        self._engine.cancel(self._role, request_id)

    async def hand_on(self, take: Callable[[Step], object]) -> None:
        await self.mailbox.hand_on(take)

    def load(self) -> worker_pb2.Load:
        """The load of the whole engine: whichever phase it computes, the other waits."""
        return self._engine.whole.load()

    def figures(self) -> EngineFigures:
        """Decode tells those of the engine, so that a sum over both counts nothing twice."""
        return self._engine.whole.figures() if self._role is Role.DECODE else EngineFigures()

    async def close(self) -> None:
        """Closes the engine: neither face can go on alone."""
        await self._engine.close()


class TwoFacedEngine:
    """An engine of the aggregated role, made by `make` from the settings of its first face. Both
    faces live on one event loop.
    """

    def __init__(self, make: Make) -> None:
        self._make = make
        self._whole: Engine | None = None
        self._faces: dict[Role, Face] = {}
        self._starting: asyncio.Task[EngineDescription] | None = None
        self._following: asyncio.Task[None] | None = None
        self._rooms: dict[int, _Joined] = {}
        self._legs: dict[tuple[Role, int], _Joined] = {}
        self._running: dict[int, _Joined] = {}
        """By the engine's request."""
        self._next_id = counter()

    @property
    def whole(self) -> Engine:
        """The engine itself, of both phases."""
        assert self._whole is not None, "a face is made first"
        return self._whole

    def face(self, name: EngineName, role: Role, settings: EngineSettings) -> Face:
        """Make the face of a role, as `tandem.engine.factory.create` makes an engine."""
        if self._whole is None:
            self._whole = self._make(name, Role.AGGREGATED, settings)
        face = self._faces[role] = Face(self, role)
        return face

    async def start(self) -> EngineDescription:
        """Start the engine, once for both faces. Raises StartError."""
        loop = asyncio.get_running_loop()
        if self._starting is None:
            self._starting = loop.create_task(self.whole.start())
        description = await asyncio.shield(self._starting)
        if self._following is None:
            self._following = loop.create_task(self._follow())
        return description

    async def close(self) -> None:
        """Stop and free everything. What is open ends as cancelled."""
        for task in (self._starting, self._following):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
                await asyncio.wait([task])
        if self._whole is not None:
            await self._whole.close()
        for joined in list(self._rooms.values()):
            self._end(joined, Ending.CANCELLED)
        for face in self._faces.values():
            face.mailbox.close()

    # --- legs ------------------------------------------------------------------------------------

    def join(self, role: Role, request: EngineRequest) -> None:
        """Take a leg; with the second one the engine begins. Raises RequestError."""
        joined = self._rooms.get(request.room)
        if request.room == 0 or (joined is not None and (joined.engine_id or role in joined.legs)):
            raise InvalidRequestError("the request or its room is open already", param="room")
        if joined is None:
            joined = self._rooms[request.room] = _Joined(request.room)
        joined.legs[role] = request
        self._legs[role, request.request_id] = joined
        if len(joined.legs) < len(self._faces):
            joined.timer = asyncio.get_running_loop().call_later(
                request.timeout_seconds, self._expire, joined
            )
            return
        try:
            self._begin(joined)
        except TandemError as error:
            self._drop(joined, role)  # it is told by what is raised
            self._end(joined, Ending.FAILED, error)
            raise

    def cancel(self, role: Role, request_id: int) -> None:
        """End a leg, and so the other one, which would wait in vain."""
        joined = self._legs.get((role, request_id))
        if joined is None:
            return
        joined.cancelled.add(role)
        if joined.engine_id:
            self.whole.cancel(joined.engine_id)
        else:
            self._end(joined, Ending.CANCELLED)

    def _begin(self, joined: _Joined) -> None:
        """What decode is to apply holds for all of the output."""
        engine_id = self._next_id()
        seconds = min(leg.timeout_seconds for leg in joined.legs.values())
        decode = joined.legs[Role.DECODE]
        self.whole.submit(
            structs.replace(
                decode, request_id=engine_id, room=0, kv_peer="", timeout_seconds=seconds
            )
        )
        if joined.timer is not None:
            joined.timer.cancel()  # from now on the engine keeps the time
        joined.engine_id = engine_id
        self._running[engine_id] = joined

    def _expire(self, joined: _Joined) -> None:
        self._end(joined, Ending.FAILED, DeadlineError("the request's time ran out"))

    # --- what the engine brings ------------------------------------------------------------------

    async def _follow(self) -> None:
        try:
            await self.whole.hand_on(self._take)
            error = EngineError("the engine stopped by itself")
        except EngineError as death:
            error = death
        for face in self._faces.values():
            face.mailbox.fail(error)

    def _take(self, step: Step) -> None:
        """Give a step to both faces: prefill its first tokens, decode all."""
        firsts: list[Delta] = []
        everything: list[Delta] = []
        for delta in step:
            joined = self._running.get(delta.request_id)
            if joined is None:
                continue
            if delta.end is Ending.CANCELLED or delta.end is Ending.FAILED:
                self._end(joined, delta.end, delta.error, retryable=delta.retryable)
                continue
            prefill = joined.legs.get(Role.PREFILL)
            if prefill is not None and (delta.token_ids or delta.end):
                firsts.append(_first_of(delta, prefill.request_id))
                self._drop(joined, Role.PREFILL)
            delta.request_id = joined.legs[Role.DECODE].request_id
            delta.prompt_logprobs = delta.times = None  # prefill's to show
            everything.append(delta)
            if delta.end is not None:
                self._drop(joined, Role.DECODE)
        for role, deltas in ((Role.PREFILL, firsts), (Role.DECODE, everything)):
            if deltas:
                self._faces[role].mailbox.give(deltas)

    def _end(
        self,
        joined: _Joined,
        end: Ending,
        error: TandemError | None = None,
        *,
        retryable: bool = False,
    ) -> None:
        """End the legs that are left. Where one was cancelled, the other fails as in a pair."""
        for role, leg in list(joined.legs.items()):
            delta = Delta(leg.request_id, (), end, error=error, retryable=retryable)
            if end is Ending.CANCELLED and joined.cancelled and role not in joined.cancelled:
                delta.end, delta.retryable = Ending.FAILED, True
                delta.error = KvTransferError("the other phase was cancelled")
            self._drop(joined, role)
            self._faces[role].mailbox.put([delta])

    def _drop(self, joined: _Joined, role: Role) -> None:
        """A leg is over; with the last one the room is free."""
        del self._legs[role, joined.legs.pop(role).request_id]
        if not joined.legs:
            del self._rooms[joined.room]
            self._running.pop(joined.engine_id, None)
        if joined.timer is not None:
            joined.timer.cancel()


def _first_of(delta: Delta, request_id: int) -> Delta:
    """What prefill says of a request's first delta: one token, and that its part is done."""
    logprobs = delta.logprobs
    if logprobs is not None:
        logprobs = Logprobs(chosen=logprobs.chosen[:1], top=logprobs.top[:1])
    return Delta(
        request_id,
        delta.token_ids[:1],
        Ending.LENGTH,
        logprobs=logprobs,
        cached_tokens=delta.cached_tokens,
        prompt_logprobs=delta.prompt_logprobs,
        times=delta.times,
    )
