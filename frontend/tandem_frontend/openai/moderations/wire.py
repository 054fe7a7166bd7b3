"""What a frontend and the process of its classifiers say to each other: messages of
tandem/pool/frames.py in MessagePack. The frontend says JudgeBoot first, and gets JudgeLoaded;
then each Question gets its one JudgeAnswer, in any order, unless a Cancel came before.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from tandem.logs import Format

PROGRAM: Final = "tandem_frontend.openai.moderations.process"
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""The longest answer; classifiers say 16 KiB each."""


class JudgeBoot(msgspec.Struct, frozen=True, kw_only=True):
    """All that the process must know to judge."""

    classifiers: dict[str, Any]
    """The setting `moderation_classifiers`."""
    model: str
    import_path: list[str]
    """Where the frontend finds modules."""
    log_format: Format
    log_level: str


class JudgeLoaded(msgspec.Struct, frozen=True, kw_only=True):
    """Texts can be judged, or `error` says why not."""

    error: str = ""
    names: tuple[str, ...] = ()
    """Classifiers, in the order of their registration."""
    seconds: float = 0.0
    """The longest timeout of a classifier."""


class ModerationQuestion(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A text that is to be judged."""

    call: int
    text: str
    index: int
    """The text's place among the texts of its request."""
    trace_id: str
    extra_fields: str = ""
    """Fields for classifiers, as a JSON object; empty: none."""


class ModerationCancel(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for an answer to this question any more."""

    call: int


class Judged(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the classifiers say of a text."""

    flagged: bool
    """A blocking classifier blocks it."""
    categories: dict[str, bool]
    scores: dict[str, float]
    """By the same categories."""


class Unjudged(msgspec.Struct, frozen=True, tag=True):
    """No judgement, because a classifier has failed."""

    classifier: str
    reason: str
    """One word."""


class JudgeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    call: int
    said: Judged | Unjudged


encoder = msgspec.msgpack.Encoder()
boots = msgspec.msgpack.Decoder(JudgeBoot)
loads = msgspec.msgpack.Decoder(JudgeLoaded)
Asked: TypeAlias = ModerationQuestion | ModerationCancel
asks: msgspec.msgpack.Decoder[Asked] = msgspec.msgpack.Decoder(
    ModerationQuestion | ModerationCancel
)
answers = msgspec.msgpack.Decoder(JudgeAnswer)
