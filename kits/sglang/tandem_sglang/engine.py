"""SGLang behind the engine protocol, in either phase or with both in one process.

Here it is started, warmed up, watched and stopped; its requests are in traffic.py.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tandem.engine.base import (
    EngineDescription,
    EngineFigures,
    EngineSettings,
    Role,
)
from tandem.errors import EngineError, StartError
from tandem_sglang.launch import Launched, SglangThread
from tandem_sglang.ports import Ports
from tandem_sglang.setup import Setup
from tandem_sglang.sharing import SharedEngine
from tandem_sglang.traffic import Traffic
from tandem_sglang.validation import EngineBounds

log = logging.getLogger(__name__)


class SglangEngine(Traffic):
    """See tandem.engine.base.Engine.

    SIGTERM and SIGINT stay the worker's: none of SGLang's handlers is ever installed. SIGQUIT, by
    which SGLang's processes report that one of them died, is the engine's while it runs and ends
    `hand_on` with EngineError, within about a second.
    """

    def __init__(self, role: Role, settings: EngineSettings) -> None:
        """The process is the leader of `settings.nodes`.

        Raises ConfigError for options that are unknown or impossible, StartError for logits
        processors that could not run.
        """
        self._settings = settings
        self._setup = Setup(role, settings)
        super().__init__(
            role, self._setup.processors, self._setup.parallel.data, settings.token_processes
        )
        self._sharing: SharedEngine | None = None
        self._closed = False
        self._thread: SglangThread | None = None
        self._states: Any = None

    async def start(self) -> EngineDescription:
        """Takes tens of seconds, while the loop runs on. Raises StartError, saying what to do."""
        with ExitStack() as held:
            return await self._start(self._setup.ports(held))

    async def _start(self, ports: Ports) -> EngineDescription:
        endpoint = self._setup.endpoint(ports)
        if self._settings.token_processes > 1:
            self._sharing = SharedEngine(self._settings.token_processes)
        self._thread, self._states = self._setup.thread(
            ports,
            further=self._sharing.addresses if self._sharing else (),
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGQUIT, self._on_report, self._thread)
        if self._setup.cache is not None:
            self.tasks.start(self._setup.cache.follow())
        try:
            launched = self._launched = await self._thread.start()
            bounds = self._setup.bounds(launched)
            self.begin(launched, bounds, endpoint=endpoint)
            if otherwise := await self._warm_up(launched, bounds):
                launched = self._launched = self._thread.withdraw(launched, otherwise)
                bounds = self._bounds = self._setup.bounds(launched)
            description = self._setup.describe(launched, bounds, endpoint)
        except StartError:
            await self.close()
            raise
        launched.freeze_schedulers()
        if not self.ranks():
            log.warning("SGLang's schedulers do not report their load: the load is estimated")
        if self._sharing is not None:
            self._sharing.opened(launched)
        return replace(description, sharing=self._sharing)

    async def _warm_up(self, launched: Launched, bounds: EngineBounds) -> dict[str, str]:
        """See warm_up.run. Raises StartError, also where SGLang fails meanwhile."""
        warming = self.tasks.start(self._setup.warm_up(launched, bounds))
        # No request of anybody's is open yet, so that all it tells is that SGLang has failed.
        failing = asyncio.get_running_loop().create_task(self.hand_on(lambda step: None))
        try:
            await asyncio.wait({warming, failing}, return_when=asyncio.FIRST_COMPLETED)
            # What `close` ends is over in any order: either of the two first, or both at once.
            if warming.cancelled() or not warming.done():
                if failing.done():
                    failing.result()
                raise StartError("SGLang was closed while it started")
        except EngineError as error:
            raise StartError(str(error)) from error
        finally:
            failing.cancel()
        return warming.result()

    def figures(self) -> EngineFigures:
        """The logits states are those in the scheduler's memory."""
        return EngineFigures(
            logits_states=0 if self._states is None else sum(self._states),
            retractions=self.retractions,
            ranks=self.ranks(),
            units=() if self._launched is None else self._launched.units,
        )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await super().close()
        self._setup.close()
        if self._sharing is not None:
            await self._sharing.close()
        if self._launched is not None and self._settings.nodes.count > 1:
            await self._launched.dismiss_schedulers()
        if self._thread is not None:
            await self._thread.stop()
            asyncio.get_running_loop().remove_signal_handler(signal.SIGQUIT)

    def _on_report(self, thread: SglangThread) -> None:
        self.die(thread.failed())
