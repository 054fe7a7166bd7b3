"""Which requests no engine can run. Pure: asked in `submit`, before anything is queued."""

from __future__ import annotations

from typing import NoReturn

from tandem.engine import prompt_ids
from tandem.engine.base import EngineRequest, Role
from tandem.errors import InvalidRequestError, VoucherError
from tandem.logits import embedding_bias
from tandem.token_limits import check_token_ids


def refuse_open(request: EngineRequest, role: Role) -> NoReturn:
    """Raises InvalidRequestError for a request whose number or room is open already; VoucherError
    for KV that is parked, which another request uses.
    """
    if request.parked:
        raise VoucherError("it is being used already", phase=role.phase)
    raise InvalidRequestError("the request or its room is open already", param="room")


def check(request: EngineRequest, role: Role, vocabulary: int) -> None:
    """Raises InvalidRequestError, naming the field, for tokens that the model lacks, and for a
    hand-over that an engine of that role cannot be part of.
    """
    if not request.token_ids:
        raise InvalidRequestError("the prompt is empty", param="prompt")
    prompt_ids.check(request.token_ids, vocabulary)
    check_token_ids(request.made, vocabulary, param="resume")
    if request.embedding_bias is not None:
        embedding_bias.check(request.embedding_bias, vocabulary)
    if (role is Role.AGGREGATED) != (request.room == 0):
        raise InvalidRequestError(f"a {role.value} engine cannot take this room", param="room")
    if role is Role.DECODE and not request.kv_peer.rpartition(":")[2].isdecimal():
        raise InvalidRequestError(
            f"kv_peer must be host:port of a prefill engine, not {request.kv_peer!r}",
            param="kv_peer",
        )
