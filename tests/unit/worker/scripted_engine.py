"""An engine that does only what its test says, one step at a time."""

from __future__ import annotations

from collections.abc import Callable

from tandem.engine.base import (
    Delta,
    Ending,
    EngineDescription,
    EngineFigures,
    EngineRequest,
    Step,
)
from tandem.engine.mailbox import Mailbox
from tandem.errors import EngineError, TandemError
from tandem.v1 import common_pb2, worker_pb2

LIMITS = worker_pb2.Limits(max_sequences=16, context_length=4096, vocabulary=2048)


class ScriptedEngine:
    """See tandem.engine.base.Engine. `submitted`, `cancelled`, `open`: what was asked of it."""

    def __init__(self, *, kv_endpoint: str = "") -> None:
        self.description = EngineDescription(
            fingerprint=common_pb2.Fingerprint(model="tandem-tiny", engine="scripted"),
            limits=LIMITS,
            kv_endpoint=kv_endpoint,
            eos_token_ids=frozenset({1}),
        )
        self.submitted: list[EngineRequest] = []
        self.cancelled: list[int] = []
        self.open: set[int] = set()
        self.refuse: TandemError | None = None
        self.closed = False
        self._mailbox = Mailbox()

    async def start(self) -> EngineDescription:
        return self.description

    def submit(self, request: EngineRequest) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.submitted.append(request)
        self.open.add(request.request_id)

    def cancel(self, request_id: int) -> None:
        self.cancelled.append(request_id)

    def note(self, step: Step) -> Step:
        """Forget what the step ends."""
        self.open -= {delta.request_id for delta in step if delta.end is not None}
        return step

    def give(self, *deltas: Delta) -> None:
        """For whoever takes the steps."""
        self._mailbox.put(self.note(deltas))

    def settle(self) -> Step:
        """What an engine says after `cancel`: each of them has ended."""
        ended = [number for number in self.cancelled if number in self.open]
        return self.note([Delta(number, (), Ending.CANCELLED) for number in ended])

    def die(self, error: EngineError) -> None:
        self._mailbox.fail(error)

    async def hand_on(self, take: Callable[[Step], object]) -> None:
        await self._mailbox.hand_on(take)

    def load(self) -> worker_pb2.Load:
        return worker_pb2.Load(open_legs=len(self.open), kv_tokens_total=1000)

    def figures(self) -> EngineFigures:
        return EngineFigures()

    async def close(self) -> None:
        self.closed = True
        self._mailbox.close()
