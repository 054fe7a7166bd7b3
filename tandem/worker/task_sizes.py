"""What is in a large task, before it is parsed. Parsing takes time with every entry of its maps and
lists; a small task has too few of them to matter.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from tandem import extra_fields, kv_hints
from tandem.errors import ContextLengthError, InvalidRequestError
from tandem.little_endian import TOKEN_ID_BYTES
from tandem.logits.forms.limits import SpecLimits
from tandem.message_limits import MAX_MADE_BYTES
from tandem.v1 import common_pb2, worker_pb2
from tandem.wire.fields import fields

SMALL_BYTES: Final = 32 * 1024
"""Tasks up to this are parsed as they are."""
MOST_FIELDS: Final = 1024
"""A task has a few, and one for each of its metadata."""
MOST_SAMPLING_BYTES: Final = 128 * 1024
_MARGIN_BYTES: Final = 64 * 1024
"""For the names of processors, what messages add, and lists of a few numbers."""
_TOKEN_BIAS: Final = 8
"""Bytes that a token has in an embedding bias."""
_LONGEST_CHARACTER: Final = 4
_TASK = common_pb2.Task


def check(task: bytes, limits: worker_pb2.Limits, *, most_text: int, specs: SpecLimits) -> None:
    """Raises InvalidRequestError or ContextLengthError for a task that cannot be run, or would take
    long to parse. `most_text`: characters of a prompt.
    """
    if len(task) <= SMALL_BYTES:
        return
    sizes: Counter[int] = Counter()
    try:
        for count, (number, content) in enumerate(fields(task)):
            if count == MOST_FIELDS:
                raise InvalidRequestError(f"the task has more than {MOST_FIELDS} fields")
            sizes[number] += len(content)
    except ValueError as error:
        raise InvalidRequestError("the task is no tandem.v1.Task") from error
    prompt = sizes[_TASK.PROMPT_TOKEN_IDS_FIELD_NUMBER]
    text = sizes[_TASK.PROMPT_TEXT_FIELD_NUMBER]
    if prompt > TOKEN_ID_BYTES * limits.context_length or text > _LONGEST_CHARACTER * most_text:
        raise ContextLengthError(
            f"a prompt of {prompt or text} bytes is more than the context of "
            f"{limits.context_length} tokens",
            param="prompt",
        )
    _at_most(MOST_SAMPLING_BYTES, sizes[_TASK.SAMPLING_FIELD_NUMBER], "sampling")
    most_bias = _TOKEN_BIAS * limits.vocabulary + _MARGIN_BYTES
    _at_most(most_bias, sizes[_TASK.EMBEDDING_BIAS_FIELD_NUMBER], "embedding_bias")
    extra_fields.check_size(sizes[_TASK.EXTRA_FIELDS_FIELD_NUMBER])
    kv_hints.check_size(sizes[_TASK.KV_HINTS_FIELD_NUMBER])
    _at_most(MAX_MADE_BYTES, sizes[_TASK.RESUME_FIELD_NUMBER], "resume")
    shown = sizes[_TASK.SHOWN_SPECIAL_TOKENS_FIELD_NUMBER]
    _at_most(_MARGIN_BYTES, shown, "shown_special_tokens")
    processors = sizes[_TASK.LOGITS_FIELD_NUMBER]
    _at_most(_LONGEST_CHARACTER * specs.max_bytes + _MARGIN_BYTES, processors, "logits_processors")


def _at_most(most: int, given: int, param: str) -> None:
    if given > most:
        raise InvalidRequestError(f"{param}: {given} bytes are more than {most}", param=param)
