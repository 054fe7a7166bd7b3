"""What a process does once, when all that it needs to serve is loaded."""

from __future__ import annotations

import ctypes
import gc
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

MOST_PAGES = 512
"""Huge ones, each of which takes some 5 ms to fill."""
RESIDENT = 0.75
"""The part of a mapping that must be in memory: a huge page is in memory as a whole."""
HUGE_BYTES: Final = 2 << 20
"""The size on x86-64, and on ARM with pages of 4 KiB. Other machines refuse it."""
LARGEST_KEPT: Final = 4 << 20
"""Bytes: larger buffers go back to the system as soon as they are freed."""
MOST_KEPT: Final = 16 << 20
"""Bytes at the end of the heap that nobody uses and that stay the process's."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""mallopt(3), of glibc alone."""
_MADV_COLLAPSE: Final = 25
"""madvise(2), since Linux 6.1. It needs no setting of the system's."""
_MAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(
    r"^(\w+)-(\w+) rw.p \S+ \S+ 0 *(?:\[heap\]|\[anon:.*\])?\n(?:[A-Z].*\n)*?Rss: +(\d+) kB", re.M
)
"""A private mapping of memory alone: where it starts and ends, and how much of it is resident."""


@contextmanager
def loading() -> Iterator[None]:
    """Pauses the collector while modules are imported that stay: collections would only make the
    import longer, by a sixth where the modules are those of SGLang.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def settle() -> threading.Thread:
    """What is loaded by now lives as long as the process. So the collector need not look at it,
    and it moves into huge pages: what runs once in a while, as the code that passes a token on
    does, then finds its memory by far fewer entries of the processor's tables, which others have
    filled in between. A thread of its own moves it, which is returned: a worker of SGLang has
    hundreds of them, and who serves meanwhile waits for one at most.

    From now on large messages come and go. What one has freed is kept for the next.
    """
    gc.freeze()
    _keep_freed_memory()
    moving = threading.Thread(target=_into_huge_pages, name="huge pages", daemon=True)
    moving.start()
    return moving


def _keep_freed_memory() -> None:
    """Else the C library gives most of it back to the system, and the next message's pages are
    cleared and mapped one by one: 2.5 ms of CPU for a body of 500 KB, in its frontend alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(_M_TRIM_THRESHOLD, MOST_KEPT)


def _into_huge_pages() -> None:
    """Move loaded code to huge pages, as many as the system has free."""
    began = time.monotonic()
    try:
        madvise = ctypes.CDLL(None).madvise
        maps = _MAPS.read_text()
    except (OSError, AttributeError):
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    pages = islice(chain.from_iterable(_dense(maps)), MOST_PAGES)
    moved = sum(not madvise(page, HUGE_BYTES, _MADV_COLLAPSE) for page in pages)
    log.debug(
        "memory was moved into huge pages",
        extra={"count": moved, "seconds": time.monotonic() - began},
    )


def _dense(maps: str) -> Iterator[range]:
    """Where whole huge pages begin, of each private mapping of memory that is in use."""
    for mapping in _MAPPING.finditer(maps):
        start, end = int(mapping[1], 16), int(mapping[2], 16)
        if int(mapping[3]) * 1024 >= RESIDENT * (end - start):
            yield range(-(-start // HUGE_BYTES) * HUGE_BYTES, end - HUGE_BYTES + 1, HUGE_BYTES)
