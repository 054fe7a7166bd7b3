"""The findings about a hook, one for each check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "warning", "failed"]


@dataclass(slots=True)
class Check:
    """The result of checking one property of a hook."""

    name: str
    summary: str = ""
    problems: list[str] = field(default_factory=list)
    """The hook breaks the contract, or harms the worker it runs in."""
    warnings: list[str] = field(default_factory=list)
    """Not wrong by itself; its author should know."""

    @property
    def status(self) -> Status:
        if self.problems:
            return "failed"
        return "warning" if self.warnings else "ok"
