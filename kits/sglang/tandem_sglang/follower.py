"""The ranks of an SGLang engine on a node that follows another. They take their work from the
leader's, over SGLang's own process group, and nothing else here touches a request.
"""

from __future__ import annotations

import asyncio
import signal

from tandem.engine.base import EngineSettings, Role
from tandem.errors import EngineError, StartError
from tandem_sglang.launch import Launched, SglangThread
from tandem_sglang.ports import Ports
from tandem_sglang.setup import Setup

_REPORT_SECONDS = 0.2
"""A scheduler reports before it exits, but its report may be seen after its exit."""


class SglangFollower:
    """See tandem.engine.base.EngineFollower.

    A scheduler that loses the leader, or another rank, raises, and reports it by SIGQUIT, which is
    this engine's while it runs. One that the leader dismisses exits with 0.
    """

    def __init__(self, role: Role, settings: EngineSettings) -> None:
        """Takes the settings of SglangEngine, the same but for `host` and the rank in `nodes`."""
        self._setup = Setup(role, settings)
        self._over = asyncio.Event()
        self._which = ""
        """What is known of a reported failure."""
        self._closed = False
        self._thread: SglangThread | None = None
        self._launched: Launched | None = None

    async def start(self) -> int:
        """Takes tens of seconds, and as long as the leader does."""
        self._thread, _ = self._setup.thread(Ports())
        asyncio.get_running_loop().add_signal_handler(signal.SIGQUIT, self._on_report, self._thread)
        try:
            self._launched = await self._thread.start()
        except StartError:
            await self.close()
            raise
        loop = asyncio.get_running_loop()
        for scheduler in self._launched.schedulers:
            loop.add_reader(scheduler.sentinel, self._over.set)
        return len(self._launched.schedulers)

    async def ended(self) -> None:
        assert self._launched is not None, "ended before start"
        await self._over.wait()
        self._unwatch()
        await asyncio.sleep(_REPORT_SECONDS)
        if self._which or any(each.exitcode for each in self._launched.schedulers):
            raise EngineError(
                f"SGLang failed: {self._which or 'a rank here or on another node ended'}; the"
                " lines printed before say more"
            )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._unwatch()
        if self._thread is not None:
            await self._thread.stop()
            asyncio.get_running_loop().remove_signal_handler(signal.SIGQUIT)

    def _on_report(self, thread: SglangThread) -> None:
        self._which = thread.failed()
        self._over.set()

    def _unwatch(self) -> None:
        """A pipe that has ended stays readable, and would wake the loop for ever."""
        for scheduler in self._launched.schedulers if self._launched else ():
            asyncio.get_running_loop().remove_reader(scheduler.sentinel)
