"""Whatever a router's command holds: it costs its own leg or its own stream."""

from __future__ import annotations

from contextlib import suppress

import pytest
from google.protobuf.message import DecodeError
from wire_extremes import extremes
from worker_harness import Bench, delta

from tandem.engine.base import Ending
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2


@pytest.mark.promise("S6-167")
def test_the_fields_of_a_command_cost_their_own_leg_or_stream(tokenizer: Tokenizer) -> None:
    start = Bench(tokenizer).command(2)
    start.hold_output, start.parent_span = True, 1
    example = worker_pb2.WorkerCommand(
        start=[start],
        release=[5],
        cancel=[worker_pb2.CancelLeg(leg=6, reason="r")],
        keep=[worker_pb2.KeptTask(number=1, task=start.task)],
        forget=[9],
    )
    _try_all(tokenizer, example)


@pytest.mark.promise("S6-167")
def test_the_fields_of_a_task_cost_their_own_leg(tokenizer: Tokenizer) -> None:
    start = Bench(tokenizer).command(2)
    task = common_pb2.Task.FromString(start.task)
    task.tenant = task.cache_salt = "t"
    task.logits.processors.add(name="p", args_json="{}")
    task.metadata["a"] = "b"
    task.regeneration.count = 1
    task.embedding_bias.token_ids, task.embedding_bias.values = b"\1\0\0\0", b"\0" * 4
    task.shown_special_tokens.append(3)
    top = {"top_count": 1, "top_token_id": [4], "top_logprob": [-1.0]}
    task.resume.step.add(token_id=[4], logprob=[-1], **top)
    task.sampling.stop.append("s")
    thought = common_pb2.Thought(begin="b", end="e", opened=True, silent=["s"])
    task.sampling.thought.CopyFrom(thought)
    task.sampling.stop_token_ids.append(1)
    task.sampling.stop_words.add(token_id=[1, 2])
    task.sampling.logit_bias[1] = 1.0
    for name, case in extremes(task):
        start.task = case.SerializeToString()
        _try(tokenizer, name, worker_pb2.WorkerCommand(start=[start]))


def _try_all(tokenizer: Tokenizer, example: worker_pb2.WorkerCommand) -> None:
    for name, case in extremes(example):
        assert isinstance(case, worker_pb2.WorkerCommand)
        _try(tokenizer, name, case)


def _try(tokenizer: Tokenizer, name: str, command: worker_pb2.WorkerCommand) -> None:
    """Another router's leg goes on, to its end."""
    bench = Bench(tokenizer)
    first = bench.start(1)
    stranger = bench.connect()
    with suppress(DecodeError):  # its stream ends
        bench.shell.command(stranger, command)
    stranger.take()
    said = bench.step(delta(first, [20], Ending.LENGTH))
    assert said.closed(1).outcome == worker_pb2.LegClosed.OUTCOME_FINISHED, name
    assert not bench.link.broken.is_set(), name
    bench.shell.disconnect(stranger)
