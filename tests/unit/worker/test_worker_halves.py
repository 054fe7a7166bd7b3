"""What both halves of a request must have in common; worker_traces/second_halves.txt asks."""

from __future__ import annotations

from array import array

import pytest

from tandem.v1 import common_pb2
from tandem.worker import halves

OF_EACH_HALF = {
    "trace_id",
    "kv_hints",
    "streaming",
    "want_text",
    "want_token_ids",
    "want_cost",
    "want_report",
    "want_external_scores",
    "extra_fields",
    "metadata",
}
"""What only names a request, or says what of it is shown."""


def test_every_field_of_a_task_is_in_the_digest_or_known_not_to_be() -> None:
    """A field that is added later is compared, unless somebody says why it need not be."""
    full = common_pb2.Task(model="m", sampling=common_pb2.SamplingParams(max_tokens=3))
    for name, field in common_pb2.Task.DESCRIPTOR.fields_by_name.items():
        changed = common_pb2.Task()
        changed.CopyFrom(full)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(changed, name)["a"] = "b"
        elif field.message_type is not None:
            first = field.message_type.fields[1 if name == "sampling" else 0]
            if first.message_type is not None:
                getattr(getattr(changed, name), first.name).add()
            else:
                value = b"abcd" if first.cpp_type == first.CPPTYPE_STRING else 9
                setattr(getattr(changed, name), first.name, value)
        elif name == "prompt_token_ids":
            continue  # hashed by themselves
        elif field.is_repeated:
            getattr(changed, name).append(9)
        elif field.cpp_type == field.CPPTYPE_BOOL:
            setattr(changed, name, True)
        else:
            setattr(changed, name, "x")
        same = digest(changed) == digest(full)
        assert same is (name in OF_EACH_HALF or name == "prompt_text"), name


@pytest.mark.parametrize("other", [(bytes(4), b"\0\0\x80?"), (b"\1\0\0\0", bytes(4))])
def test_biases_are_compared_by_tokens_and_by_values(other: tuple[bytes, bytes]) -> None:
    digests = {
        digest(common_pb2.Task(embedding_bias={"token_ids": token_ids, "values": values}))
        for token_ids, values in ((bytes(4), bytes(4)), other)
    }
    assert len(digests) == 2


def digest(task: common_pb2.Task) -> bytes:
    return halves.digest(task, array("I", [1, 2]))
