"""Parts of a request for tests of `tandem.upstream` alone: no HTTP, no gRPC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tandem.byte_budget import ByteBudget
from tandem.histogram import Histogram
from tandem.upstream.request_state import RequestState
from tandem.upstream.submission import SubmittedPrompt
from tandem.v1 import common_pb2, router_pb2
from tandem_frontend.openai.asked import Asked


def submission(**changes: Any) -> Asked:
    """A request with one prompt of three tokens. `changes`: of its task, of what routers are told,
    or of what the frontend alone knows.
    """
    task = {name: changes.pop(name) for name in _TASK & changes.keys()}
    submit = {name: changes.pop(name) for name in _SUBMIT & changes.keys()}
    streaming = {"trace_id": "0" * 32, "model": "tandem-tiny", "streaming": True, "want_text": True}
    fields: dict[str, Any] = {
        "id": "answer-1",
        "prompts": [SubmittedPrompt.of([1, 2, 3], max_tokens=16)],
        "task": common_pb2.Task(**streaming | task),
        "submit": router_pb2.Submit(**{"n": 1, "tokenizer_sha256": "ours", "weight": 1} | submit),
        "withheld_reason": "stop",
        "timeout_seconds": 60.0,
    }
    return Asked(**fields | changes)


def request_state(asked: Asked) -> RequestState:
    """The state of a request that has just been submitted, as its sequence 1 and what follows."""
    return RequestState(
        asked,
        FakeClient(),
        base=1,
        common_task=b"",
        deadline=0.0,
        parent_span=0,
        budget=ByteBudget(),
        backlog_limit=1000,
        inter_token=Histogram((1.0,)).add,
        touched=[],
        release=lambda state: None,
    )


_TASK = set(common_pb2.Task.DESCRIPTOR.fields_by_name)
_SUBMIT = set(router_pb2.Submit.DESCRIPTOR.fields_by_name) - _TASK - {"session"}


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
