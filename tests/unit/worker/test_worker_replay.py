"""A worker says what its engine makes, and another replays it as if its own engine had made it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from worker_harness import KV, Bench, Said, delta, ids_of, with_logprobs

from tandem.engine.base import Delta, Ending
from tandem.hooks.contract import Chunk, Verdict, emit
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2
from tandem.worker.core.replay import STEPS

pytestmark = pytest.mark.promise("S5-217")


@pytest.fixture(params=["inline", "later"])
def _hooks_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "hooks_run", request.param)


def steps_of(said: Said, leg: int = 1) -> common_pb2.Resumption:
    """All that a leg has said that it made."""
    joined = b"".join(each.steps for each in said.of(leg, "made"))
    return common_pb2.Resumption.FromString(joined)


def numbered(chunk: Chunk) -> Verdict:
    """Depends on how many chunks came before: how their text was cut."""
    return emit(f"{chunk.text_diff}|")


def test_each_step_is_said_with_its_rows_but_the_last(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, hook=False)
    ids = ids_of(tokenizer, "Hello wide world")
    request = bench.start(say_made=True)
    bench.step(Delta(request, ids[:1], kv=KV))
    bench.step(delta(request, ids[1:3]))
    assert [list(step.token_id) for step in steps_of(bench.said).step] == [ids[:1], ids[1:3]]
    assert sum(each.tokens for each in bench.said.of(1, "made")) == 3
    bench.step(delta(request, [*ids[3:], 1], Ending.STOP))
    last = bench.said.of(1, "made")[-1]
    assert (last.over, last.steps) == (True, b"")
    assert bench.said.order[-3:] == ["finish", "made", "closed"]


def test_nothing_is_said_unasked(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, hook=False)
    request = bench.start()
    bench.step(delta(request, [5]), delta(request, [6], Ending.LENGTH))
    assert bench.said.of(1, "made") == []


@pytest.mark.parametrize(
    ("intake", "sampling", "obstacle"),
    [
        ({"obstacle": "hooks say no"}, {}, "hooks say no"),
        (
            {"cannot_resume": {"presence_penalty"}},
            {"presence_penalty": 0.5},
            "its engine cannot go on with presence_penalty",
        ),
        ({"cannot_resume": {"presence_penalty"}}, {"frequency_penalty": 0.5}, ""),
        ({"cannot_resume": {"repetition_penalty"}}, {"repetition_penalty": 1.0}, ""),
        (
            {"cannot_resume": {"repetition_penalty"}},
            {"repetition_penalty": 1.5},
            "its engine cannot go on with repetition_penalty",
        ),
        ({"cannot_resume": {"seed"}}, {"seed": 0}, "its engine cannot go on with seed"),
        ({"cannot_resume": {"seed"}}, {}, ""),
    ],
)
def test_why_nobody_could_go_on_is_said_instead(
    tokenizer: Tokenizer, intake: dict[str, Any], sampling: dict[str, Any], obstacle: str
) -> None:
    bench = Bench(tokenizer, hook=False, **intake)
    request = bench.start(say_made=True, **sampling)
    bench.step(delta(request, [5]), delta(request, [6]))
    first = bench.said.of(1, "made")[0]
    assert first.obstacle == obstacle
    assert len(bench.said.of(1, "made")) == (1 if obstacle else 2)


@pytest.mark.usefixtures("_hooks_run")
@pytest.mark.parametrize("lost_after", [1, 2, 3])
def test_a_replay_comes_to_the_same_rows_whatever_was_shown(
    tokenizer: Tokenizer, lost_after: int
) -> None:
    ids = ids_of(tokenizer, "Hello wide world, stop here and go")
    cuts = [ids[:1], ids[1:3], ids[3:4], ids[4:]]
    fields: dict[str, Any] = {"stop": [" here"], "logprobs": 1, "task": {"want_token_ids": True}}
    whole = Bench(tokenizer, judge=numbered)
    request = whole.start(say_made=True, **fields)
    for count, cut in enumerate(cuts, start=1):
        whole.step(with_logprobs(request, cut))
        if count == lost_after:
            made = steps_of(whole.said)
    whole.settle()

    other = Bench(tokenizer, judge=numbered)
    fields["task"] = {"want_token_ids": True, "resume": made}
    request = other.start(**fields)
    assert list(other.engine.submitted[-1].made) == [
        each for cut in cuts[:lost_after] for each in cut
    ]
    for cut in cuts[lost_after:]:
        other.step(with_logprobs(request, cut))
    other.settle()
    assert other.said.text(101) == whole.said.text(101)
    assert other.said.token_ids(101) == whole.said.token_ids(101)
    assert other.said.logprobs(101) == whole.said.logprobs(101)
    assert other.said.finishes(101) == whole.said.finishes(101)
    chunks = other.hook.of(request)
    assert [each.text_diff for each in chunks] == [each.text_diff for each in whole.hook.of(1)]
    assert chunks[0].replay
    assert not chunks[-1].replay


def test_what_fails_before_the_kv_has_arrived_replays_nothing(tokenizer: Tokenizer) -> None:
    made = common_pb2.Resumption(step=[common_pb2.TokenLogprobs(token_id=[5])])
    bench = Bench(tokenizer)
    request = bench.start(task={"resume": made})
    bench.step(Delta(request, [], Ending.CANCELLED))
    assert bench.said.rows(101) == []
    assert [each.aborted for each in bench.hook.of(request)] == [True]


def test_prefill_s_hook_has_judged_what_goes_on(tokenizer: Tokenizer) -> None:
    made = common_pb2.Resumption(step=[common_pb2.TokenLogprobs(token_id=[5])])
    bench = Bench(tokenizer, phase="prefill")
    request = bench.start(task={"resume": made})
    bench.step(delta(request, [6], Ending.LENGTH))
    assert bench.hook.of(request) == []
    assert bench.said.closed(1).outcome == bench.said.closed(1).OUTCOME_FINISHED


@pytest.mark.parametrize(
    ("resume", "fields"),
    [
        ([[]], {}),
        ([[5] * 400], {}),
        ([[2**31]], {}),
        ([[5]], {"logprobs": 1}),
        ([], {}),
    ],
    ids=["an empty step", "too many", "no token", "no log-probability", "nothing"],
)
def test_what_no_worker_can_have_made_is_refused(
    tokenizer: Tokenizer, resume: list[list[int]], fields: dict[str, Any]
) -> None:
    steps = [common_pb2.TokenLogprobs(token_id=each) for each in resume]
    bench = Bench(tokenizer)
    assert bench.start(task={"resume": common_pb2.Resumption(step=steps)}, **fields) == 0
    assert bench.take().closed(1).error.param == "resume"


async def test_a_long_replay_gives_way_to_other_legs(tokenizer: Tokenizer) -> None:
    count = 3 * STEPS
    steps = [common_pb2.TokenLogprobs(token_id=[5])] * count
    made = common_pb2.Resumption(step=steps)
    bench = Bench(tokenizer)
    request = bench.start(task={"resume": made}, max_tokens=count + 1)
    bench.step(delta(request, [6], Ending.LENGTH))
    assert len(bench.hook.of(request)) == STEPS
    for _ in range(6):
        await asyncio.sleep(0)
    assert len(bench.hook.of(request)) == count + 1
    (finish,) = bench.take().finishes(101)
    assert finish.completion_tokens == count + 1
