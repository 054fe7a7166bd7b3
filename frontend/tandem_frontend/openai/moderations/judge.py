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

from tandem.child_process import ChildProcess, LostError
from tandem.errors import ClassifierError
from tandem.ids import counter
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.moderations.wire import (
    MAX_MESSAGE_BYTES,
    PROGRAM,
    Cancel,
    JudgeBoot,
    Judged,
    JudgeLoaded,
    Question,
    Unjudged,
    answers,
    encoder,
    loads,
)

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
    """What a process says of a text."""

    said: Judged | Unjudged
    size: int
    """In bytes, as it came."""


class JudgeLink:
    """One process, from its start to its end."""

    def __init__(self, process: ChildProcess, loaded: JudgeLoaded) -> None:
        self._process = process
        self.names = loaded.names
        self._seconds = loaded.seconds + MARGIN_SECONDS
        self._next_call = counter()
        self._calls: dict[int, asyncio.Future[Heard]] = {}
        self._lost: LostError | None = None

    @staticmethod
    async def start(boot: JudgeBoot) -> JudgeLink:
        """A process that can judge. Raises LostError."""
        process = await ChildProcess.start(PROGRAM, max_message_bytes=MAX_MESSAGE_BYTES)
        try:
            loaded = loads.decode(await process.ask(encoder.encode(boot), seconds=START_SECONDS))
            if loaded.error:
                raise LostError(loaded.error)
        except msgspec.DecodeError as error:
            await process.end()
            raise LostError("the process broke its protocol") from error
        except BaseException:
            await process.end()
            raise
        return JudgeLink(process, loaded)

    async def listen(self) -> None:
        """Give answers to those who wait for them, until the process is lost. Raises LostError, as
        do all calls that wait then.
        """
        try:
            while True:
                payload = await self._process.hear()
                answer = answers.decode(payload)
                waiting = self._calls.get(answer.call)
                if waiting is not None and not waiting.done():
                    waiting.set_result(Heard(answer.said, len(payload)))
        except msgspec.DecodeError as error:
            self._lost = LostError("the process broke its protocol")
            raise self._lost from error
        except LostError as error:
            self._lost = error
            raise
        finally:
            for waiting in self._calls.values():
                if not waiting.done():
                    waiting.set_exception(LostError("it has ended"))

    async def judge(self, ask: Callable[[int], Question]) -> Heard:
        """`ask`: the question with that number. Cancelled, it cancels the judgement. Raises
        LostError.
        """
        if self._lost is not None:
            raise self._lost
        call = self._next_call()
        waiting: asyncio.Future[Heard] = asyncio.get_running_loop().create_future()
        self._calls[call] = waiting
        self._process.say(encoder.encode(ask(call)))
        try:
            async with asyncio.timeout(self._seconds):
                return await waiting
        except TimeoutError:
            self._process.kill()  # its event loop hangs, and with it all judgements
            raise LostError(f"it does not answer within {self._seconds:g} s") from None
        finally:
            del self._calls[call]
            if waiting.cancelled():
                self._process.say(encoder.encode(Cancel(call)))

    async def close(self) -> None:
        """Let the classifiers shut down, and end the process in bounded time."""
        await self._process.close(CLOSE_SECONDS)


class Judge:
    """The process, which is started again whenever it is lost."""

    def __init__(self, boot: JudgeBoot) -> None:
        self._boot = boot
        self._link: asyncio.Future[JudgeLink] = asyncio.get_running_loop().create_future()
        """The newest process; done once it has started, or could not be."""

    async def run(self) -> None:
        """Keep a process, until cancelled."""
        pause = LEAST_PAUSE_SECONDS
        while True:
            starting = self._link
            try:
                link = await JudgeLink.start(self._boot)
                try:
                    pause = LEAST_PAUSE_SECONDS
                    log.info("classifiers of moderations are loaded")
                    starting.set_result(link)
                    await link.listen()
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


def boot_of(config: FrontendConfig) -> JudgeBoot:
    """What the process is told by a frontend with these settings."""
    return JudgeBoot(
        classifiers=config.moderation_classifiers,
        model=config.model_name,
        import_path=sys.path,
        log_format=config.log_format,
        log_level=config.log_level,
    )
