"""What one step of one sequence brings on its way through the hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct


class Piece(Struct):
    """Text, and the tokens that are shown with it. Mutable for speed; each has one owner."""

    text: str
    token_ids: tuple[int, ...]
    """A tuple, because hooks get this very object."""
    extras: Sequence[Any] | None = None
    """Parallel to `token_ids`: what goes wherever its token goes, such as its log-probability.
    Hooks do not see it. None: nothing."""
