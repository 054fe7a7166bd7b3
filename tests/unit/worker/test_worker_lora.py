"""Legs that ask for a LoRA adapter: the engine and the hooks are told, and no other is applied."""

from __future__ import annotations

import json
from typing import Any

import pytest
from worker_harness import Bench, delta

from tandem.engine.base import Ending
from tandem.hooks.audit.line import Decided, Renderer
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import worker_pb2

NAMES = frozenset({"sql", "tone"})
FAILED = worker_pb2.LegClosed.OUTCOME_FAILED


def bench(tokenizer: Tokenizer, **more: Any) -> Bench:
    return Bench(tokenizer, lora_adapters=NAMES, **more)


@pytest.mark.promise("S5-410")
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", ["", *sorted(NAMES)])
def test_the_engine_is_given_the_adapter_of_the_task(
    tokenizer: Tokenizer, phase: Any, name: str
) -> None:
    worker = bench(tokenizer, phase=phase)
    assert worker.start(task={"lora_adapter": name})
    assert worker.engine.submitted[-1].lora_adapter == name


@pytest.mark.promise("S5-411")
@pytest.mark.parametrize("name", ["none", "SQL", "sql ", "x" * 70_000])
def test_an_adapter_that_the_worker_has_not_is_refused(tokenizer: Tokenizer, name: str) -> None:
    worker = bench(tokenizer)
    assert worker.start(task={"lora_adapter": name}) == 0
    closed = worker.take().closed(1)
    assert (closed.outcome, closed.error.code) == (FAILED, "model_not_found")
    assert len(closed.error.message) < 200


@pytest.mark.promise("S5-416")
@pytest.mark.parametrize("hooks_run", ["inline", "later"])
def test_hooks_are_told_which_adapter_wrote(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, hooks_run: str
) -> None:
    monkeypatch.setattr(Bench, "hooks_run", hooks_run)
    worker = bench(tokenizer)
    numbers = {}
    for leg, name in enumerate(("sql", "", "tone"), start=1):
        numbers[name] = worker.start(leg, task={"lora_adapter": name})
        worker.step(delta(numbers[name], [20]), delta(numbers[name], [21], Ending.LENGTH))
    for name, number in numbers.items():
        assert {call.lora_adapter for call in worker.hook.of(number)} == {name}
        assert {call.model for call in worker.hook.of(number)} == {"tandem-tiny"}


@pytest.mark.promise("S5-410")
def test_the_second_half_of_a_request_has_the_adapter_of_the_first(tokenizer: Tokenizer) -> None:
    first = bench(tokenizer, phase="prefill", park_seconds=60.0)
    request = first.start(context_only=True, task={"lora_adapter": "sql"})
    (parked,) = first.step(delta(request, [20], Ending.LENGTH)).of(1, "parked")
    for name, accepted in (("sql", True), ("tone", False), ("", False)):
        second = bench(tokenizer)
        task = {"lora_adapter": name}
        assert bool(second.start(task=task, task_digest=parked.task_digest)) is accepted
        if not accepted:
            assert second.take().closed(1).error.code == "voucher_refused"


@pytest.mark.promise("S5-416")
def test_a_line_of_the_audit_log_names_the_adapter() -> None:
    renderer = Renderer("none", b"", worker="w", model="m")

    def line(**more: Any) -> dict[str, Any]:
        decided = Decided(
            phase="decode",
            trace_id="t",
            request_id=1,
            output_index=0,
            hook="h",
            decision="emit",
            text_before="a",
            text_after="a",
            token_count=1,
            **more,
        )
        found: dict[str, Any] = json.loads(renderer.line(decided))
        return found

    assert line(lora_adapter="sql")["lora_adapter"] == "sql"
    assert "lora_adapter" not in line()
