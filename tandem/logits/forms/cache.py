"""What was compiled, by a form's key, within a bound of bytes."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class FormCache(Generic[T]):
    """The least recently used goes first. What sequences still use counts until they let go of it,
    also when it is not kept here any more.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self.used_bytes = 0
        """What all that is kept here, or in use, takes."""

    def get(self, key: str) -> T | None:
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def make_room(self, size: int) -> bool:
        """Whether so many bytes fit, now that as many were let go as can be."""
        while self._kept and self.used_bytes + size > self._max_bytes:
            self._kept.popitem(last=False)
        return self.used_bytes + size <= self._max_bytes

    def put(self, key: str, value: T, size: int) -> None:
        """Keep a compiled form. The cache must have room."""
        self.used_bytes += size
        weakref.finalize(value, self._let_go, size)
        self._kept[key] = (value, size)

    def __len__(self) -> int:
        return len(self._kept)

    def _let_go(self, size: int) -> None:
        self.used_bytes -= size
