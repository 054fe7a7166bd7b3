"""Parts of a request for tests of `tandem.upstream` alone: no HTTP, no gRPC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tandem.upstream.submission import Prompt
from tandem.v1 import common_pb2
from tandem_frontend.openai.asked import Asked


def submission(**changes: Any) -> Asked:
    """A request with one prompt of three tokens."""
    fields: dict[str, Any] = {
        "id": "answer-1",
        "trace_id": "0" * 32,
        "model": "tandem-tiny",
        "tokenizer_sha256": "ours",
        "prompts": [Prompt.of([1, 2, 3], max_tokens=16)],
        "n": 1,
        "sampling": common_pb2.SamplingParams(),
        "logits": None,
        "streaming": True,
        "want_token_ids": False,
        "want_report": False,
        "want_external_scores": False,
        "metadata": {},
        "withheld_reason": "stop",
        "timeout_seconds": 60.0,
        "priority": 0,
    }
    return Asked(**fields | changes)


class FakeClient:
    """Goes away when the test says so."""

    def __init__(self) -> None:
        self.aborted = False
        self.lose: Callable[[], object] = lambda: None
        self.stall: Callable[[], object] = lambda: None

    def watch(self, *, on_lost: Callable[[], object], on_stall: Callable[[], object]) -> None:
        self.lose, self.stall = on_lost, on_stall

    def abort(self) -> None:
        self.aborted = True
