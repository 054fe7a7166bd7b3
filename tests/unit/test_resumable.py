"""What a frontend lets through of an output that is said again, however its rows are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.byte_budget import ByteBudget
from tandem.errors import WorkerLostError
from tandem.upstream.resumable import ResumableState
from tandem.upstream.submission import Submission, SubmittedPrompt
from tandem.v1 import common_pb2, router_pb2

pytestmark = pytest.mark.promise("S5-217", "S5-218")
BASE = 7


class Client:
    def watch(self, *, on_lost: object, on_stall: object) -> None:
        pass

    def abort(self) -> None:
        pass


@dataclass(frozen=True)
class Piece:
    text: str
    token_ids: tuple[int, ...]


def state_of() -> ResumableState:
    submission = Submission(
        id="a",
        prompts=[SubmittedPrompt.of([1], max_tokens=100)],
        task=common_pb2.Task(trace_id="t", model="m", want_token_ids=True),
        submit=router_pb2.Submit(n=1, resume=True),
        withheld_reason="stop",
        timeout_seconds=1.0,
    )
    return ResumableState(
        submission,
        Client(),
        base=BASE,
        common_task=b"",
        deadline=1.0,
        parent_span=0,
        backlog_limit=10_000,
        budget=ByteBudget(),
        inter_token=None,
        touched=[],
        release=lambda state: None,
    )


def say(state: ResumableState, pieces: Sequence[Piece], first: int = 0) -> int:
    """As rows, from an offset on. Returns the next one."""
    for offset, piece in enumerate(pieces, first):
        logprobs = common_pb2.TokenLogprobs(
            sequence=BASE,
            token_id=piece.token_ids,
            logprob=[float(-each) for each in piece.token_ids],
            top_count=1,
            top_token_id=piece.token_ids,
            top_logprob=[float(-each) for each in piece.token_ids],
        )
        entries = (logprobs,) if piece.token_ids else ()
        count = len(piece.token_ids)
        assert state.row(BASE, offset, count, piece.text, 1.0, False, piece.token_ids, entries)
        if state.error is not None:
            break
    return first + len(pieces)


def shown(state: ResumableState) -> tuple[str, list[int], list[int]]:
    rows = state._rows
    text = "".join(row[1] for row in rows)
    token_ids = [each for row in rows for each in row[2]]
    logprobs = [each for row in rows for entry in row[3] for each in entry.token_id]
    assert sum(row[4] for row in rows) == len(token_ids)
    assert all(
        len(entry.logprob) == len(entry.top_token_id) == len(entry.token_id)
        for row in rows
        for entry in row[3]
    )
    return text, token_ids, logprobs


pieces = st.lists(
    st.builds(
        Piece,
        st.text("ab\N{GRINNING FACE}", max_size=3),
        st.lists(st.integers(0, 9), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=8,
)


def joined(given: Sequence[Piece]) -> Piece:
    ids = tuple(each for piece in given for each in piece.token_ids)
    return Piece("".join(piece.text for piece in given), ids)


@given(pieces, st.data())
def test_what_was_shown_is_not_shown_again_and_what_follows_is(
    output: list[Piece], data: st.DataObject
) -> None:
    lost_at = data.draw(st.integers(0, len(output)))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(output)))) | {len(output)})
    again = [joined(output[a:b]) for a, b in zip([0, *cuts], cuts, strict=False)]
    state, whole = state_of(), state_of()
    say(whole, output)
    say(state, output[:lost_at])
    state.begin(BASE)
    assert state.silent(BASE) is (lost_at == 0)
    rows = say(state, again)
    state.finish(common_pb2.Finish(sequence=BASE, rows=rows))
    assert state.error is None
    assert shown(state) == shown(whole)
    assert not state.open_choices


@pytest.mark.parametrize(
    "again",
    [
        [Piece("aB", (1, 2)), Piece("c", (3,))],
        [Piece("ab", (1, 9)), Piece("c", (3,))],
        [Piece("a", (1,)), Piece("bc", (3,))],
        [Piece("abc", (1,))],
        [Piece("a", (1, 2, 3)), Piece("b", ())],
    ],
    ids=["text", "ids", "fewer tokens", "text before its tokens", "tokens before their text"],
)
def test_what_comes_otherwise_ends_the_request_and_nothing_of_it_is_shown(
    again: list[Piece],
) -> None:
    state = state_of()
    say(state, [Piece("a", (1,)), Piece("b", (2,))])
    state.begin(BASE)
    say(state, again)
    assert isinstance(state.error, WorkerLostError)
    assert "not resumed" in state.error.message
    assert shown(state)[0] == "ab"


def test_an_output_that_ends_before_what_was_shown_is_another() -> None:
    state = state_of()
    say(state, [Piece("a", (1,)), Piece("b", (2,))])
    state.begin(BASE)
    say(state, [Piece("a", (1,))])
    state.finish(common_pb2.Finish(sequence=BASE, rows=1))
    assert isinstance(state.error, WorkerLostError)


def test_a_row_that_is_missing_in_a_replay_is_noticed() -> None:
    state = state_of()
    say(state, [Piece("a", (1,)), Piece("b", (2,))])
    state.begin(BASE)
    assert not state.row(BASE, 1, 1, "b", 1.0, False, (2,))
