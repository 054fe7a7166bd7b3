"""An engine behind the check of forms: a request whose answer must have a form is given to the
engine once the form was compiled where it could be killed, and never if it was not.

Requests without a form do not wait: they pass at once. To everybody else this is the engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from tandem.engine.base import (
    Delta,
    Ending,
    Engine,
    EngineDescription,
    EngineFigures,
    EngineRequest,
    Step,
)
from tandem.errors import EngineError, InternalError, RequestError, TandemError
from tandem.logits.forms.workshop import Uncompiled, Workshop
from tandem.logits.registry import Registry
from tandem.logits.spec import PARAM, LogitsProcessorEntry, LogitsProcessorSpec
from tandem.v1 import common_pb2, worker_pb2

_LEAST_SECONDS = 0.001


class FormedEngine:
    """Implements Engine. What it has to say of requests that wait comes by `deliver`, and not in
    `steps`, so that the engine's own steps pass untouched.
    """

    def __init__(
        self,
        engine: Engine,
        registry: Registry,
        workshop: Workshop,
        deliver: Callable[[Step], None],
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._workshop = workshop
        self._deliver = deliver
        self._waiting: dict[int, asyncio.Task[None]] = {}

    async def start(self) -> EngineDescription:
        # Both take long; and whoever is ready must not let the first form wait for a process.
        self._workshop.start()
        description = await self._engine.start()
        await self._workshop.started()
        return description

    def submit(self, request: EngineRequest) -> None:
        """Raises RequestError where the request can never run, as far as that is known yet."""
        spec = request.logits
        places = [] if spec is None else self._registry.form_places(spec)
        if not places or spec is None:
            self._engine.submit(request)
            return
        known = {place: self._known(spec, place) for place in places}
        ready = {place: form for place, form in known.items() if form is not None}
        if len(ready) == len(places):
            self._engine.submit(_with(request, spec, ready))
            return
        task = asyncio.get_running_loop().create_task(self._submit_later(request, spec, places))
        self._waiting[request.request_id] = task

    def cancel(self, request_id: int) -> None:
        task = self._waiting.pop(request_id, None)
        if task is None:
            self._engine.cancel(request_id)
        else:
            task.cancel()
            self._deliver([Delta(request_id, (), Ending.CANCELLED)])

    async def hand_on(self, take: Callable[[Step], object]) -> None:
        await self._engine.hand_on(take)

    def load(self) -> worker_pb2.Load:
        load = self._engine.load()
        load.open_legs += len(self._waiting)
        load.waiting_legs += len(self._waiting)
        return load

    def figures(self) -> EngineFigures:
        return self._engine.figures()

    async def close(self) -> None:
        for task in self._waiting.values():
            task.cancel()
        self._waiting.clear()
        await self._workshop.close()
        await self._engine.close()

    async def _submit_later(
        self, request: EngineRequest, spec: LogitsProcessorSpec, places: Sequence[int]
    ) -> None:
        began = time.monotonic()
        try:
            ready = {place: await self._compiled(spec, place, request.tenant) for place in places}
            took = time.monotonic() - began
            left = request.timeout_seconds - took
            formed = _with(request, spec, ready)
            self._engine.submit(structs.replace(formed, timeout_seconds=max(left, _LEAST_SECONDS)))
            times = common_pb2.EngineTimes(form=took)
            self._deliver([Delta(request.request_id, (), times=times)])
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this request alone
            self._deliver([_failed(request.request_id, error)])
        finally:
            self._waiting.pop(request.request_id, None)

    def _known(self, spec: LogitsProcessorSpec, place: int) -> Uncompiled | None:
        try:
            return self._workshop.known(_key(spec, place))
        except TandemError as error:
            raise _at(place, error) from error

    async def _compiled(self, spec: LogitsProcessorSpec, place: int, tenant: str) -> Uncompiled:
        try:
            return await self._workshop.compiled(
                _key(spec, place), lambda: self._registry.form(spec, place), tenant
            )
        except TandemError as error:
            raise _at(place, error) from error


def _key(spec: LogitsProcessorSpec, place: int) -> str:
    entry = spec.entries[place]
    assert isinstance(entry, LogitsProcessorEntry)
    return entry.key


def _with(
    request: EngineRequest, spec: LogitsProcessorSpec, ready: Mapping[int, Uncompiled]
) -> EngineRequest:
    """The request with its compiled forms."""
    entries = list(spec.entries)
    for place, form in ready.items():
        entry = entries[place]
        assert isinstance(entry, LogitsProcessorEntry)
        entries[place] = replace(entry, ready=form)
    return structs.replace(request, logits=replace(spec, entries=tuple(entries)))


def _at(place: int, error: TandemError) -> TandemError:
    """An error of its own, because several requests may wait for one form."""
    return type(error)(error.message, param=f"{PARAM}[{place}]")


def _failed(request_id: int, error: Exception) -> Delta:
    ours = error if isinstance(error, TandemError) else EngineError("the engine cannot take this")
    ours.__cause__ = ours.__cause__ if ours is error else error
    retryable = not isinstance(ours, RequestError | InternalError)
    return Delta(request_id, (), Ending.FAILED, error=ours, retryable=retryable)
