"""What a worker does with deferred hooks: opens sequences, submits Works, collects Rulings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psutil

from tandem.hooks.deferred import DeferredHooks, Ruling, SequenceInfo, Work
from tandem.hooks.piece import Piece
from tandem.hooks.runner.processes.pool import HookPool
from tandem.hooks.settings import HookEntry, HookSettings
from tandem.pool.kept import KeepLimits

WAIT_SECONDS = 60.0


def settings(*names: str, workers: int = 0, memory_mb: int = 0, **entry: Any) -> HookSettings:
    """A chain of classes of pooled_hooks."""
    chain = tuple(
        HookEntry(path=f"pooled_hooks:{name}", name=f"{name}-{place}", **entry)
        for place, name in enumerate(names)
    )
    return HookSettings(chain=chain, workers=workers, memory_mb=memory_mb)


def pool_processes() -> list[psutil.Process]:
    """Those that this process started itself; stacks of other tests have their own."""
    return [
        child
        for child in psutil.Process().children()
        if "tandem.hooks.runner.processes.process" in child.cmdline()
    ]


def work(request_id: int, text: str, *token_ids: int, final: bool = False) -> Work:
    extras = [f"logprob of {token_id}" for token_id in token_ids]
    return Work(request_id, Piece(text, token_ids, extras), final)


class Rulings:
    """Opens sequences at `hooks`, and keeps what `deliver` brings."""

    def __init__(self, hooks: DeferredHooks) -> None:
        self.hooks = hooks
        self.deliveries: list[list[Ruling]] = []
        self._came = asyncio.Event()

    def deliver(self, rulings: Sequence[Ruling]) -> None:
        self.deliveries.append(list(rulings))
        self._came.set()

    def open(self, *request_ids: int, group: Hashable = None) -> None:
        """Sequences of one request, or each of its own."""
        for place, request_id in enumerate(request_ids):
            self.hooks.open(
                SequenceInfo(
                    request_id=request_id,
                    group=("of", request_id) if group is None else group,
                    output_index=place if group is not None else 0,
                    streaming=True,
                    trace_id=f"trace {request_id}",
                    tenant=f"key {request_id}",
                )
            )

    @property
    def all(self) -> list[Ruling]:
        return [ruling for delivery in self.deliveries for ruling in delivery]

    def of(self, request_id: int) -> list[Ruling]:
        return [ruling for ruling in self.all if ruling.request_id == request_id]

    def texts(self, request_id: int) -> list[str | None]:
        return [ruling.piece.text if ruling.piece else None for ruling in self.of(request_id)]

    async def until(self, count: int) -> list[Ruling]:
        """All Rulings, once there are `count`."""
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.all) < count:
                self._came.clear()
                await self._came.wait()
        assert len(self.all) == count
        return self.all

    async def ask(self, works: Iterable[Work]) -> list[Ruling]:
        """Submit together; what came back."""
        given = list(works)
        before = len(self.all)
        self.hooks.submit(given)
        return (await self.until(before + len(given)))[before:]


@asynccontextmanager
async def pooled(given: HookSettings, **limits: float) -> AsyncIterator[tuple[HookPool, Rulings]]:
    """A pool that runs, of which no process is left afterwards."""
    pool = HookPool(given, phase="decode", model="m", limits=KeepLimits(**limits))
    rulings = Rulings(pool)
    await asyncio.wait_for(pool.start(rulings.deliver), WAIT_SECONDS)
    try:
        yield pool, rulings
    finally:
        await asyncio.wait_for(pool.close(), WAIT_SECONDS)
        assert not pool_processes()


async def until(condition: Callable[[], bool]) -> None:
    """What a process does in its own time, and nobody is called about."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
