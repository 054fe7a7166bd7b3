"""The start of an engine that has processes of its own: the thread in which that happens.

It lives as long as the engine. A start takes tens of seconds, and the worker's loop has to answer
health checks and signals meanwhile; and engines' children ask the kernel to kill them when the
*thread* that made them ends (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

from tandem.errors import StartError

Launched = TypeVar("Launched")
_STOP_SECONDS: Final = 10.0
KILL_AGAIN_SECONDS: Final = 0.1


class EngineThread(ABC, Generic[Launched]):
    """The thread that starts an engine, keeps its children alive, and stops it."""

    name: str
    """The engine's, for people."""
    needed: str
    """What to install where the engine cannot be imported."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: a start may take so long."""
        self._seconds = seconds
        self._others = set(multiprocessing.active_children())
        self._started: Future[Launched] = Future()
        self._ended: Future[None] = Future()
        self._launching = threading.Event()
        """Set before the engine makes processes."""
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"{self.name.lower()}-engine", daemon=True
        )

    async def start(self) -> Launched:
        """Load the model. Raises StartError; what the engine itself printed before says more.

        Cancelled, or out of time, it leaves the start running until `stop`.
        """
        self._thread.start()
        started = asyncio.wrap_future(self._started)
        started.add_done_callback(_seen)
        await asyncio.wait([started], timeout=self._seconds)
        if not started.done():
            raise StartError(
                f"{self.name} has not started in {self._seconds:g} s: raise engine option"
                f" load_seconds where the model is still being loaded{self._printed_by_now()}"
            )
        return started.result()

    async def stop(self) -> None:
        """End the engine's processes, also in the middle of a start. Bounded."""
        self._stop.set()
        if not self._launching.is_set():
            return  # still importing: the thread ends by itself, before it makes a process
        ended = asyncio.wrap_future(self._ended)
        deadline = asyncio.get_running_loop().time() + _STOP_SECONDS
        while not ended.done() and asyncio.get_running_loop().time() < deadline:
            if not self._started.done():
                self._kill_children()  # the start then fails
            await asyncio.wait([ended], timeout=KILL_AGAIN_SECONDS)

    @abstractmethod
    def _launch(self) -> Launched:
        """Start the engine; `_begin_launch` is called before it makes processes. What is raised
        fails the start.
        """

    @abstractmethod
    def _close(self, launched: Launched) -> None:
        """End a started engine in order. Children that are left are killed then."""

    def _clean_up(self) -> None:
        """Remove what is left when the children have ended."""

    def _printed_by_now(self) -> str:
        """What is known of a start that hangs, for the end of a message."""
        return ""

    def _failure(self, error: BaseException) -> tuple[BaseException, str]:
        """Why a start has failed, and the end of what was printed."""
        return error, ""

    def _begin_launch(self) -> None:
        """Raises StartError where the engine is to stop already."""
        self._launching.set()
        if self._stop.is_set():
            raise StartError(f"{self.name} was stopped while it started")

    def _run(self) -> None:
        launched = None
        try:
            launched = self._launch()
        except BaseException as error:  # noqa: BLE001 - it belongs to who awaits the start
            self._started.set_exception(self._start_error(*self._failure(error)))
        else:
            self._started.set_result(launched)
            self._stop.wait()
        try:
            if launched is not None:
                self._close(launched)
        finally:
            self._kill_children()
            self._clean_up()
            self._ended.set_result(None)

    def _kill_children(self) -> None:
        """Kill the children of this engine that are left, and no other child of the process."""
        children = [each for each in multiprocessing.active_children() if each not in self._others]
        for child in children:
            child.kill()
        for child in children:
            child.join(_STOP_SECONDS)

    def _start_error(self, error: BaseException, printed: str) -> StartError:
        if isinstance(error, StartError):
            return error
        if isinstance(error, ModuleNotFoundError):
            message = f"{self.name} cannot be imported ({error}): {self.needed}"
        else:
            message = (
                f"{self.name} did not start ({type(error).__name__}: {error}); the lines printed"
                " before say more" + (f", at last:\n{printed}" if printed else "")
            )
        wrapped = StartError(message)
        wrapped.__cause__ = error
        return wrapped


@asynccontextmanager
async def first_requests(engine: str, seconds: float) -> AsyncIterator[None]:
    """Within the block a started engine runs requests of its own. Raises StartError where they take
    more than `seconds`, or one fails.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise StartError(
            f"{engine}'s first requests took more than {seconds:g} s: raise engine option "
            "warm_up_seconds where kernels are still being compiled"
        ) from None
    except Exception as failed:
        error = failed.exceptions[0] if isinstance(failed, ExceptionGroup) else failed
        raise StartError(f"{engine} cannot run its first requests: {error}") from failed


def _seen(started: asyncio.Future[Launched]) -> None:
    """Look at what came of a start for which nobody may wait any more."""
    if not started.cancelled():
        started.exception()
