"""What a stream says of prompts that begin alike, and what its reader makes of that."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tandem.message_limits import MAX_REQUEST_MESSAGE_BYTES
from tandem.v1 import common_pb2, worker_pb2
from tandem.wire import prompt_chunks
from tandem.wire.prompt_chunks import (
    STREAM_BYTES,
    ChunkMetrics,
    ChunkRoom,
    ReadChunks,
    SentChunks,
    chunk_bytes,
)

CHUNK = 4


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_chunks, "CHUNK_TOKENS", CHUNK)


def task(token_ids: Sequence[int], **fields: Any) -> bytes:
    made = common_pb2.Task(trace_id="a" * 32, prompt_token_ids=token_ids, **fields)
    return made.SerializeToString()


class Stream:
    """Both ends of one."""

    def __init__(self, room: ChunkRoom) -> None:
        self.reader = ReadChunks(room)
        self.writer = SentChunks(self.reader.most)

    def message(self, whole: bytes) -> worker_pb2.StartLeg:
        known, rest = self.writer.shorten(whole)
        return worker_pb2.StartLeg(known_prompt=known, task=rest)

    def carry(self, whole: bytes) -> int:
        """Returns how many of the task's bytes travelled."""
        message = self.message(whole)
        travelled = len(message.task)
        (names,) = self.reader.complete([message])
        assert message.task == whole
        assert list(self.reader._kept) == list(self.writer._kept)
        tokens = len(common_pb2.Task.FromString(whole).prompt_token_ids)
        assert len(names) in (0, tokens // prompt_chunks.CHUNK_TOKENS)
        return travelled


def stream(chunks: int) -> Stream:
    return Stream(ChunkRoom(chunks * chunk_bytes()))


@pytest.mark.promise("S5-649")
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.booleans()), max_size=30),
    st.integers(0, 12),
)
def test_a_prompt_arrives_as_it_left_whatever_went_before(
    prompts: list[tuple[int, int, bool]], chunks: int
) -> None:
    """Each begins as the one before it, up to some token, and goes on with others."""
    carried, before = stream(chunks), list[int]()
    for number, (shared, new, text) in enumerate(prompts):
        token_ids = [*before[:shared], *range(1000 * number, 1000 * number + new)]
        fields = {"prompt_text": "words"} if text else {}
        carried.carry(task(token_ids, **fields))
        before = token_ids


@pytest.mark.promise("S5-649")
def test_what_went_by_the_stream_before_does_not_travel_again() -> None:
    carried, history = stream(100), list(range(40))
    assert carried.carry(task(history)) == len(task(history))
    for new in (3, 9, 1):
        longer = [*history, *range(1000, 1000 + new)]
        assert carried.carry(task(longer)) < len(task(longer)) - (len(history) - CHUNK) * 4
        history = longer
    assert carried.carry(task(history[1:])) == len(task(history[1:]))  # it begins otherwise


@pytest.mark.promise("S6-375")
def test_what_another_key_s_prompts_began_with_is_not_known() -> None:
    carried = stream(100)
    for salt in ("one", "another", ""):
        whole = task(range(40), cache_salt=salt)
        assert carried.carry(whole) == len(whole)
        assert carried.carry(whole) < len(whole)


def test_the_beginnings_that_were_used_last_are_kept() -> None:
    carried = stream(4)
    first, second, third = ([start, *range(7)] for start in (1, 2, 3))
    for token_ids in (first, second, first, third):
        carried.carry(task(token_ids))
    assert carried.carry(task(first)) < len(task(first))
    assert carried.carry(task(second)) == len(task(second))


def test_of_a_prompt_that_is_too_long_the_beginning_is_kept() -> None:
    carried, token_ids = stream(3), list(range(100))
    carried.carry(task(token_ids))
    assert len(task(token_ids)) - carried.carry(task(token_ids)) >= 3 * chunk_bytes()


def test_names_that_are_known_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    carried, whole = stream(100), task(range(40))
    (names,) = carried.reader.complete([carried.message(whole)])
    made = prompt_chunks.names_of

    def of_one_chunk(token_ids: memoryview, *key: bytes) -> prompt_chunks.Names:
        assert len(token_ids) <= chunk_bytes()
        return made(token_ids, *key)

    monkeypatch.setattr(prompt_chunks, "names_of", of_one_chunk)
    known, rest = carried.writer.shorten(whole, names)
    assert known == names[-1]
    assert len(rest) < CHUNK + len(task([]))


@pytest.mark.promise("S6-375")
@pytest.mark.parametrize(
    ("known", "whole"),
    [
        (b"n" * 16, task(range(9))),
        (b"n" * 16, task([])),
        (b"n" * 16, b"\xff"),
        (b"n", task(range(9), prompt_text="words")),
    ],
)
def test_a_prompt_that_nobody_can_know_ends_the_stream(known: bytes, whole: bytes) -> None:
    carried = stream(100)
    carried.carry(task(range(40)))
    with pytest.raises(DecodeError):
        carried.reader.complete([worker_pb2.StartLeg(known_prompt=known, task=whole)])


@pytest.mark.promise("S6-375")
def test_messages_stand_for_no_more_than_one_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_chunks, "CHUNK_TOKENS", 64 * 1024)
    carried, whole = stream(16), task(range(64 * 1024))
    carried.carry(whole)
    fits = MAX_REQUEST_MESSAGE_BYTES // len(whole)
    carried.reader.complete([carried.message(whole) for _ in range(fits)])
    with pytest.raises(DecodeError, match="too large"):
        carried.reader.complete([carried.message(whole) for _ in range(fits + 1)])


@pytest.mark.promise("S6-375")
def test_a_task_that_is_written_otherwise_travels_whole() -> None:
    """Else what its reader makes of it could be another, and end the stream for all."""
    whole = task(range(40))
    length = b"\xa0\x01"  # 160, in two bytes; or in three
    assert whole.count(length) == 1
    longer = whole.replace(length, b"\xa0\x81\x00")
    carried = stream(100)
    carried.carry(whole)
    for each in (longer, whole[:-1], b"\xff" * 60, whole + b"\xff"):
        message = carried.message(each)
        carried.reader.complete([message])
        assert message.task == each


@pytest.mark.promise("S6-375")
def test_streams_share_the_room_of_their_process() -> None:
    room = ChunkRoom(STREAM_BYTES + 2 * chunk_bytes())
    streams = [Stream(room) for _ in range(3)]
    assert [each.reader.most for each in streams] == [STREAM_BYTES // chunk_bytes(), 2, 0]
    streams[0].reader.close()
    assert Stream(room).reader.most == STREAM_BYTES // chunk_bytes()


@pytest.mark.promise("S6-375")
def test_a_writer_remembers_no_more_than_a_stream_may_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its reader promises; what the writer has forgotten travels again."""
    monkeypatch.setattr(prompt_chunks, "STREAM_BYTES", 3 * chunk_bytes())
    writer = SentChunks(2**32 - 1)
    for start in range(5):
        writer.shorten(task([start, *range(40)]))
    assert len(writer._kept) == writer.most == 3


def test_what_is_kept_is_told() -> None:
    room, registry = ChunkRoom(100 * chunk_bytes()), CollectorRegistry()
    registry.register(ChunkMetrics("worker", room, phase="decode"))
    carried = Stream(room)

    def told(name: str) -> float | None:
        return registry.get_sample_value(f"tandem_worker_{name}", {"phase": "decode"})

    for count, known in pairwise((0, 3, 5)):
        carried.carry(task(range(known * CHUNK + 1)))
        assert told("prompt_chunk_bytes") == known * chunk_bytes()
        assert told("known_prompt_tokens_total") == count * CHUNK
    carried.reader.close()
    assert told("prompt_chunk_bytes") == 0


def test_a_stream_that_is_promised_nothing_carries_whole_prompts() -> None:
    carried, whole = Stream(ChunkRoom(0)), task(range(40))
    assert [carried.carry(whole) for _ in range(2)] == [len(whole)] * 2
