"""Gives inputs to one target in this process, and notices what they do to it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from .found import Findings
from .target import Target

_WARM_UP = 200
"""Inputs after which a process has grown as far as it should."""
_MOST_GROWTH_MB = 64
_MOST_DESCRIPTORS = 8


class Held(NamedTuple):
    """What a process holds that inputs could leave behind."""

    descriptors: int
    tasks: int
    memory_mb: int


class Trial:
    """Open it on a loop of its own, `give` inputs, `close` it."""

    def __init__(self, target: Target, findings: Findings) -> None:
        self.given = 0
        self.longest_ms = 0.0
        """CPU time of the dearest input."""
        self._findings = findings
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._escaped)
        self._stack = ExitStack()
        self._data = b""
        self._logged = _Logged(self._failed)
        logging.getLogger().addHandler(self._logged)
        self._subject = self._loop.run_until_complete(_on_loop(self._stack, target))
        self._before: Held | None = None

    def give(self, data: bytes) -> None:
        """Whatever it raises or logs with a traceback is kept."""
        self._data = data
        began = time.process_time()
        try:
            self._loop.run_until_complete(self._subject.give(data))
        except Exception as error:  # noqa: BLE001 - whatever escapes is what is looked for
            self._failed(error)
        self.longest_ms = max(self.longest_ms, (time.process_time() - began) * 1000)
        self.given += 1
        if self.given == _WARM_UP:
            self._before = self.held()

    def held(self) -> Held:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[1])
        memory = pages * os.sysconf("SC_PAGESIZE") // 2**20
        tasks = len(asyncio.all_tasks(self._loop))
        return Held(len(os.listdir("/proc/self/fd")), tasks, memory)

    def close(self) -> None:
        """Look what was left behind."""
        left_open = self._loop.run_until_complete(self._left_open())
        self._data = b""  # a leak is of no single input, and the last may be a large one
        after = self.held()
        before = self._before or after
        grown = after.memory_mb - before.memory_mb

        def told() -> str:
            return f"before {before}, after {self.given} inputs {after}"

        if left_open:
            self._findings.add("leak", "something is left open", self._data, detail=told)
        if after.tasks > before.tasks:
            self._findings.add("leak", "tasks are left", self._data, detail=told)
        if after.descriptors > before.descriptors + _MOST_DESCRIPTORS:
            self._findings.add("leak", "descriptors are left", self._data, detail=told)
        if grown > _MOST_GROWTH_MB:
            self._findings.add("leak", "memory is left", self._data, detail=told)
        logging.getLogger().removeHandler(self._logged)
        self._loop.run_until_complete(_off_loop(self._stack))
        self._loop.close()

    async def _left_open(self) -> int:
        try:
            return await self._subject.left_open()
        except Exception as error:  # noqa: BLE001 - of an input that was still at work
            self._failed(error)
            return 0

    def _failed(self, error: BaseException) -> None:
        self._findings.add_error(error, self._data)

    def _escaped(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._failed(context.get("exception") or RuntimeError(context["message"]))


async def _on_loop(stack: ExitStack, target: Target) -> Any:
    return stack.enter_context(target.subject())


async def _off_loop(stack: ExitStack) -> None:
    stack.close()


class _Logged(logging.Handler):
    """Tracebacks in the log are of faults, whoever caught them."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        super().__init__(logging.ERROR)
        self._failed_with = failed

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._failed_with(record.exc_info[1])
