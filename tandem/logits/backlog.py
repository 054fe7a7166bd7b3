"""What a GPU has to do for others before it comes to a processor's work.

A processor that reads from the GPU (`.item()`, `.cpu()`) waits for all that was given to the GPU
before: the model's whole forward pass, and other processors' kernels. That wait is not its own
time. How long it was is asked only of a call that went over its limit; every other one pays for one
event.
"""

from __future__ import annotations

import functools
import math
import sys
from time import perf_counter
from typing import Any, Protocol

from tandem.logits import arrays


class DeviceEvent(Protocol):
    """What is used of torch.cuda.Event, with timing."""

    def record(self, stream: Any = None) -> None: ...
    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end_event: Any) -> float: ...


class DeviceBacklog:
    """See tandem.usercode.call.Backlog. One serves all calls of a process, which are made one after
    the other.
    """

    def __init__(self, before: DeviceEvent, now: DeviceEvent, aside: Any) -> None:
        """`aside`: a stream on which nothing is ever computed, where `now` happens at once."""
        self._before = before
        self._now = now
        self._aside = aside

    def mark(self) -> None:
        self._before.record()

    def done(self) -> float:
        if not self._before.query():
            return -math.inf
        self._now.record(self._aside)
        self._now.synchronize()
        return perf_counter() - self._before.elapsed_time(self._now) / 1000


def of(rows: Any) -> DeviceBacklog | None:
    """The backlog of the GPU on which `rows` are; None on a CPU, where nobody waits for others."""
    if arrays.is_numpy(rows) or not rows.is_cuda:
        return None
    return _of_device(rows.device.index)


def here() -> DeviceBacklog | None:
    """The backlog of this process's GPU; None where the process uses none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return _of_device(torch.cuda.current_device())


@functools.cache
def _of_device(index: int) -> DeviceBacklog:
    cuda = sys.modules["torch"].cuda
    with cuda.device(index):
        return DeviceBacklog(
            cuda.Event(enable_timing=True), cuda.Event(enable_timing=True), cuda.Stream()
        )
