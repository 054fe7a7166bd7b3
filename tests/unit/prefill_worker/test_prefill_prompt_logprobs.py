"""Log-probabilities of a prompt leave prefill in bounded frames, before its verdict and its end."""

from __future__ import annotations

from typing import Any

import pytest
from worker_harness import Bench, delta, taken

from tandem.engine.base import Delta, Ending, Logprobs, PromptLogprobs
from tandem.errors import HookError, InvalidRequestError
from tandem.hooks.contract import Chunk, suppress
from tandem.message_limits import MAX_PROMPT_LOGPROBS
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker import task_checks
from tandem.worker.core.outgoing import FRAME_BYTES, MAX_ROW_BYTES

TOKENS, ALTERNATIVES = 4000, 5


def _scored(request_id: int, tokens: int) -> Delta:
    ids = list(range(tokens))
    top = [[(place + 1, -0.25)] * ALTERNATIVES for place in ids[1:]]
    logprobs = Logprobs([-float(place) for place in ids[1:]], top)
    first = delta(request_id, [20], Ending.LENGTH)
    first.prompt_logprobs = PromptLogprobs(ids, logprobs)
    return first


def _raise(chunk: Chunk) -> Any:
    raise RuntimeError("no")


def _frames(bench: Bench) -> list[worker_pb2.WorkerFrame]:
    frames = []
    while (frame := taken(bench.link)) is not None:
        frames.append(frame)
        bench.said.add(frame)
    return frames


@pytest.mark.promise("S6-331")
@pytest.mark.parametrize("judge", [None, lambda chunk: suppress()])
def test_all_of_them_go_before_the_verdict_that_lets_decode_go(
    tokenizer: Tokenizer, judge: Any
) -> None:
    bench = Bench(tokenizer, phase="prefill", judge=judge)
    request = bench.start(prompt_logprobs=ALTERNATIVES)
    bench.shell.on_step(bench.engine.note([_scored(request, TOKENS)]))
    if bench.later is not None:
        bench.shell.on_rulings(bench.later.rulings())
    frames = _frames(bench)
    assert len(frames) > 1
    assert max(frame.ByteSize() for frame in frames) < FRAME_BYTES + 4 * MAX_ROW_BYTES
    parts = bench.said.prompt_logprobs(101)
    assert [place for part in parts for place in part.token_id] == list(range(TOKENS))
    assert [part.place for part in parts] == [part.token_id[0] for part in parts]
    assert [value for part in parts for value in part.logprob[:]][1:] == [
        -float(place) for place in range(1, TOKENS)
    ]
    assert all(len(each.top_logprob) == ALTERNATIVES * len(each.token_id) for each in parts[1:])
    assert bench.said.order[-2:] == ["verdict", "closed"]
    assert bench.said.rows(101) == []
    assert bench.core.budget.held == 0


@pytest.mark.promise("S6-331")
def test_a_hook_that_fails_lets_nothing_go_behind_its_failure(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, phase="prefill", judge=_raise)
    request = bench.start(prompt_logprobs=0)
    said = bench.step(_scored(request, 3))
    assert said.closed(1).error.code == HookError.code
    assert said.order[-1] == "closed"
    assert "verdict" not in said.order


@pytest.mark.promise("S6-332")
def test_more_than_travels_is_refused_by_the_worker_itself(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, phase="prefill", park_seconds=5.0)
    assert bench.start(1, prompt_logprobs=21) == 0
    assert bench.take().closed(1).error.param == "prompt_logprobs"
    assert bench.start(2, prompt_logprobs=0, context_only=True) == 0
    assert bench.take().closed(2).error.param == "prompt_logprobs"
    sampling = common_pb2.SamplingParams(prompt_logprobs=3)
    task_checks.check_prompt_logprobs(sampling, MAX_PROMPT_LOGPROBS // 4)
    with pytest.raises(InvalidRequestError, match="prompt_logprobs"):
        task_checks.check_prompt_logprobs(sampling, MAX_PROMPT_LOGPROBS // 4 + 1)
    task_checks.check_prompt_logprobs(common_pb2.SamplingParams(), MAX_PROMPT_LOGPROBS + 1)
