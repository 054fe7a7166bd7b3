"""Output of any size leaves in bounded frames, in order, and costs no link."""

from __future__ import annotations

import json
from typing import Any

import pytest
from one_case import one_case
from scripted_engine import LIMITS
from worker_harness import Bench, Said, delta, taken

from tandem.engine.base import Delta, Ending, Logprobs
from tandem.errors import HookError
from tandem.hooks.contract import Chunk, emit, suppress, terminate
from tandem.text.stop_strings import TokenLogprob
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.core import outgoing, shows
from tandem.worker.core.outgoing import FRAME_BYTES, MAX_ROW_BYTES, WaitingRow

FIRST, TOKENS = 20, 400
ALTERNATIVES = 20
ROWS = LIMITS.max_sequences
FAILED = worker_pb2.LegClosed.OUTCOME_FAILED


def _rich(request_id: int, first: int, *, end: bool) -> Delta:
    """Forty tokens with their alternatives."""
    ids = list(range(first, first + 40))
    top = [[(token_id + place, -float(place)) for place in range(ALTERNATIVES)] for token_id in ids]
    logprobs = Logprobs([-float(token_id) for token_id in ids], top)
    return Delta(request_id, ids, Ending.LENGTH if end else None, logprobs)


def _whole(chunk: Chunk) -> Any:
    """Holds everything until the end."""
    if chunk.is_final:
        return emit(chunk.text)
    _tokens[chunk.request_id] = _tokens.get(chunk.request_id, 0) + len(chunk.token_ids_diff)
    return suppress(hold_tokens=_tokens[chunk.request_id])


_tokens: dict[int, int] = {}


class Frames:
    """All frames that a link has, each measured."""

    def __init__(self, bench: Bench) -> None:
        self.said: Said = bench.said
        self.sizes: list[int] = []
        while (frame := taken(bench.link)) is not None:
            self.sizes.append(frame.ByteSize())
            self.said.add(frame)


@pytest.fixture(params=["inline", "later"], autouse=True)
def _hooks_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test: with hooks that judge at once, and with ones that judge elsewhere."""
    monkeypatch.setattr(Bench, "hooks_run", request.param)
    _tokens.clear()


def test_held_output_of_many_sequences_leaves_in_bounded_frames(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, judge=_whole)
    legs = range(1, ROWS + 1)
    task = {"want_token_ids": True}
    requests = [bench.start(leg, task=task, logprobs=20, max_tokens=TOKENS) for leg in legs]
    ids = list(range(FIRST, FIRST + TOKENS))
    for first in ids[::40]:
        last = first + 40 == FIRST + TOKENS
        deltas = [_rich(request, first, end=last) for request in requests]
        bench.shell.on_step(bench.engine.note(deltas))
        if bench.later is not None:
            bench.shell.on_rulings(bench.later.rulings())
    assert not bench.link.broken.is_set()
    frames = Frames(bench)
    said = frames.said
    assert len(frames.sizes) > 3
    assert max(frames.sizes) < FRAME_BYTES + 4 * MAX_ROW_BYTES
    for leg in legs:
        assert said.token_ids(100 + leg) == ids
        assert said.text(100 + leg) == tokenizer.decode(ids)
        assert [each for entry in said.logprobs(100 + leg) for each in entry.token_id] == ids
        assert all(
            len(entry.top_token_id) == ALTERNATIVES * len(entry.token_id)
            for entry in said.logprobs(100 + leg)
        )
        assert said.closed(leg).outcome == worker_pb2.LegClosed.OUTCOME_FINISHED
        assert len(said.finishes(100 + leg)) == 1


def test_each_sequence_has_its_turn_and_others_do_not_wait(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, judge=lambda chunk: emit(_long(chunk)))
    first, second, third = bench.start(1), bench.start(2), bench.start(3)
    bench.shell.on_step(bench.engine.note([delta(first, [20]), delta(second, [20])]))
    bench.shell.on_step(bench.engine.note([delta(third, [21])]))
    if bench.later is not None:
        bench.shell.on_rulings(bench.later.rulings())
    said = bench.take()
    assert said.text(103) != "", "a row goes at once, whatever waits of others"
    assert said.rows(101)
    assert said.rows(102)
    assert len(said.text(101)) < 300_000


def _long(chunk: Chunk) -> str:
    return "ö" * 300_000 if chunk.token_ids_diff == (20,) else chunk.text_diff


def test_rows_finish_and_close_follow_what_waits(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, judge=lambda chunk: emit(_long(chunk)))
    request = bench.start(1, task={"want_report": True})
    deltas = [delta(request, [20]), delta(request, [21]), delta(request, [22], Ending.LENGTH)]
    for each in deltas:
        bench.shell.on_step(bench.engine.note([each]))
        if bench.later is not None:
            bench.shell.on_rulings(bench.later.rulings())
    said = Frames(bench).said
    rest = tokenizer.decode([21, 22])
    assert said.text(101) == "ö" * 300_000 + rest
    assert [kind for kind in said.order if kind != "sequence"] == [
        "started",
        "finish",
        "report",
        "closed",
    ]
    assert said.order[-1] == "closed"
    bench.said.order.clear()
    assert bench.core.outgoing(bench.link.number).backlog == 0


def test_a_row_after_all_has_left_goes_straight_again(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, judge=lambda chunk: emit(_long(chunk)))
    request = bench.start(1)
    bench.step(delta(request, [20]))
    Frames(bench)
    bench.step(delta(request, [21]))
    leg = bench.leg(request)
    assert leg is not None
    assert leg.waiting is None
    assert bench.said.text(101) == "ö" * 300_000 + tokenizer.decode([21])


@pytest.mark.parametrize("ends", ["cancel", "deadline", "failure"])
def test_what_waits_of_a_sequence_that_failed_is_dropped(tokenizer: Tokenizer, ends: str) -> None:
    def judge(chunk: Chunk) -> Any:
        if chunk.token_ids_diff == (22,):
            raise RuntimeError
        return emit(_long(chunk))

    bench = Bench(tokenizer, judge=judge)
    request = bench.start(1)
    bench.step(delta(request, [20]))
    if ends == "cancel":
        bench.cancel(1, "client")
    elif ends == "deadline":
        bench.now += 3600
        bench.shell.tell(bench.core.tick)
    else:
        bench.step(delta(request, [22]))
    before = len(bench.said.text(101))
    bench.settle()
    said = Frames(bench).said
    assert len(said.text(101)) <= before
    assert said.closed(1).outcome in (FAILED, worker_pb2.LegClosed.OUTCOME_CANCELLED)
    assert not bench.core.outgoing(bench.link.number).waits


def test_what_waits_of_one_sequence_is_bounded_and_only_it_fails(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shows, "MAX_PARCEL_BYTES", 2_000_000)
    bench = Bench(tokenizer, judge=lambda chunk: emit(_long(chunk)))
    request, other = bench.start(1), bench.start(2)
    for _ in range(2):
        bench.shell.on_step(bench.engine.note([delta(request, [20])]))
        if bench.later is not None:
            bench.shell.on_rulings(bench.later.rulings())
    bench.settle()
    bench.step(delta(other, [21], Ending.LENGTH))
    said = Frames(bench).said
    assert (said.closed(1).outcome, said.closed(1).error.code) == (FAILED, "worker_error")
    assert said.closed(2).outcome == worker_pb2.LegClosed.OUTCOME_FINISHED
    assert not bench.link.broken.is_set()


def test_held_output_is_released_in_bounded_frames(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, judge=lambda chunk: emit("ö" * 100_000))
    request = bench.start(1, hold=True)
    for token in (20, 21, 22):
        bench.step(delta(request, [token]))
    assert bench.said.text(101) == ""
    bench.release(1)
    bench.shell.on_step(bench.engine.note([delta(request, [23], Ending.LENGTH)]))
    if bench.later is not None:
        bench.shell.on_rulings(bench.later.rulings())
    frames = Frames(bench)
    assert frames.said.text(101) == "ö" * 400_000
    assert max(frames.sizes) < FRAME_BYTES + 2 * MAX_ROW_BYTES
    assert frames.said.order[-1] == "closed"


def test_large_scores_wait_their_turn(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, hook=False)
    requests = [bench.start(leg) for leg in range(1, ROWS + 1)]
    scores = json.dumps({"c": "x" * 160_000})
    for request in requests:
        leg = bench.leg(request)
        assert leg is not None
        leg.scores = scores
    deltas = [delta(request, [20], Ending.LENGTH) for request in requests]
    bench.shell.on_step(bench.engine.note(deltas))
    frames = Frames(bench)
    assert max(frames.sizes) < FRAME_BYTES + len(scores)
    for leg_number in range(1, ROWS + 1):
        (finish,) = frames.said.finishes(100 + leg_number)
        assert finish.external_scores == scores
        assert frames.said.closed(leg_number)


def test_what_has_left_does_not_count_as_waiting(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shows, "MAX_PARCEL_BYTES", 2_000_000)
    bench = Bench(tokenizer, judge=lambda chunk: emit(_long(chunk)))
    request = bench.start(1)
    for _ in range(3):
        bench.step(delta(request, [20]))
        for _ in range(4):  # as a router that is slower than the hook, but reads
            bench.take()
    bench.step(delta(request, [21], Ending.LENGTH))
    said = Frames(bench).said
    assert said.closed(1).outcome == worker_pb2.LegClosed.OUTCOME_FINISHED
    assert said.text(101).count("ö") == 900_000


@one_case("parts", [1, 2, 3, 7, 50])
def test_a_row_is_cut_without_loss(parts: int) -> None:
    logprobs: list[TokenLogprob] = [(-1.0 * place, [(place, -0.5)]) for place in range(10)]
    row = WaitingRow(10, "text, ☃ and more", tuple(range(10)), logprobs)
    rows = row.cut(parts)
    assert len(rows) == parts
    assert "".join(each.text for each in rows) == row.text
    assert [each for part in rows for each in part.token_ids] == list(range(10))
    assert [each for part in rows for each in part.logprobs or ()] == logprobs
    assert sum(each.token_count for each in rows) == 10


def test_a_size_is_never_less_than_what_travels() -> None:
    logprobs: list[TokenLogprob] = [(-0.1, [(2**31, -0.5)] * 20)] * 50
    row = WaitingRow(50, "\U0001f600" * 1000, (100_000,) * 50, logprobs)
    draft = outgoing.Draft()
    outgoing.write(draft, 2**62 + 7, 2**31, row, shows_ids=True)
    assert len(draft.serialize()) <= row.size + 50 * 4 + 50 * 20  # ids are varints of up to 5 bytes


# --- how many tokens a client is told ------------------------------------------------------------


def test_tokens_are_what_hooks_are_handed_and_nobody_can_change_them(tokenizer: Tokenizer) -> None:
    kinds: set[type] = set()

    def judge(chunk: Chunk) -> Any:
        kinds.add(type(chunk.token_ids_diff))
        return emit(chunk.text_diff, hold_tokens=0 if chunk.is_final else 1)

    for stop in ([], ["END"]):
        bench = Bench(tokenizer, judge=judge)
        request = bench.start(stop=stop, task={"want_token_ids": True})
        bench.step(delta(request, [20, 21]))
        bench.step(delta(request, [22]))
        bench.step(delta(request, [23, 24], Ending.LENGTH))
        assert bench.said.token_ids(101) == [20, 21, 22, 23, 24]
    assert kinds == {tuple}


@pytest.mark.parametrize(
    "verdict", [lambda: terminate("r" * 20_000_000), lambda: emit("x" * 17_000_000)]
)
def test_a_verdict_beyond_its_bound_costs_its_own_leg(tokenizer: Tokenizer, verdict: Any) -> None:
    def judge(chunk: Chunk) -> Any:
        return verdict() if chunk.request_id == 2 else emit(chunk.text_diff)

    bench = Bench(tokenizer, judge=judge)
    first, second = bench.start(1), bench.start(2)
    bench.step(delta(first, [20]), delta(second, [20]))
    bench.step(delta(first, [21], Ending.LENGTH))
    bench.settle()
    said = Frames(bench).said
    assert (said.closed(2).outcome, said.closed(2).error.code) == (FAILED, HookError.code)
    assert len(said.closed(2).error.message) < 200
    assert said.closed(1).outcome == worker_pb2.LegClosed.OUTCOME_FINISHED


def test_an_error_of_any_length_travels_short_and_as_valid_text() -> None:
    error = HookError("ö\ud800" * 1_000_000).to_proto()
    assert len(error.message) <= 2000
    assert common_pb2.Error.FromString(error.SerializeToString()) == error
