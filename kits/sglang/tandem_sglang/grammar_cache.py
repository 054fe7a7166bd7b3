"""What SGLang's scheduler keeps of compiled grammars is bounded: SGLang would keep all for ever."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

_ENTRY_BYTES = 64 * 1024
"""Taken of a grammar that does not say how large it is."""


class GrammarCache(OrderedDict[Any, Any]):
    """SGLang's cache of a backend, by key. The least recently used goes first."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._bytes = 0

    def get(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            return default
        self.move_to_end(key)
        return self[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if key in self:
            del self[key]
        self._bytes += _size(value)
        super().__setitem__(key, value)
        while self._bytes > self._max_bytes and len(self) > 1:
            del self[next(iter(self))]

    def __delitem__(self, key: Any) -> None:
        self._bytes -= _size(self[key])
        super().__delitem__(key)

    def clear(self) -> None:
        super().clear()
        self._bytes = 0


def _size(grammar: Any) -> int:
    compiled = getattr(grammar, "ctx", None)
    return _ENTRY_BYTES if compiled is None else int(compiled.memory_size_bytes)
