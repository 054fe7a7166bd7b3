"""How much an object keeps, attribute by attribute: what grows from request to request leaks."""

from __future__ import annotations

import gc
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

DEPTH = 5
MAX_OBJECTS = 300_000
_OPAQUE = (ModuleType, FunctionType, MethodType, BuiltinFunctionType, type, int, float, type(None))
_CONTAINERS = (dict, list, set, deque, tuple, frozenset)
_SIZED = (str, bytes, bytearray)


class Weight:
    """How much state a hook holds. Keys say where it lies, such as "_held" or "_users[*].seen"."""

    def __init__(self, hook: object) -> None:
        gc.collect()
        self.entries: Counter[str] = Counter()
        """Entries of containers."""
        self.bytes: Counter[str] = Counter()
        """Length of texts, those in containers included."""
        self._seen: set[int] = {id(hook)}
        self._attributes(hook, "", DEPTH)
        self._shared(type(hook))

    def _shared(self, hook_class: type) -> None:
        """Containers of the class, of those it derives from, and of its module."""
        for owner in hook_class.__mro__[:-1]:
            for name, value in vars(owner).items():
                if isinstance(value, _CONTAINERS) and not name.startswith("__"):
                    self._visit(value, f"{owner.__name__}.{name}", DEPTH)
        module = sys.modules.get(hook_class.__module__)
        for name, value in list(vars(module).items()) if module else ():
            if isinstance(value, dict | list | set | deque) and not name.startswith("__"):
                self._visit(value, f"{hook_class.__module__}.{name}", DEPTH)

    def _attributes(self, owner: object, where: str, depth: int) -> None:
        for name, value in list(_attributes(owner)):
            self._visit(value, f"{where}.{name}" if where else name, depth)

    def _visit(self, value: object, where: str, depth: int) -> None:
        if isinstance(value, _SIZED):
            self.bytes[where] += len(value)
            return
        if isinstance(value, _OPAQUE) or id(value) in self._seen or not depth:
            return
        if len(self._seen) > MAX_OBJECTS:
            return
        self._seen.add(id(value))
        if isinstance(value, _CONTAINERS):
            self.entries[where] += len(value)
            inside = list(value.values()) if isinstance(value, Mapping) else list(value)
            for item in inside:
                self._visit(item, f"{where}[*]", depth - 1)
        else:
            self._attributes(value, where, depth - 1)


def _attributes(owner: object) -> Iterator[tuple[str, object]]:
    yield from getattr(owner, "__dict__", {}).items()
    for base in type(owner).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(owner, name):
                yield name, getattr(owner, name)


def growth(before: Weight, after: Weight, requests: int) -> list[str]:
    """What grew with the requests: by a fiftieth of an entry for each, or by a character."""
    more = [
        (where, n) for where, n in (after.entries - before.entries).items() if n * 50 > requests
    ]
    entries = [f"{where} grew by {number:,} entries" for where, number in more]
    longer = [
        f"{where} grew by {size:,} characters"
        for where, size in (after.bytes - before.bytes).items()
        if size > requests and not any(where.startswith(known) for known, _ in more)
    ]
    return entries + longer
