"""The bytes that a process may hold of messages which nobody has read: a listener counts in the
budget that its owner gives it, and the owner decides whose connection makes room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class UnreadBytes(Protocol):
    """The bytes that one connection holds of a budget."""

    @property
    def size(self) -> int: ...

    def grow(self, size: int) -> object:
        """Hold `size` bytes more. The budget may close a connection for it, this one too."""
        ...

    def give_back(self, size: int) -> None:
        """Hold `size` bytes less."""
        ...

    def close(self) -> None:
        """The connection is over, and holds nothing."""
        ...


class UnreadBudget(Protocol):
    """The bytes that all connections may hold together."""

    def allotment(self, end: Callable[[], object]) -> UnreadBytes:
        """Begin to count a new connection, which `end` closes."""
        ...
