"""One decision, as it is written to the audit log."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from tandem.hooks.audit.settings import Content
from tandem.hooks.contract import Phase

MAX_TEXT = 8_000
"""Characters. Of a longer text there is a digest, whatever `content` is."""
MAX_REASON = 200
Describe = Callable[[str], dict[str, Any]]


class Decided(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """A decision on its way to the log."""

    phase: Phase
    trace_id: str
    request_id: int
    output_index: int
    tenant: str = ""
    """The name of the client's key; empty: no key was asked."""
    hook: str
    decision: str
    """emit (unchanged), rewrite, suppress, terminate, block, annotate, error, timeout, or one of
    these after "shadow:".
    """
    reason: str = ""
    text_before: str
    """The text that the hook judged."""
    text_after: str | None
    """The text after the verdict; None: nothing is shown."""
    token_count: int
    """The sequence's tokens so far."""
    replay: bool = False
    """Decided once more, after the worker was lost that had."""
    lora_adapter: str = ""
    at: float = msgspec.field(default_factory=time.time)
    """Seconds since the epoch."""

    def characters(self) -> int:
        """How many characters of text it refers to."""
        return len(self.text_before) + len(self.text_after or "")


class Renderer:
    """Makes lines of what one process decided."""

    def __init__(self, content: Content, key: bytes, *, worker: str, model: str) -> None:
        self._describe = _describer(content, key)
        self._worker = worker
        self._model = model

    def line(self, decided: Decided) -> bytes:
        """A JSON object and the end of its line."""
        after = decided.text_after
        return _encode(
            {
                "time": _timestamp(decided.at),
                "phase": decided.phase,
                "worker": self._worker,
                "model": self._model,
                "trace_id": decided.trace_id,
                "request_id": decided.request_id,
                "output_index": decided.output_index,
                "tenant": decided.tenant or None,
                "hook": decided.hook,
                "decision": decided.decision,
                "reason": _whole_characters(decided.reason[:MAX_REASON]),
                "tokens": decided.token_count,
                "before": self._describe(decided.text_before),
                "after": None if after is None else self._describe(after),
                **({"replay": True} if decided.replay else {}),
                **({"lora_adapter": decided.lora_adapter} if decided.lora_adapter else {}),
            }
        )

    def lost(self, at: float, count: int) -> bytes:
        """Says in the log itself that so many records before this line are missing."""
        return _encode(
            {"time": _timestamp(at), "worker": self._worker, "decision": "lost", "count": count}
        )


def _describer(content: Content, key: bytes) -> Describe:
    """What is written about a text. Never a plain digest: a chunk's text is a token or two, and is
    found by whoever has the vocabulary.
    """

    def size(text: str) -> dict[str, Any]:
        return {"characters": len(text)}

    def digest(text: str) -> dict[str, Any]:
        return {
            "characters": len(text),
            "hmac_sha256": hmac.digest(key, _utf8(text), "sha256").hex(),
        }

    def full(text: str) -> dict[str, Any]:
        if len(text) > MAX_TEXT:
            return digest(text)
        return {"characters": len(text), "text": _whole_characters(text)}

    return {"none": size, "hash": digest, "full": full}[content]


def _encode(entry: dict[str, Any]) -> bytes:
    return msgspec.json.encode(entry) + b"\n"


def _timestamp(at: float) -> str:
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return moment.removesuffix("+00:00") + "Z"


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _whole_characters(text: str) -> str:
    """Without half characters, which JSON cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
