"""Token payloads: what a relay may do with them without opening them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandem.v1 import common_pb2
from tandem.wire import columns

ROW = st.tuples(
    st.integers(1, 2**40), st.integers(1, 4), st.text(max_size=8), st.integers(0, 2**20)
)


def _serialize(rows: list[tuple[int, int, str, int]]) -> bytes:
    draft = columns.Draft()
    for sequence, count, text, token in rows:
        draft.add(sequence, 0, count, text, [token] * count)
        draft.rest.finish.append(common_pb2.Finish(sequence=sequence, stop_reason=text))
    return draft.serialize()


@given(rows=st.lists(ROW, max_size=20), cut=st.integers(0, 20))
def test_two_payloads_joined_are_the_payload_of_both(
    rows: list[tuple[int, int, str, int]], cut: int
) -> None:
    joined = _serialize(rows[:cut]) + _serialize(rows[cut:])
    assert columns.parse(joined) == columns.parse(_serialize(rows))


def test_a_row_without_token_ids_takes_none_of_another_rows() -> None:
    draft = columns.Draft()
    draft.add(1, 0, 2, "ab")
    draft.add(2, 0, 2, "", [7, 8])
    parsed = columns.parse(draft.serialize())
    assert list(parsed.sequence) == [1, 2]
    assert list(parsed.token_count) == [2, 2]
    assert list(parsed.token_id) == [7, 8]


@given(
    sequence=st.integers(0, 2**64 - 1),
    offset=st.integers(0, 2**32 - 1),
    count=st.integers(0, 2**32 - 1),
    text=st.text(max_size=200) | st.just("x" * 20_000),
)
@example(sequence=127, offset=128, count=16_383, text="")
@example(sequence=128, offset=127, count=16_384, text="x" * 127)
@example(sequence=16_383, offset=16_384, count=1, text="x" * 128)
def test_a_lone_row_is_written_as_protobuf_writes_it(
    sequence: int, offset: int, count: int, text: str
) -> None:
    draft = columns.Draft()
    draft.add(sequence, offset, count, text)
    row = common_pb2.TokenColumns(
        sequence=[sequence], offset=[offset], token_count=[count], text=[text]
    )
    assert sorted(draft.serialize()) == sorted(row.SerializeToString())
    assert columns.parse(draft.serialize()) == row


def test_a_lone_row_keeps_its_token_ids() -> None:
    draft = columns.Draft()
    draft.add(1, 3, 2, "ab", [7, 8])
    assert list(columns.parse(draft.serialize()).token_id) == [7, 8]


def test_a_lone_row_keeps_what_comes_with_it() -> None:
    draft = columns.Draft()
    draft.add(1, 3, 2, "ab")
    draft.rest.finish.append(common_pb2.Finish(sequence=1, rows=4))
    draft.rest.report.append(common_pb2.PhaseReport(sequence=1))
    parsed = columns.parse(draft.serialize())
    assert (list(parsed.text), parsed.finish[0].rows, len(parsed.report)) == (["ab"], 4, 1)


def test_rows_without_anything_else_are_all_written() -> None:
    draft = columns.Draft()
    for sequence in (1, 2, 3):
        draft.add(sequence, 0, 1, "a")
    assert list(columns.parse(draft.serialize()).sequence) == [1, 2, 3]


def test_of_ids_that_cannot_be_none_is_taken() -> None:
    draft = columns.Draft()
    draft.add(1, 0, 1, "", [7])
    with pytest.raises(OverflowError):
        draft.add(2, 0, 2, "", [8, -1])
    parsed = columns.parse(draft.serialize())
    assert (list(parsed.sequence), list(parsed.token_id)) == ([1], [7])


@pytest.mark.parametrize("rows", [1, 2])
def test_a_text_that_is_no_unicode_is_not_written_before_it_is_blanked(rows: int) -> None:
    draft = columns.Draft()
    for sequence in range(rows):
        draft.add(sequence, 0, 1, "\udc80")
    draft.rest.finish.append(common_pb2.Finish(sequence=0, rows=1))
    with pytest.raises(ValueError, match=r"utf-8|UTF-8"):
        draft.serialize()
    assert draft.blank() == set(range(rows))
    parsed = columns.parse(draft.serialize())
    assert (list(parsed.text), parsed.finish[0].rows) == ([""] * rows, 2)


def test_nothing_is_no_bytes() -> None:
    assert columns.Draft().serialize() == b""
