"""A router's message of one worker's output: written and read by hand, and the same to protobuf."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from one_case import one_case

from tandem.v1 import common_pb2, router_pb2
from tandem.wire import parts

WORKERS = st.sampled_from([1, 2, 0x7F, 0x80, 0x3FFF, 0x4000, 2**28 - 1, 2**28, 2**32 - 1])
SIZES = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0x3FFF, 0x4000, 70_000])


def whole(worker: int, payload: bytes) -> router_pb2.RouterMessage:
    return router_pb2.RouterMessage(
        payload=payload, part_worker=[worker], part_bytes=[len(payload)]
    )


@given(worker=WORKERS, size=SIZES)
def test_a_part_is_written_as_protobuf_reads_it(worker: int, size: int) -> None:
    payload = b"p" * size
    assert router_pb2.RouterMessage.FromString(parts.write(worker, payload)) == whole(
        worker, payload
    )


@given(worker=WORKERS, size=SIZES)
def test_a_part_is_read_as_it_was_written(worker: int, size: int) -> None:
    payload = b"p" * size
    small = worker < 2**28 and size < 0x4000
    assert parts.read(parts.write(worker, payload)) == ((worker, payload) if small else None)


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
def test_what_is_read_by_hand_protobuf_reads_the_same(
    worker: int, payload: bytes, place: int, from_end: bool, cut: int, put: bytes
) -> None:
    """Whatever a router sends."""
    written = parts.write(worker, payload)
    place = len(written) - place if from_end else place
    message = written[: max(place, 0)] + put + written[max(place, 0) + cut :]
    part = parts.read(message)
    if part is not None:
        assert router_pb2.RouterMessage.FromString(message) == whole(*part)


@one_case("end", range(len(parts.write(300, b"text" * 40))))
def test_a_part_that_is_cut_off_is_none(end: int) -> None:
    assert parts.read(parts.write(300, b"text" * 40)[:end]) is None


def test_a_part_of_no_worker_is_left_to_whoever_refuses_it() -> None:
    assert parts.read(parts.write(0, b"text")) is None


def test_a_size_that_is_longer_than_it_need_be_is_left_to_protobuf() -> None:
    written = b"\x0a\x84\x80\x00text\x2a\x01\x01\x32\x03\x84\x80\x00"
    assert router_pb2.RouterMessage.FromString(written) == whole(1, b"text")
    assert parts.read(written) is None


def test_a_size_without_an_end_is_none() -> None:
    size = b"\x84\x80"
    written = b"\x0a" + size + b"\x00" * 0x4004 + b"\x2a\x01\x01\x32\x02" + size
    with pytest.raises(DecodeError):
        router_pb2.RouterMessage.FromString(written)
    assert parts.read(written) is None


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
    for message in (parts.write(1, b"text") + more, more + parts.write(1, b"text")):
        assert parts.read(message) is None
