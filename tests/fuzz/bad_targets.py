"""Targets with a fault each, by which the tests see that fuzzing finds faults."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

from fuzzing.target import FoundError, Target

_MANY = 3
"""Number of inputs that one in so many is at fault."""


class BadSubject:
    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._kept: list[int] = []
        self._memory: list[bytes] = []

    async def give(self, data: bytes) -> None:
        if data[0] % _MANY:
            return
        match self._fault:
            case "raise":
                raise ValueError("not ours")
            case "log":
                self._log()
            case "5xx":
                raise FoundError("5xx", "status 500")
            case "crash":
                os.abort()
            case "hang":
                self._sleep()
            case "open":
                self._kept.append(1)
            case "memory":
                self._memory.append(b"x" * 2**21)
            case "descriptors":
                self._kept.append(os.open("/dev/null", os.O_RDONLY))

    async def left_open(self) -> int:
        return len(self._kept) if self._fault == "open" else 0

    def _sleep(self) -> None:
        time.sleep(600)

    def _log(self) -> None:
        try:
            raise KeyError("lost")
        except KeyError:
            logging.getLogger("somebody").exception("swallowed")


@contextmanager
def _subject(fault: str) -> Iterator[BadSubject]:
    yield BadSubject(fault)


def _spoil(data: bytes, random: Random) -> bytes:
    return random.randbytes(1)


def _target(fault: str) -> Target:
    return Target(
        name=f"bad_targets:{fault.upper()}",
        goal=10_000,
        corpus=lambda: [b"\1"],
        spoil=_spoil,
        subject=partial(_subject, fault),
    )


NOTHING, RAISE, LOG, CRASH, HANG, OPEN, DESCRIPTORS, MEMORY = map(
    _target, ("nothing", "raise", "log", "crash", "hang", "open", "descriptors", "memory")
)
FIVE = _target("5xx")
