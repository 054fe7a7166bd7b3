"""Forms that grammar_faults.py has do otherwise on one rank."""

from __future__ import annotations

from typing import Any

AT = 3
"""Tokens that a grammar has taken when it fails."""


def form(where: str, kind: str, rank: int) -> list[Any]:
    """Of a text that goes on for longer than requests here do."""
    title = f"fault {where} {kind} {rank}"
    schema = {"title": title, "type": "string", "minLength": 200, "maxLength": 300}
    return ["json_schema", {"schema": schema}]
