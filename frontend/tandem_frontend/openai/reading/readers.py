"""The processes that read large bodies, and whose turn it is. What a body does to its process costs
its own request alone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
from typing import Any, Final

import msgspec

from tandem.child_process import ChildProcess, LostError
from tandem.errors import InternalError, QueueFullError, TooLargeError
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.reading.turns import Turns
from tandem_frontend.openai.reading.wire import (
    MAX_MESSAGE_BYTES,
    PROGRAM,
    Answered,
    Order,
    Read,
    ReaderBoot,
    Refused,
    encoder,
    readies,
    replies,
)

log = logging.getLogger(__name__)

MIDDLING_BYTES: Final = 256 * 1024
"""Bodies up to this do not wait for larger ones."""
MAX_WAITING: Final = 64
"""Bodies, for each process; a key that has few takes the place of one that has more."""
START_SECONDS: Final = 60.0
_FULL: Final = "Too many large bodies are to be read; try again later"
_MARGIN_SECONDS: Final = 1.0
"""Beyond a body's own time, until the process itself counts as hung."""


class Readers:
    """Two processes, each started for the first body that it is to read: one for what is middling,
    one for what is large, so that a prompt of some pages does not wait for a book.
    """

    def __init__(self, config: FrontendConfig) -> None:
        seconds, memory_bytes = config.read_seconds, config.read_memory_mb * 2**20
        self._middling, self._large = _Lane(seconds, memory_bytes), _Lane(seconds, memory_bytes)

    async def read(self, order: Order, boot: ReaderBoot, *, tenant: str) -> Read | Answered:
        """`boot`: of the model that the order is for. `tenant`: the name of the key that it came
        with. Raises what is wrong with the request; TooLargeError where reading it takes more than
        it may, QueueFullError where too many wait for it, InternalError where no process starts.
        """
        lane = self._middling if len(order.body) <= MIDDLING_BYTES else self._large
        return await lane.read(order, boot, tenant)

    async def close(self) -> None:
        """End both processes, with what they read."""
        await self._middling.close()
        await self._large.close()


class _Lane:
    """One process, which reads one body at a time. Keys take turns."""

    def __init__(self, seconds: float, memory_bytes: int) -> None:
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._turns = Turns(1, most_waiting=MAX_WAITING, full=_FULL)
        self._process: ChildProcess | None = None
        self._booted: dict[str, ReaderBoot] = {}
        """What the process knows of models, by name."""

    async def read(self, order: Order, boot: ReaderBoot, tenant: str) -> Read | Answered:
        try:
            async with asyncio.timeout(self._seconds):
                await self._turns.take(tenant)
        except TimeoutError:
            raise QueueFullError(_FULL) from None
        try:
            reply = replies.decode(await self._ask(order, boot))
        except BaseException:
            await self._end()
            raise
        finally:
            self._turns.give_back()
        if isinstance(reply, Refused):
            raise reply.to_error()
        return reply

    async def close(self) -> None:
        await self._end()

    async def _ask(self, order: Order, boot: ReaderBoot) -> bytes:
        process = await self._ready(boot)
        try:
            return await process.ask(
                encoder.encode(order),
                seconds=self._seconds + _MARGIN_SECONDS,
                memory_bytes=self._memory_bytes,
            )
        except LostError as error:
            log.warning(
                "a body could not be read", extra={"trace_id": order.trace_id, "reason": str(error)}
            )
            raise TooLargeError(
                f"Reading the body takes more than {self._seconds:g} s or "
                f"{self._memory_bytes // 2**20} MiB of memory"
            ) from error

    async def _ready(self, boot: ReaderBoot) -> ChildProcess:
        """A process that knows the model. Raises InternalError."""
        if self._process is not None and self._process.has_ended:
            await self._end()
        if self._process is None or self._booted.get(boot.model) is not boot:
            try:
                if self._process is None:
                    self._process = await ChildProcess.start(
                        PROGRAM, max_message_bytes=MAX_MESSAGE_BYTES
                    )
                said = await self._process.ask(encoder.encode(boot), seconds=START_SECONDS)
                if error := readies.decode(said).error:
                    raise LostError(error)
                self._booted[boot.model] = boot
            except (LostError, msgspec.DecodeError) as error:
                log.exception("what reads large bodies cannot be started")
                raise InternalError("The frontend failed; see its log") from error
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        self._booted.clear()
        if process is not None:
            await process.end()


def boot_of(config: FrontendConfig) -> ReaderBoot:
    """For the one model that the settings are of."""
    return ReaderBoot(
        model=config.model_name,
        settings=_settings(config),
        import_path=sys.path,
        seconds=config.read_seconds,
    )


def _settings(config: FrontendConfig) -> dict[str, Any]:
    """The settings that are no secret, as plain values."""
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if not field.metadata.get("secret")
    }
