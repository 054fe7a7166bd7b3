"""An SGLang engine that another process of the worker has started, and requests of this one in it.

SGLang is imported here when the engine is started, and its tokenizer manager made. There are no
schedulers of its own, nothing to warm up, and nothing to stop.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

from tandem.engine.base import (
    EngineDescription,
    EngineFigures,
    EngineSettings,
    Role,
)
from tandem.errors import StartError
from tandem_sglang.launch import Launched
from tandem_sglang.setup import Setup
from tandem_sglang.sharing import Ticket
from tandem_sglang.traffic import Traffic


class SglangJoined(Traffic):
    """See tandem.engine.base.JoinedEngine, which this is for SGLang."""

    def __init__(self, role: Role, settings: EngineSettings, ticket: Awaitable[bytes]) -> None:
        """`settings`: those of the engine. Raises as SglangEngine does."""
        self._setup = Setup(role, settings)
        super().__init__(
            role, self._setup.processors, self._setup.parallel.data, settings.token_processes
        )
        self._ticket = ticket
        self._closed = False

    async def start(self) -> EngineDescription:
        """Waits for its ticket. Raises StartError where SGLang refuses what it says."""
        self._setup.export()
        # What takes long is done meanwhile.
        await asyncio.to_thread(_import_sglang)
        ticket = await self._ticket
        try:
            begins, launched = await asyncio.to_thread(_join, ticket)
        except Exception as error:
            raise StartError(
                f"SGLang cannot be joined ({type(error).__name__}: {error})"
            ) from error
        bounds = self._setup.bounds(launched)
        self.begin(launched, bounds, begins=begins)
        return self._setup.describe(launched, bounds)

    def figures(self) -> EngineFigures:
        """What the engine says of itself, its first process tells."""
        return EngineFigures(retractions=self.retractions)

    def lost(self, reason: str) -> None:
        self.die(reason)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await super().close()
        self._setup.close()
        if self._launched is not None:
            self._launched.close_sockets()


def _import_sglang() -> None:
    logging.getLogger("sglang").setLevel(logging.ERROR)
    from sglang.srt.managers import tokenizer_manager  # noqa: F401
    from sglang.srt.plugins import load_plugins

    load_plugins()


def _join(pickled: bytes) -> tuple[str, Launched]:
    """How names of requests begin, and the engine."""
    from sglang.srt.managers import io_struct
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.runtime_context import publish

    ticket: Ticket = pickle.loads(pickled)
    publish(ticket.server_args, role="tokenizer")
    manager: Any = TokenizerManager(
        ticket.server_args, ticket.port_args, start_pd_bootstrap_service=False
    )
    manager.max_req_input_len = ticket.max_req_input_len
    return ticket.begins, replace(ticket.launched, manager=manager, messages=io_struct)
