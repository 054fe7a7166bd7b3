"""What a Submit must be before the core sees it: a request that is not is refused alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from tandem import ids, prefix_blocks
from tandem.errors import InvalidRequestError, RequestError
from tandem.keys import MAX_NAME, MAX_WEIGHT
from tandem.v1 import common_pb2, router_pb2
from tandem.wire.prompt_chunks import Names
from tandem_router.core import events
from tandem_router.core.values import NOTHING
from tandem_router.permissions import Permissions
from tandem_router.vouchers import Vouchers, of_submit

MOST_AT_ONCE = 65_536
"""Submits or cancels in one message; more are no frontend's."""
SLICE_ITEMS = 128
"""Submits or cancels that are acted on at once."""
SLICE_OUTPUTS = 256
"""Outputs of submits that are acted on at once, or one submit."""
MAX_FAULT = 100
"""Characters of a complaint that are kept."""
Item: TypeAlias = router_pb2.Submit | int
"""What one event is made of: a cancel is a number."""
MAX_NAME_CHARACTERS = 512
"""The longest name of a model."""
MAX_TOKENIZER_CHARACTERS = 64
"""A SHA-256 in hexadecimal digits."""


def read_submit(
    frontend: int,
    message: router_pb2.Submit,
    *,
    chunk_names: Names = (),
    permissions: Permissions,
    vouchers: Vouchers | None = None,
    max_timeout_seconds: float,
    tracing: bool,
) -> events.Submit:
    """A request as the core takes it: with the error that it is to be refused with, where it is at
    fault. What is at fault itself is left out of the message, which is bounded in place.
    `chunk_names`: of the task's prompt. `vouchers`: None where no phase runs alone. `tracing`: this
    router makes spans of the requests that its frontends trace.
    """
    fault: RequestError | None = None
    voucher: common_pb2.Voucher | None = None
    needs, task = NOTHING, message.task
    try:
        check_names(message.trace_id, message.model)
        if len(message.tokenizer_sha256) > MAX_TOKENIZER_CHARACTERS:
            raise InvalidRequestError(
                "tokenizer_sha256 is no hash of a tokenizer", param="tokenizer_sha256"
            )
        if not message.timeout_ms:
            raise InvalidRequestError("a request needs a deadline", param="timeout_ms")
        needs = permissions.check(task)
        voucher = of_submit(vouchers, message)
    except RequestError as error:
        fault = error
        message.trace_id = message.trace_id if ids.TRACE_ID.fullmatch(message.trace_id) else ""
        message.model = message.model[:MAX_NAME_CHARACTERS]
        message.tokenizer_sha256 = ""
    message.timeout_ms = min(message.timeout_ms, int(max_timeout_seconds * 1000))
    message.expected_tokens = min(message.expected_tokens, message.max_tokens)
    message.tenant = message.tenant[:MAX_NAME]
    message.weight = min(max(1, message.weight), MAX_WEIGHT)
    blocks = prefix_blocks.unpacked(message.prompt_blocks)
    for taken in ("task", "known_prompt", "prompt_blocks", "voucher"):
        message.ClearField(taken)
    message.DiscardUnknownFields()  # nobody counts their bytes
    own = router_pb2.Submit()  # else it would hold the memory of all that came beside it
    own.CopyFrom(message)
    first_span = ids.new_span_id() if tracing and own.parent_span else 0
    return events.Submit(
        frontend, own, task, blocks, needs, voucher, first_span, fault, chunk_names
    )


def slices(message: router_pb2.FrontendMessage) -> Iterator[Sequence[Item]]:
    """The message's submits, then the first sequences of its cancels, in order: as many of each as
    are acted on at once.
    """
    begin = outputs = 0
    for place, submit in enumerate(message.submit):
        if place - begin == SLICE_ITEMS or (begin < place and outputs + submit.n > SLICE_OUTPUTS):
            yield message.submit[begin:place]
            begin, outputs = place, 0
        outputs += submit.n
    if begin < len(message.submit):
        yield message.submit[begin:]
    for begin in range(0, len(message.cancel), SLICE_ITEMS):
        yield message.cancel[begin : begin + SLICE_ITEMS]


def check_names(trace_id: str, model: str, *, where: str = "") -> None:
    """Raises InvalidRequestError, naming the field after `where`, for a trace id or a model's name
    that cannot be.
    """
    if trace_id and not ids.TRACE_ID.fullmatch(trace_id):
        raise InvalidRequestError(
            "a trace_id is 32 lower-case hex digits", param=f"{where}trace_id"
        )
    if len(model) > MAX_NAME_CHARACTERS:
        raise InvalidRequestError(
            f"a model's name has at most {MAX_NAME_CHARACTERS} characters", param=f"{where}model"
        )


def check_message(message: router_pb2.FrontendMessage) -> None:
    """Raises InvalidRequestError where it holds more than a frontend says at once."""
    if max(map(len, (message.submit, message.cancel, message.complaint))) > MOST_AT_ONCE:
        raise InvalidRequestError(f"more than {MOST_AT_ONCE} submits or cancels at once")
