"""What a worker makes of a task: prompts, numbers and logits processors, for its engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from worker_harness import Bench, delta

from tandem.engine.base import Ending
from tandem.logits.spec import forced_token_sequence
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2


def test_a_text_prompt_is_tokenised_here(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    bench.start(task={"prompt_token_ids": [], "prompt_text": "Hello world"})
    expected = tokenizer.encode("Hello world", special_tokens=True)
    assert list(bench.engine.submitted[0].token_ids) == expected


@pytest.mark.promise("S1-040", "S1-045")
@pytest.mark.parametrize(("phase", "applies"), [("prefill", False), ("decode", True)])
def test_a_generation_only_spec_stays_out_of_prefill(
    tokenizer: Tokenizer, phase: Any, applies: bool
) -> None:
    bench = Bench(tokenizer, phase=phase)
    spec = common_pb2.LogitsSpec(
        processors=[common_pb2.LogitsProcessor(name="forced_sequence", args_json="{}")],
        generation_only=True,
    )
    bench.start(task={"logits": spec})
    assert (bench.engine.submitted[0].logits is not None) is applies


@pytest.mark.promise("S3-095")
def test_an_id_that_two_routers_give_at_once_or_one_gives_again_is_three_requests(
    tokenizer: Tokenizer,
) -> None:
    """The engine keeps a processor's state by ids of the worker's own, which are never reused."""
    bench = Bench(tokenizer)
    other = bench.connect()

    def spec(token: int) -> dict[str, Any]:
        forced = common_pb2.LogitsProcessor(
            name="forced_sequence", args_json=json.dumps({"token_ids": [token]})
        )
        return {"logits": common_pb2.LogitsSpec(processors=[forced])}

    ids = [bench.start(task=spec(5)), bench.start(link=other, task=spec(6))]
    bench.step(delta(ids[0], [5], Ending.STOP))
    ids.append(bench.start(task=spec(7)))
    assert len({*ids} - {0}) == 3
    asked = [each.logits for each in bench.engine.submitted]
    assert [each and each.entries[0].args["token_ids"] for each in asked] == [[5], [6], [7]]


@pytest.mark.promise("S1-045")
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_test_switch_reaches_every_request_in_both_phases(
    tokenizer: Tokenizer, phase: Any
) -> None:
    forced = forced_token_sequence([5, 6], 1)
    bench = Bench(tokenizer, phase=phase, forced=forced)
    bench.start()
    spec = bench.engine.submitted[0].logits
    assert spec is not None
    assert spec.entries == (forced,)


def test_bytes_that_are_no_task_are_refused(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    command = worker_pb2.StartLeg(leg=1, room=1, task=b"\xff\xff")
    bench.shell.command(bench.link, worker_pb2.WorkerCommand(start=[command]))
    assert bench.take().closed(1).error.code == "invalid_request"
