"""The engine's memory and its end of the KV transfer, by role."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tandem.engine.base import EngineSettings, Role
from tandem_sim.kv_transfer.memory import Memory, new_memory
from tandem_sim.kv_transfer.receiver import KvReceiver
from tandem_sim.kv_transfer.sender import Sender
from tandem_sim.options import SimOptions


class Handover:
    """`pages` is the KV memory: uint8, shape (page_count, page_size * kv_bytes_per_token).

    PREFILL has a `sender`, DECODE a `receiver`; AGGREGATED has neither, and no memory that
    others reach.
    """

    def __init__(
        self,
        role: Role,
        options: SimOptions,
        *,
        page_count: int,
        free: Callable[[Sequence[int]], None],
        on_crash: Callable[[BaseException], None],
        settings: EngineSettings,
    ) -> None:
        """`settings`: for what the phases say to each other; the pages travel beside it.

        Raises StartError where the memory cannot be had.
        """
        self._options = options
        self._memory: Memory | None = None
        self._sender: Sender | None = None
        self._receiver: KvReceiver | None = None
        page_bytes = options.page_size * options.kv_bytes_per_token
        if role is Role.AGGREGATED:
            self.pages: Any = np.zeros((page_count, page_bytes), dtype=np.uint8)
            return
        name = f"tandem-{role.value}-{secrets.token_hex(8)}"
        self._memory = new_memory(name=name, page_count=page_count, page_bytes=page_bytes)
        self.pages = self._memory.pages
        token_bytes = options.kv_bytes_per_token
        if role is Role.PREFILL:
            self._sender = Sender(
                self._memory,
                token_bytes=token_bytes,
                on_crash=on_crash,
                tls=settings.tls,
                limits=settings.connection_limits,
                budget=settings.budget,
            )
        else:
            self._receiver = KvReceiver(
                self._memory,
                token_bytes=token_bytes,
                free=free,
                on_crash=on_crash,
                tls=settings.tls,
            )

    @property
    def library(self) -> str:
        """What moves the pages, as the metrics name it."""
        assert self._memory is not None, "only engines of a phase hand over"
        return self._memory.library

    @property
    def sender(self) -> Sender:
        assert self._sender is not None, "only a prefill engine sends"
        return self._sender

    @property
    def receiver(self) -> KvReceiver:
        assert self._receiver is not None, "only a decode engine receives"
        return self._receiver

    async def start(self, host: str) -> str:
        """The endpoint that decode engines dial; empty for other roles. Raises StartError."""
        if self._sender is None:
            return ""
        return await self._sender.start(host, self._options.kv_port)

    async def close(self) -> None:
        """Settle and free everything that is being handed over, then the memory's registration."""
        if self._sender is not None:
            await self._sender.close()
        if self._receiver is not None:
            await self._receiver.close()
        if self._memory is not None:
            self._memory.close()

    def __len__(self) -> int:
        """Rooms that are being handed over."""
        return sum(len(end) for end in (self._sender, self._receiver) if end is not None)
