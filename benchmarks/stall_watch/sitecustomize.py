"""Notes for how long the event loop of a process is kept, for stalls.py: Python imports this by
itself where PYTHONPATH names its folder. Without STALL_WATCH in the environment it does nothing.

A timer of the loop looks every 5 ms how much CPU time the loop's thread has taken since it looked
last. Where that is much more than 5 ms, one turn of the loop took it. What other processes of the
machine take meanwhile is not in it, nor the wait for something to happen. Nor is what other threads
take while they hold the interpreter: that is in the time by the clock beside it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Coroutine
from typing import Any

TICK_SECONDS = 0.005
LEAST_MS = 10.0
FRAMES = 4


class Watch:
    """Writes a line for each dear turn: when it ended (time.monotonic), its milliseconds of CPU
    time and by the clock, and where it was.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._thread = threading.get_ident()
        self._cpu, self._at = time.thread_time(), time.monotonic()
        self._place = ""
        self._gc_at = 0.0
        gc.callbacks.append(self._collected)
        threading.Thread(target=self._look, daemon=True).start()
        self._tick()

    def _tick(self) -> None:
        cpu, now = time.thread_time(), time.monotonic()
        cpu_ms, ms = 1000 * (cpu - self._cpu), 1000 * (now - self._at - TICK_SECONDS)
        if max(cpu_ms, ms) > LEAST_MS:
            with open(self._path, "a") as file:
                file.write(f"{now} {cpu_ms:.1f} {ms:.1f} {self._place}\n")
        self._cpu, self._at, self._place = cpu, now, ""
        asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_at = time.thread_time()
        elif (seconds := time.thread_time() - self._gc_at) > 5 * TICK_SECONDS:
            self._place = f"the garbage collector, {1000 * seconds:.1f} ms"

    def _look(self) -> None:
        """From a thread of its own, so that it sees where a turn is that does not end."""
        while True:
            time.sleep(TICK_SECONDS)
            if not self._place and time.monotonic() - self._at > 5 * TICK_SECONDS:
                frame = sys._current_frames().get(self._thread)
                stack = traceback.extract_stack(frame)[-FRAMES:]
                self._place = " > ".join(f"{os.path.basename(f.filename)}:{f.name}" for f in stack)


def run(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
    """Does what uvloop.run does, and watches the loop."""

    async def watched() -> Any:
        watch = Watch(f"{os.environ['STALL_WATCH']}/{os.getpid()}")
        try:
            return await main
        finally:
            del watch

    return run_unwatched(watched(), **options)


if "STALL_WATCH" in os.environ:
    import uvloop

    run_unwatched, uvloop.run = uvloop.run, run
