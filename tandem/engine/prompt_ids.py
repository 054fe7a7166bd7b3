"""The token ids of long prompts, without a Python number for each of them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import islice
from typing import Final

import numpy as np

from tandem.little_endian import TOKEN_ID_BYTES, to_numbers
from tandem.token_limits import check_token_ids
from tandem.v1 import common_pb2
from tandem.wire.fields import fields

_FEW: Final = 128
"""A prompt of this many token ids is read id by id."""
_FIELDS: Final = 1024
"""Fields of a task that are looked at, with the prompt among them or not."""
_FIELD: Final = common_pb2.Task.PROMPT_TOKEN_IDS_FIELD_NUMBER


def read(task: common_pb2.Task, data: bytes) -> array[int]:
    """The ids of a task's prompt, from the bytes `data` that the task was parsed from."""
    count = len(task.prompt_token_ids)
    if count > _FEW:
        found = [content for number, content in islice(fields(data), _FIELDS) if number == _FIELD]
        if len(found) == 1 and len(found[0]) == count * TOKEN_ID_BYTES:
            return to_numbers("I", found[0])
    return array("I", task.prompt_token_ids)


def check(token_ids: Sequence[int], vocabulary: int) -> None:
    """Raises InvalidRequestError for an id of a prompt that the model does not have."""
    if (
        not isinstance(token_ids, array)
        or np.frombuffer(token_ids, np.uintc).max(initial=0) >= vocabulary
    ):
        check_token_ids(token_ids, vocabulary, param="prompt")
