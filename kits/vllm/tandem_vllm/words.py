"""What both ends of a hand-over's words must know: bounds, and the checks of what a peer says."""

from __future__ import annotations

import json
import math
from typing import Any

from tandem.engine import kv_tag
from tandem.engine.base import EngineRequest
from tandem.engine.kv_tag import KvTag
from tandem.engine.rooms import MOST_ROOMS
from tandem.errors import KvTransferError
from tandem.v1 import pull_pb2

MOST_PARAMS_BYTES = 4 * 2**20
"""The longest `PullReady.params`, bytes: room for the numbers of half a million pages."""
_MOST_TRANSPORT = 64
"""Characters."""
MOST_VALID_SECONDS = 86_400.0


def check_calls(message: pull_pb2.PullCalls) -> None:
    """Raises KvTransferError for what no decode engine of ours says."""
    if len(message.calls) > MOST_ROOMS or len(message.ends) > MOST_ROOMS:
        raise KvTransferError(f"one message speaks of more than {MOST_ROOMS} rooms")
    rooms = [call.room for call in message.calls] + [end.room for end in message.ends]
    if not all(rooms):
        raise KvTransferError("room 0 joins nothing")
    for end in message.ends:
        if not 0 <= end.seconds < math.inf or len(end.transport) > _MOST_TRANSPORT:
            raise KvTransferError("decode said what cannot be of a room's hand-over")


def check_ready(ready: pull_pb2.PullReady) -> None:
    """Raises KvTransferError for what no prefill engine of ours says."""
    fits = (
        len(ready.params) <= MOST_PARAMS_BYTES
        and len(ready.tag) in (0, kv_tag.BYTES)
        and ready.valid_ms <= MOST_VALID_SECONDS * 1000
        and len(ready.logprob) <= 1
        and len(ready.top_token_id) == len(ready.top_logprob)
    )
    if not fits or any(math.isnan(each) for each in (*ready.logprob, *ready.top_logprob)):
        raise KvTransferError("prefill said what cannot be of a room's hand-over")


def tag_of(request: EngineRequest, layout: int) -> KvTag:
    """The tag of the KV of a request. `layout`: of the engine's model and pages."""
    return kv_tag.tag_of(
        room=request.room,
        tokens=request.context,
        layout=layout,
        adapter=request.lora_adapter,
        salt=request.cache_salt,
    )


def transfer_of(
    ready: pull_pb2.PullReady, vocabulary: int, expected: KvTag | None
) -> dict[str, Any]:
    """How vLLM reads a room's KV. `expected`: whose KV that has to be; None: anybody's.

    Raises KvCorruptError where the KV is another request's, KvTransferError where prefill did not
    say how the KV is read, or where its token is none of the model's, which would end the requests
    of the whole batch.
    """
    if expected is not None:
        kv_tag.check(kv_tag.unpacked(ready.tag), expected)
    try:
        transfer = json.loads(ready.params)
    except ValueError:
        transfer = None
    if not isinstance(transfer, dict) or not transfer.get("do_remote_prefill"):
        raise KvTransferError("prefill did not say how its KV is read")
    if ready.first_token >= vocabulary:
        raise KvTransferError("prefill's token is none of the model's")
    return transfer
