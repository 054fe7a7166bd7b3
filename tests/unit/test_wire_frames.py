"""Rows, envelopes and parts: written by hand, read by hand, and the same to protobuf."""

from __future__ import annotations

from itertools import pairwise

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from one_case import one_case

from tandem.v1 import common_pb2, router_pb2, worker_pb2
from tandem.wire import frames

# --- numbers ----------------------------------------------------------------------------------


@given(number=st.integers(0, 2**64 - 1), before=st.binary(max_size=2), after=st.binary(max_size=2))
@example(number=127, before=b"", after=b"")
@example(number=128, before=b"", after=b"")
@example(number=2**14, before=b"", after=b"")
def test_a_number_is_read_as_it_was_written(number: int, before: bytes, after: bytes) -> None:
    written = frames.write_varint(number)
    found = frames.read_varint(before + written + after, len(before))
    assert found == (number, len(before) + len(written))


@pytest.mark.parametrize("written", [b"", b"\x80", b"\xff" * 10 + b"\x01"])
def test_a_number_without_an_end_is_none(written: bytes) -> None:
    with pytest.raises(ValueError, match="without an end"):
        frames.read_varint(written, 0)


# --- payloads: what a relay may do with them without opening them ------------------------------

ROW = st.tuples(
    st.integers(1, 2**40), st.integers(1, 4), st.text(max_size=8), st.integers(0, 2**20)
)


def _serialize(rows: list[tuple[int, int, str, int]]) -> bytes:
    draft = frames.Draft()
    for sequence, count, text, token in rows:
        draft.add(sequence, 0, count, text, [token] * count)
        draft.rest.finish.append(common_pb2.Finish(sequence=sequence, stop_reason=text))
    return draft.serialize()


@given(rows=st.lists(ROW, max_size=20), cut=st.integers(0, 20))
def test_two_payloads_joined_are_the_payload_of_both(
    rows: list[tuple[int, int, str, int]], cut: int
) -> None:
    joined = _serialize(rows[:cut]) + _serialize(rows[cut:])
    assert frames.parse(joined) == frames.parse(_serialize(rows))


def test_a_row_without_token_ids_takes_none_of_another_rows() -> None:
    draft = frames.Draft()
    draft.add(1, 0, 2, "ab")
    draft.add(2, 0, 2, "", [7, 8])
    parsed = frames.parse(draft.serialize())
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
    draft = frames.Draft()
    draft.add(sequence, offset, count, text)
    row = common_pb2.TokenColumns(
        sequence=[sequence], offset=[offset], token_count=[count], text=[text]
    )
    assert sorted(draft.serialize()) == sorted(row.SerializeToString())
    assert frames.parse(draft.serialize()) == row


def test_a_lone_row_keeps_its_token_ids() -> None:
    draft = frames.Draft()
    draft.add(1, 3, 2, "ab", [7, 8])
    assert list(frames.parse(draft.serialize()).token_id) == [7, 8]


def test_a_lone_row_keeps_what_comes_with_it() -> None:
    draft = frames.Draft()
    draft.add(1, 3, 2, "ab")
    draft.rest.finish.append(common_pb2.Finish(sequence=1, rows=4))
    draft.rest.report.append(common_pb2.PhaseReport(sequence=1))
    parsed = frames.parse(draft.serialize())
    assert (list(parsed.text), parsed.finish[0].rows, len(parsed.report)) == (["ab"], 4, 1)


def test_rows_without_anything_else_are_all_written() -> None:
    draft = frames.Draft()
    for sequence in (1, 2, 3):
        draft.add(sequence, 0, 1, "a")
    assert list(frames.parse(draft.serialize()).sequence) == [1, 2, 3]


def test_of_ids_that_cannot_be_none_is_taken() -> None:
    draft = frames.Draft()
    draft.add(1, 0, 1, "", [7])
    with pytest.raises(OverflowError):
        draft.add(2, 0, 2, "", [8, -1])
    parsed = frames.parse(draft.serialize())
    assert (list(parsed.sequence), list(parsed.token_id)) == ([1], [7])


@pytest.mark.parametrize("rows", [1, 2])
def test_a_text_that_is_no_unicode_is_not_written_before_it_is_blanked(rows: int) -> None:
    draft = frames.Draft()
    for sequence in range(rows):
        draft.add(sequence, 0, 1, "\udc80")
    draft.rest.finish.append(common_pb2.Finish(sequence=0, rows=1))
    with pytest.raises(ValueError, match=r"utf-8|UTF-8"):
        draft.serialize()
    assert draft.blank() == set(range(rows))
    parsed = frames.parse(draft.serialize())
    assert (list(parsed.text), parsed.finish[0].rows) == ([""] * rows, 2)


def test_nothing_is_no_bytes() -> None:
    assert frames.Draft().serialize() == b""


# --- lone rows ------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, 2**28 - 1, 2**28, 2**32 - 1])
LONE = st.tuples(
    NUMBERS | st.sampled_from([2**56 - 1, 2**56, 2**62, 2**64 - 1]),
    NUMBERS,
    NUMBERS,
    st.text(max_size=140),
)


@given(row=LONE)
@example(row=(1, 0, 1, "x" * 127))
@example(row=(1, 0, 1, "x" * 128))
@example(row=(2**56 - 1, 2**28 - 1, 127, "é"))
def test_a_lone_row_is_read_as_it_was_written(row: tuple[int, int, int, str]) -> None:
    sequence, offset, count, text = row
    small = sequence < 2**56 and offset < 2**28 and count < 0x80 and len(text.encode()) < 0x80
    assert frames.read_row(frames.write_row(*row)) == (row if small else None)


@given(
    row=LONE,
    place=st.integers(0, 200),
    cut=st.integers(0, 3),
    put=st.binary(max_size=3),
    then=st.sampled_from([b"", frames.write_row(2, 1, 1, "y")]),
)
@example(row=(1, 0, 1, "é"), place=9, cut=1, put=b"", then=b"")
@example(row=(5, 0, 1, "x"), place=1, cut=2, put=b"\x02\x05\x06", then=b"")
@example(row=(0x80, 0, 1, "x"), place=3, cut=1, put=b"\x81", then=b"")
@example(row=(1, 0, 1, "x"), place=5, cut=1, put=b"\x81", then=b"")
@example(row=(1, 0, 1, "x"), place=1, cut=2, put=b"\x00", then=b"")
@example(row=(1, 0, 1, "x"), place=2, cut=1, put=b"\x81", then=b"")
def test_a_row_that_is_read_by_hand_protobuf_reads_the_same(
    row: tuple[int, int, int, str], place: int, cut: int, put: bytes, then: bytes
) -> None:
    """Whatever a worker sends: what is read otherwise would be another request's."""
    written = frames.write_row(*row)
    payload = written[:place] + put + written[place + cut :] + then
    read = frames.read_row(payload)
    if read is not None:
        sequence, offset, count, text = read
        assert common_pb2.TokenColumns.FromString(payload) == common_pb2.TokenColumns(
            sequence=[sequence], offset=[offset], token_count=[count], text=[text]
        )


@one_case("end", range(len(frames.write_row(300, 300, 1, "text"))))
def test_a_part_of_a_row_is_none(end: int) -> None:
    assert frames.read_row(frames.write_row(300, 300, 1, "text")[:end]) is None


def test_a_payload_with_anything_beside_a_row_is_left_to_protobuf() -> None:
    for name, value in (
        ("token_id", [1]),
        ("finish", [common_pb2.Finish(sequence=1)]),
        ("report", [common_pb2.PhaseReport(sequence=1)]),
        ("logprobs", [common_pb2.TokenLogprobs(sequence=1)]),
        ("prompt_logprobs", [common_pb2.TokenLogprobs(sequence=1)]),
    ):
        more = common_pb2.TokenColumns(**{name: value}).SerializeToString()
        assert frames.read_row(frames.write_row(1, 0, 1, "x") + more) is None
        assert frames.read_row(more + frames.write_row(1, 0, 1, "x")) is None


WHOSE, COUNT, SHOWN, PLACE = b"\x0a\x01\x05", b"\x12\x01\x01", b"\x1a\x01x", b"\x42\x01\x00"


def test_the_columns_of_a_row_are_those() -> None:
    assert frames.read_row(WHOSE + COUNT + SHOWN + PLACE) == (5, 0, 1, "x")


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
    common_pb2.TokenColumns.FromString(payload)
    assert frames.read_row(payload) is None


# --- envelopes -------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 0x7F, 0x80, 2**32 - 1]), st.binary(max_size=300)),
        max_size=4,
    )
)
@example([(1, b"p" * 20_000)])
def test_envelopes_are_read_by_protobuf_as_they_were_written(
    envelopes: list[tuple[int, bytes]],
) -> None:
    joined = b"".join(frames.write_envelope(*each) for each in envelopes)
    read = worker_pb2.WorkerFrame.FromString(joined)
    assert [(each.destination, each.payload) for each in read.envelopes] == envelopes
    assert read == worker_pb2.WorkerFrame(envelopes=read.envelopes)


# --- parts -----------------------------------------------------------------------------------

WORKERS = st.sampled_from([1, 2, 0x7F, 0x80, 0x3FFF, 0x4000, 2**28 - 1, 2**28, 2**32 - 1])
SIZES = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0x3FFF, 0x4000, 70_000])


def whole(worker: int, payload: bytes) -> router_pb2.RouterMessage:
    return router_pb2.RouterMessage(
        payload=payload, part_worker=[worker], part_bytes=[len(payload)]
    )


@given(worker=WORKERS, size=SIZES)
def test_a_part_is_written_as_protobuf_reads_it(worker: int, size: int) -> None:
    payload = b"p" * size
    assert router_pb2.RouterMessage.FromString(frames.write_part(worker, payload)) == whole(
        worker, payload
    )


@given(worker=WORKERS, size=SIZES)
def test_a_part_is_read_as_it_was_written(worker: int, size: int) -> None:
    payload = b"p" * size
    small = worker < 2**28 and size < 0x4000
    assert frames.read_part(frames.write_part(worker, payload)) == (
        (worker, payload) if small else None
    )


@given(
    worker=WORKERS,
    payload=st.binary(max_size=140),
    place=st.integers(0, 160),
    from_end=st.booleans(),
    cut=st.integers(0, 3),
    put=st.binary(max_size=3),
)
@example(worker=1, payload=b"ab", place=0, from_end=False, cut=1, put=b"\x12")
@example(worker=1, payload=b"ab", place=1, from_end=True, cut=1, put=b"\x03")
@example(worker=1, payload=b"ab", place=4, from_end=True, cut=1, put=b"\x00")
@example(worker=1, payload=b"ab", place=6, from_end=True, cut=1, put=b"\x32")
@example(worker=1, payload=b"ab", place=0, from_end=True, cut=0, put=b"\x20\x01")
def test_a_part_that_is_read_by_hand_protobuf_reads_the_same(
    worker: int, payload: bytes, place: int, from_end: bool, cut: int, put: bytes
) -> None:
    """Whatever a router sends."""
    written = frames.write_part(worker, payload)
    place = len(written) - place if from_end else place
    message = written[: max(place, 0)] + put + written[max(place, 0) + cut :]
    part = frames.read_part(message)
    if part is not None:
        assert router_pb2.RouterMessage.FromString(message) == whole(*part)


@one_case("end", range(len(frames.write_part(300, b"text" * 40))))
def test_a_part_that_is_cut_off_is_none(end: int) -> None:
    assert frames.read_part(frames.write_part(300, b"text" * 40)[:end]) is None


def test_a_part_of_no_worker_is_left_to_whoever_refuses_it() -> None:
    assert frames.read_part(frames.write_part(0, b"text")) is None


def test_a_size_that_is_longer_than_it_need_be_is_left_to_protobuf() -> None:
    written = b"\x0a\x84\x80\x00text\x2a\x01\x01\x32\x03\x84\x80\x00"
    assert router_pb2.RouterMessage.FromString(written) == whole(1, b"text")
    assert frames.read_part(written) is None


def test_a_size_without_an_end_is_none() -> None:
    size = b"\x84\x80"
    written = b"\x0a" + size + b"\x00" * 0x4004 + b"\x2a\x01\x01\x32\x02" + size
    with pytest.raises(DecodeError):
        router_pb2.RouterMessage.FromString(written)
    assert frames.read_part(written) is None


@pytest.mark.parametrize(
    "beside",
    [
        {"draining": True},
        {"lost": [1]},
        {"ends": [router_pb2.SequenceEnd(sequence=1)]},
        {"fleet": router_pb2.Fleet()},
        {"run_sequence": [1], "run_worker": [1]},
        {"part_worker": [2], "part_bytes": [0]},
        {"ends": [router_pb2.SequenceEnd(sequence=1, error=common_pb2.Error(code="internal"))]},
    ],
)
def test_a_message_with_anything_beside_a_part_is_left_to_protobuf(
    beside: dict[str, object],
) -> None:
    more = router_pb2.RouterMessage(**beside).SerializeToString()  # type: ignore[arg-type]
    for message in (frames.write_part(1, b"text") + more, more + frames.write_part(1, b"text")):
        assert frames.read_part(message) is None


@given(st.lists(st.tuples(st.integers(1, 3), st.binary(min_size=1, max_size=5)), min_size=1))
def test_parts_are_split_as_they_were_joined(parts: list[tuple[int, bytes]]) -> None:
    """Neighbours of one worker are one part."""
    message = frames.join_parts(parts)
    split = frames.split_parts(message, message.payload)
    workers = [worker for worker, _ in split]
    assert all(here != there for here, there in pairwise(workers))
    bytewise = [(worker, byte) for worker, payload in parts for byte in payload]
    assert [(worker, byte) for worker, payload in split for byte in payload] == bytewise


def test_a_payload_without_a_worker_is_one_part() -> None:
    message = router_pb2.RouterMessage(payload=b"text")
    assert list(frames.split_parts(message, message.payload)) == [(0, b"text")]


@pytest.mark.parametrize(
    ("workers", "sizes"),
    [([1], [3]), ([1], [5]), ([0], [4]), ([1, 2], [4]), ([1, 0], [2, 2]), ([1], [])],
)
def test_parts_that_do_not_make_the_payload_are_refused(
    workers: list[int], sizes: list[int]
) -> None:
    message = router_pb2.RouterMessage(payload=b"text", part_worker=workers, part_bytes=sizes)
    with pytest.raises(ValueError):  # noqa: PT011 - zip() says it in its own words
        frames.split_parts(message, message.payload)
