"""The frontend's side of the process in which the operator's classifiers judge texts. What they do
to that process costs no more than the judgements that it has.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from tandem.errors import ClassifierError
from tandem.ids import counter
from tandem.pool.process import ONE_THREAD, ChildProcess, LostError
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.moderations import wire

log = logging.getLogger(__name__)

START_SECONDS: Final = 600.0
"""For classifiers to be loaded, with their models."""
MARGIN_SECONDS: Final = 5.0
"""Beyond the longest timeout of a classifier, until the process itself counts as hung."""
CLOSE_SECONDS: Final = 5.0
"""For the classifiers' own shutdown."""
LEAST_PAUSE_SECONDS: Final = 1.0
MOST_PAUSE_SECONDS: Final = 60.0
"""Between two starts of the process: twice as long after each that failed."""


class Heard(NamedTuple):
    said: wire.Judged | wire.Unjudged
    size: int
    """In bytes, as it came."""


class JudgeLink:
    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        """The names of the classifiers, once the process has started."""
        self._process = ChildProcess(
            max_message_bytes=wire.MAX_MESSAGE_BYTES, on_message=self._take, on_lost=self._fail_all
        )
        self._seconds = MARGIN_SECONDS
        self._next_call = counter()
        self._calls: dict[int, asyncio.Future[Heard]] = {}

    async def start(self, boot: wire.JudgeBoot) -> None:
        """Until the process can judge. Raises LostError; then `close` is to be called."""
        process = self._process
        await process.start(wire.PROGRAM, ONE_THREAD)
        try:
            loaded = wire.loads.decode(
                await process.ask(wire.encoder.encode(boot), seconds=START_SECONDS)
            )
        except msgspec.DecodeError as error:
            raise LostError("the process broke its protocol") from error
        if loaded.error:
            raise LostError(loaded.error)
        self.names = loaded.names
        self._seconds += loaded.seconds

    async def lost(self) -> LostError:
        """Why the process is lost, once it is."""
        await self._process.gone.wait()
        return LostError(self._process.lost)

    async def judge(self, ask: Callable[[int], wire.ModerationQuestion]) -> Heard:
        """`ask`: makes the question of that number. Cancelling cancels it. Raises LostError."""
        if self._process.lost:
            raise LostError(self._process.lost)
        call = self._next_call()
        waiting: asyncio.Future[Heard] = asyncio.get_running_loop().create_future()
        self._calls[call] = waiting
        self._process.send(wire.encoder.encode(ask(call)))
        try:
            async with asyncio.timeout(self._seconds):
                return await waiting
        except TimeoutError:
            why = f"it does not answer within {self._seconds:g} s"
            self._process.lose(why)  # its event loop hangs, and with it all judgements
            raise LostError(why) from None
        finally:
            del self._calls[call]
            if waiting.cancelled():
                self._process.send(wire.encoder.encode(wire.ModerationCancel(call)))

    async def close(self) -> None:
        """Let the classifiers shut down, and end the process in bounded time."""
        await self._process.close(CLOSE_SECONDS)

    def _take(self, payload: bytes | bytearray) -> None:
        answer = wire.answers.decode(payload)
        waiting = self._calls.get(answer.call)
        if waiting is not None and not waiting.done():
            waiting.set_result(Heard(answer.said, len(payload)))

    def _fail_all(self) -> None:
        for waiting in self._calls.values():
            if not waiting.done():
                waiting.set_exception(LostError("it has ended"))


class Judge:
    """The process, which is started again whenever it is lost."""

    def __init__(self, boot: wire.JudgeBoot) -> None:
        self._boot = boot
        self._link: asyncio.Future[JudgeLink] = asyncio.get_running_loop().create_future()
        """The newest process; done once it has started, or could not be."""

    async def run(self) -> None:
        """Keep a process, until cancelled."""
        pause = LEAST_PAUSE_SECONDS
        while True:
            starting = self._link
            try:
                link = JudgeLink()
                try:
                    await link.start(self._boot)
                    pause = LEAST_PAUSE_SECONDS
                    log.info("classifiers of moderations are loaded")
                    starting.set_result(link)
                    raise await link.lost()
                finally:
                    await link.close()
            except LostError as error:
                log.error("classifiers of moderations are lost", extra={"reason": str(error)})
                if not starting.done():
                    starting.set_exception(error)
                    starting.exception()  # perhaps nobody asks for it
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_PAUSE_SECONDS)
            self._link = asyncio.get_running_loop().create_future()

    async def link(self) -> JudgeLink:
        """The process, once it has started. Raises ClassifierError where it could not be."""
        try:
            return await asyncio.shield(self._link)
        except LostError:
            raise ClassifierError(
                "The classifiers cannot be loaded; see the frontend's log"
            ) from None


def boot_of(config: FrontendConfig) -> wire.JudgeBoot:
    return wire.JudgeBoot(
        classifiers=config.moderation_classifiers,
        model=config.model_name,
        import_path=sys.path,
        log_format=config.log_format,
        log_level=config.log_level,
    )
