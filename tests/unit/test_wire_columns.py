"""Token payloads: what a relay may do with them without opening them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from one_case import one_case

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


# --- a lone row that is read by hand -----------------------------------------------------------

NUMBERS = st.sampled_from([0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, 2**28 - 1, 2**28, 2**32 - 1])
LONE = st.tuples(
    NUMBERS | st.sampled_from([2**56 - 1, 2**56, 2**62, 2**64 - 1]),
    NUMBERS,
    NUMBERS,
    st.text(max_size=140),
)


def _lone(sequence: int, offset: int, count: int, text: str) -> bytes:
    draft = columns.Draft()
    draft.add(sequence, offset, count, text)
    return draft.serialize()


@given(row=LONE)
@example(row=(1, 0, 1, "x" * 127))
@example(row=(1, 0, 1, "x" * 128))
@example(row=(2**56 - 1, 2**28 - 1, 127, "é"))
def test_a_lone_row_is_read_as_it_was_written(row: tuple[int, int, int, str]) -> None:
    sequence, offset, count, text = row
    small = sequence < 2**56 and offset < 2**28 and count < 0x80 and len(text.encode()) < 0x80
    assert columns.lone_row(_lone(*row)) == (row if small else None)


@given(
    row=LONE,
    place=st.integers(0, 200),
    cut=st.integers(0, 3),
    put=st.binary(max_size=3),
    then=st.sampled_from([b"", _lone(2, 1, 1, "y")]),
)
@example(row=(1, 0, 1, "é"), place=9, cut=1, put=b"", then=b"")
@example(row=(5, 0, 1, "x"), place=1, cut=2, put=b"\x02\x05\x06", then=b"")
@example(row=(0x80, 0, 1, "x"), place=3, cut=1, put=b"\x81", then=b"")
@example(row=(1, 0, 1, "x"), place=5, cut=1, put=b"\x81", then=b"")
@example(row=(1, 0, 1, "x"), place=1, cut=2, put=b"\x00", then=b"")
@example(row=(1, 0, 1, "x"), place=2, cut=1, put=b"\x81", then=b"")
def test_what_is_read_by_hand_protobuf_reads_the_same(
    row: tuple[int, int, int, str], place: int, cut: int, put: bytes, then: bytes
) -> None:
    """Whatever a worker sends: what is read otherwise would be another request's."""
    written = _lone(*row)
    payload = written[:place] + put + written[place + cut :] + then
    read = columns.lone_row(payload)
    if read is not None:
        sequence, offset, count, text = read
        assert columns.parse(payload) == common_pb2.TokenColumns(
            sequence=[sequence], offset=[offset], token_count=[count], text=[text]
        )


@one_case("end", range(len(_lone(300, 300, 1, "text"))))
def test_a_part_of_a_row_is_none(end: int) -> None:
    assert columns.lone_row(_lone(300, 300, 1, "text")[:end]) is None


def test_a_payload_with_anything_beside_a_row_is_left_to_protobuf() -> None:
    for name, value in (
        ("token_id", [1]),
        ("finish", [common_pb2.Finish(sequence=1)]),
        ("report", [common_pb2.PhaseReport(sequence=1)]),
        ("logprobs", [common_pb2.TokenLogprobs(sequence=1)]),
        ("prompt_logprobs", [common_pb2.TokenLogprobs(sequence=1)]),
    ):
        more = common_pb2.TokenColumns(**{name: value}).SerializeToString()
        assert columns.lone_row(_lone(1, 0, 1, "x") + more) is None
        assert columns.lone_row(more + _lone(1, 0, 1, "x")) is None


WHOSE, COUNT, SHOWN, PLACE = b"\x0a\x01\x05", b"\x12\x01\x01", b"\x1a\x01x", b"\x42\x01\x00"


def test_the_columns_of_a_row_are_those() -> None:
    assert columns.lone_row(WHOSE + COUNT + SHOWN + PLACE) == (5, 0, 1, "x")


@pytest.mark.parametrize(
    "payload",
    [
        WHOSE + COUNT + SHOWN + b"\x22" + PLACE[1:],
        WHOSE + COUNT + b"\x0a" + SHOWN[1:] + PLACE,
        b"\x22" + WHOSE[1:] + COUNT + SHOWN + PLACE,
        WHOSE + b"\x22" + COUNT[1:] + SHOWN + PLACE,
        WHOSE + b"\x12\x02\x01\x1a" + b"\x1a\x19" + b"x" * 25 + PLACE,
        WHOSE + COUNT + b"\x1a\x83\x00abc" + b"\x22\x7d" + b"a" * 125 + PLACE,
    ],
    ids=["ids in place of", "two sequences", "none", "no count", "two counts", "ids behind a text"],
)
def test_other_columns_are_not_taken_for_a_row_s(payload: bytes) -> None:
    columns.parse(payload)
    assert columns.lone_row(payload) is None
