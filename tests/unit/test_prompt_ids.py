"""The token ids of a prompt as they travel, are read and checked."""

from __future__ import annotations

import sys
from array import array

import pytest

from tandem.engine import prompt_ids
from tandem.errors import InvalidRequestError
from tandem.little_endian import to_bytes, to_numbers
from tandem.upstream.submission import SubmittedPrompt
from tandem.v1 import common_pb2
from tandem.wire.frames import write_varint

LONG = [number * 7 % 2048 for number in range(1000)]
IN_TASKS = [[], [5], LONG[:128], LONG[:129], LONG, [2**32 - 1] * 500]
TAG = write_varint(3 << 3 | 2)


@pytest.mark.parametrize("ids", IN_TASKS, ids=len)
def test_ids_are_read_as_they_were_written(ids: list[int]) -> None:
    task = common_pb2.Task(prompt_token_ids=ids, trace_id="a", prompt_text="b")
    data = task.SerializeToString()
    assert prompt_ids.read(task, data).tolist() == ids
    assert (
        list(
            common_pb2.Task.FromString(SubmittedPrompt.of(ids, max_tokens=1).task).prompt_token_ids
        )
        == ids
    )


@pytest.mark.parametrize(
    "written",
    [
        TAG + write_varint(4 * 500) + to_bytes(array("I", LONG[:500])) + TAG + write_varint(4 * 500)
        + to_bytes(array("I", LONG[500:])),
        b"".join(write_varint(3 << 3 | 5) + to_bytes(array("I", [number])) for number in LONG),
        common_pb2.Task(metadata={str(number): "" for number in range(2000)}).SerializeToString()
        + TAG + write_varint(4 * 1000) + to_bytes(array("I", LONG)),
    ],
    ids=["in two pieces", "one by one", "behind many fields"],
)  # fmt: skip
def test_ids_are_read_however_protobuf_may_write_them(written: bytes) -> None:
    task = common_pb2.Task.FromString(written)
    assert prompt_ids.read(task, written).tolist() == LONG


@pytest.mark.parametrize("kind", [list, lambda ids: array("I", ids)], ids=["list", "array"])
def test_an_id_that_the_model_lacks_is_refused(kind: type[list[int]]) -> None:
    prompt_ids.check(kind([]), 5)
    prompt_ids.check(kind([0, 4]), 5)
    for ids in ([5], [0, 2**32 - 1], [0] * 5000 + [5]):
        with pytest.raises(InvalidRequestError, match="outside the vocabulary of 5"):
            prompt_ids.check(kind(ids), 5)


def test_numbers_are_the_same_bytes_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = array("I", [1, 2**31])
    assert to_bytes(numbers) == bytes([1, 0, 0, 0, 0, 0, 0, 128])
    assert to_numbers("I", to_bytes(numbers)) == numbers
    monkeypatch.setattr(sys, "byteorder", "big")
    assert to_bytes(numbers) == bytes([0, 0, 0, 1, 128, 0, 0, 0])
    assert to_numbers("I", to_bytes(numbers)) == numbers
    assert numbers[0] == 1
    with pytest.raises(ValueError, match="bytes"):
        to_numbers("I", b"abc")
