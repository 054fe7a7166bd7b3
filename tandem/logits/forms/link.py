"""The worker's end of one process that compiles forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tandem.child_process import ChildProcess, LostError
from tandem.logits.forms.wire import (
    MAX_MESSAGE_BYTES,
    PROGRAM,
    Answer,
    CompilerBoot,
    Order,
    answers,
    encoder,
    readies,
)

MARGIN_SECONDS: Final = 5.0
"""Beyond a form's own time, until the process itself counts as hung."""


class FormLink:
    """One process, from its start to its end."""

    def __init__(self, process: ChildProcess) -> None:
        self._process = process

    @staticmethod
    async def start(
        boot: CompilerBoot, environment: Mapping[str, str], *, seconds: float
    ) -> FormLink:
        """A process that can compile. `environment`: variables for it beside the worker's.

        Raises LostError.
        """
        process = await ChildProcess.start(
            PROGRAM, environment, max_message_bytes=MAX_MESSAGE_BYTES
        )
        try:
            ready = readies.decode(await process.ask(encoder.encode(boot), seconds=seconds))
        except BaseException:
            await process.end()
            raise
        if ready.error:
            await process.end()
            raise LostError(ready.error)
        return FormLink(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def compile(self, order: Order, *, seconds: float) -> Answer:
        """Raises LostError; then nothing but `end` may be called."""
        payload = encoder.encode(order)
        try:
            return answers.decode(
                await self._process.ask(payload, seconds=seconds + MARGIN_SECONDS)
            )
        except msgspec.DecodeError as error:
            raise LostError("it says what it should not") from error

    async def end(self) -> None:
        """Kill the process, whatever it compiles."""
        await self._process.end()
