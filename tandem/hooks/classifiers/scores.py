"""What a classifier answered, made safe: plain, bounded, and the same for everybody after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tandem.hooks.classifiers.counters import Decision
from tandem.hooks.classifiers.settings import RegenerateSettings, Resampling

MAX_SCORES_BYTES = 16 * 1024
"""Size of one classifier's answer as JSON, its replacement not counted (S4-106)."""
MAX_REPLACEMENT_CHARS = 1024 * 1024
AS_BEFORE = Resampling()


class InvalidAnswerError(Exception):
    """Says what is wrong with it, without quoting any of it."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ClassifierAnswer:
    """The result of one call of a classifier."""

    blocks: bool
    replacement: str | None = None
    """Text to show instead; None: the refusal of the settings."""
    decision: Decision
    scores: Mapping[str, Any] = field(default_factory=dict)
    """For external_scores: the answer as plain JSON data, without the replacement; of a failure
    `{"error": reason}`.
    """
    regenerate: bool | None = None
    """Where it blocks, whether the output is to be generated again; None: it does not say."""
    sampling: Resampling = AS_BEFORE
    """Sampling parameters for the next run of the output."""


def read(answer: Any, blocking: bool, again: RegenerateSettings | None = None) -> ClassifierAnswer:
    """Raises InvalidAnswerError, or whatever the answer's own objects raise: call it as user code.
    `blocking`: the classifier's `block` decides. `again`: how blocked outputs are generated again;
    None: they are not, and `regenerate` is a score like any other.
    """
    if not isinstance(answer, Mapping):
        raise InvalidAnswerError("it answered no mapping")
    block = bool(answer.get("block", False))
    replacement = answer.get("replacement")
    if replacement is not None:
        replacement = _plain_text(replacement)
    rest = {key: value for key, value in answer.items() if key not in ("block", "replacement")}
    scores = _plain(rest)
    if "block" in answer:
        scores["block"] = block
    decision: Decision = "annotate"
    if blocking:
        decision = "block" if block else "pass"
    regenerate, sampling = None, AS_BEFORE
    if again is not None and decision == "block":
        regenerate, sampling = _another_try(answer.get("regenerate"), again)
    return ClassifierAnswer(
        blocks=blocking and block,
        replacement=replacement,
        decision=decision,
        scores=scores,
        regenerate=regenerate,
        sampling=sampling,
    )


def _another_try(given: Any, settings: RegenerateSettings) -> tuple[bool | None, Resampling]:
    if given is None:
        return None, AS_BEFORE
    if not isinstance(given, Mapping):
        return bool(given), AS_BEFORE
    try:
        sampling = msgspec.convert(_plain(given), Resampling)
    except msgspec.ValidationError:
        raise InvalidAnswerError("its sampling of another try cannot be used") from None
    if not settings.allows(sampling):
        raise InvalidAnswerError("its sampling of another try is not in the settings' may_set")
    return True, sampling


def _plain_text(given: Any) -> str:
    """As Python's own str, whatever a subclass of it says of itself."""
    if not issubclass(type(given), str):
        raise InvalidAnswerError("its replacement is no text")
    replacement = str.__str__(given)
    if len(replacement) > MAX_REPLACEMENT_CHARS:
        raise InvalidAnswerError("its replacement is too long")
    try:
        replacement.encode()
    except UnicodeEncodeError:
        raise InvalidAnswerError("its replacement is not valid Unicode") from None
    return replacement


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
