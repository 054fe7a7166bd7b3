"""`tandem verify` asks a real stack, as `helm test` does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tandem.cli import main
from tandem.testing.sim_stack import SimStack, sim_stack


@pytest.fixture(scope="module")
def stack() -> Iterator[SimStack]:
    with sim_stack("examples.hooks:PhraseGuard") as running:
        yield running


def metrics(stack: SimStack, *names: str) -> str:
    return ",".join(stack.stack.components[name].launch.metrics for name in names)


def test_a_stack_is_verified_with_its_kv_hook_and_logits_processor(
    stack: SimStack, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = metrics(stack, "prefill_worker-0", "decode_worker-0")
    arguments = ["verify", "--url", stack.url, "--kv", workers, "--timeout", "60"]
    arguments += ["--expect-forced", "--expect-terminate", "forbidden phrase"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "KV cache moved between two workers: prefill 1 sequences" in shown
    assert "stop_reason 'phrase_guard'" in shown


def test_a_phrase_that_no_hook_stops_fails(
    stack: SimStack, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["verify", "--url", stack.url, "--timeout", "60"]
    assert main([*arguments, "--expect-terminate", "another phrase"]) == 1
    assert "no output hook ended the answer" in capsys.readouterr().out
