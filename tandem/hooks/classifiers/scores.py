"""What a classifier answered, made safe: plain, bounded, and the same for everybody after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_SCORES_BYTES = 16 * 1024
"""Of one classifier's answer as JSON, its replacement not counted (S4-106)."""
MAX_REPLACEMENT_CHARS = 1024 * 1024


class InvalidAnswerError(Exception):
    """Says what is wrong with it, without quoting any of it."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Answer:
    """A classifier's answer that can be used."""

    block: bool
    replacement: str | None
    """Text to show instead; None: the refusal of the settings."""
    scores: Mapping[str, Any] = field(default_factory=dict)
    """The answer as plain JSON data, without the replacement."""


def read(answer: Any) -> Answer:
    """Raises InvalidAnswerError, or whatever the answer's own objects raise."""
    if not isinstance(answer, Mapping):
        raise InvalidAnswerError("it answered no mapping")
    block = bool(answer.get("block", False))
    replacement = answer.get("replacement")
    if replacement is not None:
        _check_replacement(replacement)
    rest = {key: value for key, value in answer.items() if key not in ("block", "replacement")}
    scores = _plain(rest)
    if "block" in answer:
        scores["block"] = block
    return Answer(block=block, replacement=replacement, scores=scores)


def _check_replacement(replacement: Any) -> None:
    if not isinstance(replacement, str):
        raise InvalidAnswerError("its replacement is no text")
    if len(replacement) > MAX_REPLACEMENT_CHARS:
        raise InvalidAnswerError("its replacement is too long")
    try:
        replacement.encode()
    except UnicodeEncodeError:
        raise InvalidAnswerError("its replacement is not valid Unicode") from None


def _plain(scores: Mapping[Any, Any]) -> dict[str, Any]:
    """Through JSON and back, stopping at the bound rather than after it."""
    if not all(isinstance(key, str) for key in scores):
        raise InvalidAnswerError("its answer has a key that is no text")
    pieces: list[str] = []
    size = 0
    try:
        for piece in json.JSONEncoder(allow_nan=False, ensure_ascii=False).iterencode(scores):
            pieces.append(piece)
            size += len(piece.encode())
            if size > MAX_SCORES_BYTES:
                raise InvalidAnswerError("its answer is too large")
    except (TypeError, ValueError, RecursionError):
        raise InvalidAnswerError("its answer is not what JSON can say") from None
    plain: dict[str, Any] = json.loads("".join(pieces))
    return plain
