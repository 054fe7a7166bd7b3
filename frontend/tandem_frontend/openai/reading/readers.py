"""The processes that read large bodies, and whose turn it is. What a body does to its process costs
its own request alone.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from typing import Any, Final, Literal

from tandem.errors import InternalError, TooLargeError
from tandem.pool.pool import GarbledError, Pool, PoolLimits, UnloadedError
from tandem.pool.process import LostError
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.prefixes import PromptPrefixes
from tandem_frontend.openai.reading import wire

log = logging.getLogger(__name__)

MIDDLING_BYTES: Final = 256 * 1024
"""Bodies up to this do not wait for larger ones."""
MAX_WAITING: Final = 64
"""Bodies, for each process. A key that has few takes the place of a key that has more."""
BodySize = Literal["middling", "large"]
START_SECONDS: Final = 60.0
_FULL: Final = "Too many large bodies are to be read; try again later"
_LONGEST_WAIT: Final = 3
"""Seconds until a body is refused that waits for a process, for each of its CPU time."""
_MOST_BY_THE_CLOCK: Final = 10
"""Seconds for each second of CPU time, until the process counts as hung."""


class Readers:
    """Processes for middling bodies and for large ones, so that a page waits for no book."""

    def __init__(self, config: FrontendConfig) -> None:
        self._seconds, self._memory_mb = config.read_seconds, config.read_memory_mb
        limits = PoolLimits(
            seconds=_MOST_BY_THE_CLOCK * self._seconds,
            start_seconds=START_SECONDS,
            message_bytes=wire.MAX_MESSAGE_BYTES,
            most_waiting=MAX_WAITING * config.read_processes,
            full=_FULL,
            memory_bytes=self._memory_mb * 2**20,
            wait_seconds=_LONGEST_WAIT * self._seconds,
        )
        count = config.read_processes
        self._middling, self._large = (
            Pool[wire.Said](wire.PROGRAM, wire.encoder.encode, wire.said, limits, processes=count)
            for _ in range(2)
        )

    async def read(
        self,
        order: wire.ReadingOrder,
        boot: wire.ReaderBoot,
        *,
        tenant: str,
        prefixes: PromptPrefixes | None = None,
    ) -> wire.Read | wire.Answered:
        """`boot`: of the model that the order is for. `tenant`: the name of the key that it came
        with. `prefixes`: what is known of the prompts of an order that `asks`. Raises what is wrong
        with the request; TooLargeError where reading it takes more than it may, QueueFullError
        where too many wait for it, InternalError where no process starts.
        """
        pool = self._middling if len(order.body) <= MIDDLING_BYTES else self._large
        try:
            async with pool.process(pool.turns.line_up(tenant)) as process:
                reply = await process.ask(order, boot)
                if isinstance(reply, wire.SegmentNames) and prefixes is not None:
                    known = [*prefixes.known(reply.prompts)]
                    reply = await process.ask(wire.Beginnings(known), boot)
        except UnloadedError as error:
            log.exception("the process that reads large bodies cannot be started")
            raise InternalError("The frontend failed; see its log") from error
        except GarbledError:
            raise
        except LostError as error:
            log.warning(
                "a body could not be read",
                extra={"trace_id": order.origin.trace_id, "reason": str(error)},
            )
            raise TooLargeError(
                f"Reading the body takes more than {self._seconds:g} s of CPU time or "
                f"{self._memory_mb} MiB of memory"
            ) from error
        if isinstance(reply, wire.Refused):
            raise reply.to_error()
        assert not isinstance(reply, wire.SegmentNames)  # it asks once
        return reply

    def waiting(self, size: BodySize) -> int:
        return (self._large if size == "large" else self._middling).turns.waiting

    async def close(self) -> None:
        await self._middling.close()
        await self._large.close()


def boot_of(config: FrontendConfig) -> wire.ReaderBoot:
    return wire.ReaderBoot(
        name=config.model_name,
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
