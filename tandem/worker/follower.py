"""A worker's further nodes, where a model needs more accelerators than one machine has.

One process on each node, with the settings of the leader, is one worker. The leader alone serves
gRPC, runs hooks and is found by routers; a follower computes its share, and answers its machine's
probes. None of them lives without the others.
"""

from __future__ import annotations

import asyncio
import logging

from tandem import metrics, process, sockets
from tandem.admin import Admin
from tandem.engine import factory
from tandem.engine.base import Role
from tandem.errors import EngineError
from tandem.hooks.contract import Phase
from tandem.worker import startup
from tandem.worker.config import WorkerConfig
from tandem.worker.drain import SETTLE_SECONDS
from tandem.worker.start_metrics import StartCollector

log = logging.getLogger(__name__)
LEADER_CLOSE_SECONDS = SETTLE_SECONDS + 10.0
"""For the leader, after its drain time, to close its engine."""
LINGER_SECONDS = 30.0
"""After the leader has closed its engine, for SIGTERM. A rollout ends the leader first and then its
followers: one that exited between would be started again, and might join the next leader."""


class Follower:
    """One node that does not lead. `run` is its life."""

    def __init__(self, phase: Phase, config: WorkerConfig) -> None:
        """Loads logits processors, which every rank runs. Raises StartError."""
        self._phase: Phase = phase
        self._config = config
        startup.keep_transfer_local(config.host(phase))
        settings = startup.engine_settings(phase, config, startup.load_registry(config))
        self._engine = factory.follow(config.engine, Role(phase), settings)
        self._started = False
        self._following = False

    async def run(self, stop: asyncio.Event) -> None:
        """Until the leader has closed its engine. When a group ends, SIGTERM reaches all its nodes
        at once, and the leader still has sequences then: `stop` only bounds the wait for it, by the
        drain's time.

        Raises EngineError where a part of the engine dies, here or on another node.
        """
        registry = metrics.new_registry(f"{self._phase}_worker")
        registry.register(
            StartCollector(
                self._phase, model=self._config.model_name(), started=lambda: self._started
            )
        )
        admin = Admin(registry, ready=lambda: self._following, started=lambda: self._started)
        listen = self._config.metrics_address(self._phase)
        try:
            async with admin.serving(listen) as port:
                ranks = await startup.start_engine(
                    self._engine, name=self._config.engine, stop=stop
                )
                process.own_signals(stop)  # engines put in handlers of their own
                if ranks is None:
                    return
                self._started = self._following = True
                address = sockets.bound(listen, port)
                told = {"peer": self._config.leader, "count": ranks, "address": address}
                log.info("following", extra=told)
                await self._follow(stop)
                await self._engine.close()
                await self._linger(stop)
        finally:
            await self._engine.close()

    async def _follow(self, stop: asyncio.Event) -> None:
        patience = self._config.drain_seconds + LEADER_CLOSE_SECONDS
        async with asyncio.TaskGroup() as tasks:
            ended = tasks.create_task(self._ended())
            stopped = tasks.create_task(stop.wait())
            await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                log.info("draining: waiting for the leader", extra={"seconds": patience})
                await asyncio.wait({ended}, timeout=patience)
            for task in (ended, stopped):
                task.cancel()
        self._following = False
        if ended.cancelled():
            log.warning("the leader outlived its drain time")
        elif error := ended.result():
            raise error
        else:
            log.info("the leader has closed its engine")

    async def _linger(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            stopped = tasks.create_task(stop.wait())
            await asyncio.wait({stopped}, timeout=LINGER_SECONDS)
            stopped.cancel()

    async def _ended(self) -> EngineError | None:
        """As a value, so that the task group does not wrap it."""
        try:
            await self._engine.ended()
        except EngineError as error:
            return error
        return None
