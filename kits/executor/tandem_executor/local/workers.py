"""The workers of an executor's stack, on the event loop on which they are started."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

import tandem_decode_worker.rules
import tandem_prefill_worker.rules
from tandem.engine import factory
from tandem.engine.base import Engine, EngineSettings, Role
from tandem.engine.faces import TwoFacedEngine
from tandem.errors import EngineError
from tandem.hooks.classifiers.classifier_set import ClassifierSet
from tandem.hooks.contract import Phase
from tandem.logits.tap import LogitsTap
from tandem.text.tokenizer import Tokenizer
from tandem.worker import startup
from tandem.worker.config import WorkerConfig
from tandem.worker.phase import LoadPhase, PhaseParts
from tandem.worker.server import MakeEngine, WorkerServer
from tandem_executor.live import LiveCode

log = logging.getLogger(__name__)


@asynccontextmanager
async def serving(
    configs: Mapping[Phase, WorkerConfig],
    *,
    aggregated: bool,
    register: Callable[[ClassifierSet], object],
    parks: Callable[[], bool],
    live: LiveCode | None = None,
) -> AsyncIterator[asyncio.Future[EngineError]]:
    """The workers of these phases serve within the block. Yields what is done once an engine has
    died. `aggregated`: they share one engine. `register`: is given decode's classifiers, to which
    the program may add. `parks`: whether a context-only request may run now. `live`: what the
    program has of engines in its own process.

    Raises StartError.
    """
    stop = asyncio.Event()  # never set: there is nothing to drain once their router has gone
    died: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
    create: MakeEngine = partial(_create, None if live is None else live.tap)
    load: Mapping[Phase, LoadPhase] = {
        "prefill": partial(_load_prefill, parks),
        "decode": partial(tandem_decode_worker.rules.load_phase, register=register),
    }
    if aggregated:
        create = TwoFacedEngine(create).face
    async with AsyncExitStack() as closing:
        workers = []
        for phase, config in configs.items():
            registry = startup.load_registry(config)
            if live is not None:
                live.register(registry)
            worker = WorkerServer(
                phase, config, load[phase], registry=registry, create=create, with_admin=False
            )
            closing.push_async_callback(worker.close)
            workers.append(worker)
        for worker in workers:
            await worker.start(stop)
        tasks = [
            asyncio.get_running_loop().create_task(_serve(each, stop, died)) for each in workers
        ]
        try:
            yield died
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


def _load_prefill(
    parks: Callable[[], bool], config: WorkerConfig, tokenizer: Tokenizer
) -> PhaseParts:
    return replace(tandem_prefill_worker.rules.load_phase(config, tokenizer), parks=parks)


def _create(
    tap: LogitsTap | None, name: factory.EngineName, role: Role, settings: EngineSettings
) -> Engine:
    return factory.create(name, role, replace(settings, tap=tap))


async def _serve(
    worker: WorkerServer, stop: asyncio.Event, died: asyncio.Future[EngineError]
) -> None:
    try:
        await worker.serve(stop)
    except EngineError as error:
        death = error
    except Exception:
        log.exception("a worker has failed")
        death = EngineError("a worker has failed; see the log")
    if not died.done():
        died.set_result(death)
