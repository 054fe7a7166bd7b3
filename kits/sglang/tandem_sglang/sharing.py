"""How further processes of a worker have requests in the SGLang engine that the first one started.

Each has a tokenizer manager of its own, made from the arguments that SGLang resolved for the
first's, and the sockets of token_sockets.py. SGLang's own way (`tokenizer_worker_num`) has a
process between, through which all tokens go.
"""

from __future__ import annotations

import asyncio
import copy
import pickle
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tandem.tasks import Tasks
from tandem_sglang import requests
from tandem_sglang.additions import TokenAddresses
from tandem_sglang.launch import Launched
from tandem_sglang.request_stream import ABANDON_SECONDS, ABORT_AGAIN_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What a process joins with."""

    begins: str
    """How the names of its requests begin."""
    server_args: Any
    """SGLang's ServerArgs, resolved."""
    port_args: Any
    """The engine's PortArgs, with this process's sockets."""
    max_req_input_len: int
    launched: Launched
    """Without what is the first process's alone."""


class SharedEngine:
    """See tandem.engine.base.Sharing. Made before the engine is started, and closed after it."""

    def __init__(self, processes: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tandem-"))  # for nobody else on this machine
        self._starts = dict.fromkeys(range(2, processes + 1), 0)
        self._launched: Launched | None = None
        self._aborts = Tasks()

    @property
    def addresses(self) -> tuple[TokenAddresses, ...]:
        """The addresses of the processes from the second."""
        return tuple(map(self._addresses, self._starts))

    def _addresses(self, process: int) -> TokenAddresses:
        begin = f"ipc://{self._folder}/{process}"
        return TokenAddresses(requests=f"{begin}-requests", outputs=f"{begin}-outputs")

    def opened(self, launched: Launched) -> None:
        """The engine has started: others may join."""
        self._launched = launched

    def ticket(self, process: int) -> bytes:
        launched = self._running()
        self._starts[process] += 1
        addresses = self._addresses(process)
        port_args = copy.copy(launched.engine.port_args)
        port_args.tokenizer_ipc_name = addresses.outputs
        port_args.scheduler_input_ipc_name = addresses.requests
        ticket = Ticket(
            begins=self._begins(process),
            server_args=launched.engine.server_args,
            port_args=port_args,
            max_req_input_len=launched.manager.max_req_input_len,
            launched=replace(launched, engine=None, schedulers=(), manager=None, messages=None),
        )
        return pickle.dumps(ticket)

    def left(self, process: int) -> None:
        """SGLang aborts all that have names that begin so. As with one request, an abort can miss
        some that move from one queue to another: it is repeated for a time.
        """
        self._aborts.start(self._abort(self._begins(process)))

    async def close(self) -> None:
        await self._aborts.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _abort(self, begins: str) -> None:
        launched = self._running()
        for _ in range(round(ABANDON_SECONDS / ABORT_AGAIN_SECONDS)):
            launched.manager._dispatch_to_scheduler(launched.messages.AbortReq(rid=begins))
            await asyncio.sleep(ABORT_AGAIN_SECONDS)

    def _begins(self, process: int) -> str:
        return requests.names(process, self._starts[process])

    def _running(self) -> Launched:
        assert self._launched is not None, "nobody joins before the engine has started"
        return self._launched
