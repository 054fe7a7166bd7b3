"""What the reading of one body took, step by step: noted where the body is read, on the event loop
or in a process beside it, and handed on with the request.
"""

from __future__ import annotations

import resource
import time
from typing import Final, Literal, get_args

import msgspec

Name = Literal["parse", "render", "find", "tokenize", "hash"]
"""JSON to a request; messages to the prompt's text; what of the text is known, asked for by the
names of its segments; text to token ids; token ids to the numbers of their blocks."""
NAMES: Final[tuple[Name, ...]] = get_args(Name)


class ReadStep(msgspec.Struct, array_like=True):
    """One step; of a request with several prompts, the step of all of them together."""

    name: Name
    began: float
    """Seconds of time.monotonic, which all processes of a machine share."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0


class ReadSteps:
    """Times the steps of one body, each from the end of the step before it or from `skip` on."""

    __slots__ = ("_began", "_cpu", "_done")

    def __init__(self) -> None:
        self._done: dict[Name, ReadStep] = {}
        self.skip()

    def skip(self) -> None:
        """What was done since the last step belongs to none."""
        self._began, self._cpu = time.monotonic(), _cpu_seconds()

    def end(self, name: Name) -> None:
        """A step is over; the next one may begin."""
        began, cpu = self._began, self._cpu
        self.skip()
        step = self._done.setdefault(name, ReadStep(name, began))
        step.seconds += self._began - began
        step.cpu_seconds += self._cpu - cpu

    def done(self) -> tuple[ReadStep, ...]:
        return tuple(self._done.values())


def _cpu_seconds() -> float:
    """CPU time of this process so far. Not time.process_time: while a timer of CPU time runs, which
    ends a body that takes too long, the kernel reads that clock at its ticks, 4 ms apart.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
