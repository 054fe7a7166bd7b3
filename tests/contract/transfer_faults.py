"""A transfer between real SGLang engines that does some of its writes wrong. Schedulers load this
as the module of a logits processor; what is done to a hand-over stands in its room.

Nothing here writes over bytes that decode has looked at: no check could find that. What comes late,
or a second time, comes into pages that are another hand-over's by then, before that one's metadata.
"""

from __future__ import annotations

import enum
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

TOLD = "FAULTY_TRANSFER_TOLD"
"""Names a file. Each line of it is a room, and what was done to its KV."""
BLIND = "FAULTY_TRANSFER_BLIND"
"""Names a file, of which each word is a number of a tag that decode is not to compare now."""
ANOTHERS = "another's"
"""What hits a hand-over whose pages were another's, whose bytes come now."""
_KINDS = 16
_NOWHERE = 0
"""The page that SGLang gives to nobody."""


class Fault(enum.StrEnum):
    """In the order of their numbers, of which the first is 0."""

    NONE = ""
    PROMPT = "prompt"
    TENANT = "tenant"
    ADAPTER = "adapter"
    """Until here prefill is asked for other KV than decode."""
    LATE = "late"
    """The bytes come when the pages are another's."""
    STALE = "stale"
    """They do not come."""
    TORN = "torn"
    """Some of them come."""
    DOUBLED = "doubled"
    """They come, and again when the pages are another's."""
    REUSED = "reused"
    """Prefill's pages have another prompt by now."""
    CROSSED = "crossed"
    """Another hand-over's metadata comes."""


FAULTS = tuple(Fault)[1:]
OF_TRANSFER = tuple(Fault)[tuple(Fault).index(Fault.LATE) :]


def room_of(fault: Fault, number: int) -> int:
    """A room to which that is done. `number`: random, of 58 bits."""
    return number * _KINDS + FAULTS.index(fault) + 1 if fault else number * _KINDS


def fault_of(room: int) -> Fault:
    return tuple(Fault)[room % _KINDS]


class Loads:
    """A processor that does nothing: it has this module imported."""

    def __call__(self, input_ids: Any, logits: Any) -> None:
        pass


class Mischief:
    """Around what SGLang's prefill writes with, in each of its threads."""

    def __init__(self, send_kv: Callable[..., Any], send_row: Callable[..., Any]) -> None:
        self._send_kv, self._send_row = send_kv, send_row
        self._lock = threading.Lock()
        self._due: list[tuple[Any, Any]] = []
        """Pages here and there, of which each is to be written once more."""
        self._last_pages = numpy.zeros(1, dtype=numpy.int32)
        self._last_row = 0

    def kv(
        self,
        manager: Any,
        peer: Any,
        pages: Any,
        pointers: Any,
        remote: Any,
        *rest: Any,
        **more: Any,
    ) -> Any:
        """In place of `send_kvcache`. 0.5.23 has no notification, which is first in `rest`."""
        room = _room_of_pages(manager, remote)
        with self._lock:
            before, self._last_pages = self._last_pages, pages.copy()
        here, there = pages, remote.copy()
        match fault := fault_of(room):
            case Fault.STALE | Fault.LATE:
                there[:] = _NOWHERE
            case Fault.TORN:
                there[len(there) // 2 :] = _NOWHERE
            case Fault.REUSED:
                here = numpy.resize(before, len(pages))
        if fault in OF_TRANSFER and fault is not Fault.CROSSED:
            _tell(room, fault)
        sent = self._send_kv(manager, peer, here, pointers, there, *rest, **more)
        quiet = (rest[0], *("" for _ in rest[1:]))
        for mine, at in self._take_due(remote):
            _settled(manager, sent)
            _tell(room, ANOTHERS)
            write = self._send_kv(manager, peer, mine, pointers, at, *quiet, **more)
            _settled(manager, write)
        if fault in (Fault.LATE, Fault.DOUBLED):
            with self._lock:
                self._due.append((pages.copy(), remote.copy()))
        return sent

    def row(self, manager: Any, peer: Any, row: int, pointers: Any, at: int, *rest: Any) -> Any:
        """In place of `send_aux`."""
        with self._lock:
            before, self._last_row = self._last_row, row
        room = next(room for room, info in _offers(manager) if info.dst_aux_index == at)
        if fault_of(room) is Fault.CROSSED and before != row:
            _tell(room, Fault.CROSSED)
            row = before
        return self._send_row(manager, peer, row, pointers, at, *rest)

    def _take_due(self, remote: Any) -> list[tuple[Any, Any]]:
        """Of what is due, the part that is to come into these pages."""
        found = []
        with self._lock:
            for place in range(len(self._due) - 1, -1, -1):
                here, there = self._due[place]
                common = numpy.isin(there, remote)
                if common.any():
                    found.append((here[common], there[common]))
                    del self._due[place]
        return found


def _room_of_pages(manager: Any, remote: Any) -> int:
    return next(r for r, info in _offers(manager) if numpy.array_equal(info.dst_kv_indices, remote))


def _offers(manager: Any) -> list[tuple[int, Any]]:
    """What decode has offered. Other threads add to it meanwhile."""
    rooms = list(manager.transfer_infos.items())
    return [(room, info) for room, infos in rooms for info in list(infos.values())]


def _settled(manager: Any, write: Any) -> None:
    while manager.agent.check_xfer_state(write) not in ("DONE", "ERR"):
        pass


def _tell(room: int, what: str) -> None:
    with open(os.environ[TOLD], "a") as told:
        told.write(f"{room} {what}\n")


def _leave_out() -> None:
    """Decode takes some numbers of a tag to be right."""
    from tandem.engine import kv_tag

    compare = kv_tag.check

    def check(arrived: Any, expected: Any) -> None:
        names = Path(os.environ[BLIND]).read_text().split()
        compare(arrived._replace(**{name: getattr(expected, name) for name in names}), expected)

    kv_tag.check = check


def _install() -> None:
    from sglang.srt.disaggregation.nixl.conn import NixlKVManager

    mischief = Mischief(NixlKVManager.send_kvcache, NixlKVManager.send_aux)
    NixlKVManager.send_kvcache = lambda *args, **more: mischief.kv(*args, **more)
    NixlKVManager.send_aux = lambda *args, **more: mischief.row(*args, **more)
    _leave_out()


_upstream = sys.modules.get("sglang.srt.managers.scheduler")
if _upstream is not None and _upstream.Scheduler.__module__.startswith("tandem_sglang"):
    _install()
