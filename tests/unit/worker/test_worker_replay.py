"""A worker says what its engine makes, and another replays it as if its own engine had made it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from worker_harness import Bench, Said, delta, ids_of, with_logprobs

from tandem.engine.base import Ending
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
