"""What the two halves of one request must have in common."""

from __future__ import annotations

import hashlib
from array import array

from tandem.errors import VoucherError
from tandem.v1 import common_pb2


def digest(task: common_pb2.Task, token_ids: array[int]) -> bytes:
    """SHA-256 of all of a task that its output depends on, but for `max_tokens`, which the first
    half has no use for. `token_ids`: its prompt.
    """
    common = common_pb2.Task(
        model=task.model,
        sampling=task.sampling,
        logits=task.logits,
        regeneration=task.regeneration,
        resume=task.resume,
        tenant=task.tenant,
        cache_salt=task.cache_salt,
        shown_special_tokens=task.shown_special_tokens,
        lora_adapter=task.lora_adapter,
    )
    common.sampling.ClearField("max_tokens")
    bias = task.embedding_bias
    made = hashlib.sha256()
    # Long ones by themselves: to make a message of them costs more than to hash them.
    for part in (
        token_ids.tobytes(),
        bias.token_ids,
        bias.values,
        common.SerializeToString(deterministic=True),
    ):
        made.update(len(part).to_bytes(8))
        made.update(part)
    return made.digest()


def check(task: common_pb2.Task, token_ids: array[int], expected: bytes) -> None:
    """Raises VoucherError where a task is not that of the first half."""
    if digest(task, token_ids) != expected:
        raise VoucherError(
            "the request is not that of the first half: prompt, sampling, biases, processors, salt,"
            " tenant, LoRA adapter and special tokens shown have to be the same"
        )
