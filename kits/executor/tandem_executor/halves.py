"""Requests of one phase: between ContextPhaseParams and what routers sign."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from tandem.errors import InvalidRequestError, VoucherError
from tandem.v1 import common_pb2
from tandem_executor.requests import ContextPhaseParams, Request, RequestType


def is_context_only(request: Request) -> bool:
    return request.type is RequestType.REQUEST_TYPE_CONTEXT_ONLY


def check(request: Request) -> None:
    """Raises RequestError where a request's type does not go with the rest of it."""
    params = request.context_phase_params
    if not isinstance(request.type, RequestType):
        raise InvalidRequestError("type must be a RequestType", param="type")
    if request.type is RequestType.REQUEST_TYPE_GENERATION_ONLY:
        if params is None:
            raise InvalidRequestError(
                "a generation-only request needs context_phase_params, of a context-only request",
                param="context_phase_params",
            )
        _check_params(params)
    elif params is not None:
        raise InvalidRequestError(
            "only a generation-only request has context_phase_params", param="context_phase_params"
        )
    whole = request.type is RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION
    if not whole and request.sampling_config.num_return_sequences not in (None, 1):
        raise InvalidRequestError(
            "a request of one phase has one sequence", param="num_return_sequences"
        )


def voucher_of(request: Request) -> bytes:
    """What a generation-only request shows the router; empty for any other."""
    params = request.context_phase_params
    return b"" if params is None else params.opaque_state or b""


def left(request_id: int, voucher: bytes) -> tuple[ContextPhaseParams, list[float]]:
    """What the router says that a context-only request left, and the log-probabilities of the first
    tokens where the request asked for them. Raises VoucherError where that cannot be read.
    """
    content = _content(voucher)
    params = ContextPhaseParams(list(content.first_token_ids), request_id, voucher)
    return params, list(content.first_logprobs)


def _check_params(params: ContextPhaseParams) -> None:
    state = params.opaque_state
    if not isinstance(state, bytes) or not state or not isinstance(params.req_id, int):
        raise InvalidRequestError(
            "opaque_state must be some bytes, and req_id a number", param="context_phase_params"
        )
    if list(_content(state).first_token_ids) != list(params.first_gen_tokens):
        raise VoucherError(
            "first_gen_tokens do not match opaque_state", param="context_phase_params"
        )


def _content(signed: bytes) -> common_pb2.Voucher:
    try:
        return common_pb2.Voucher.FromString(common_pb2.SignedVoucher.FromString(signed).voucher)
    except DecodeError as error:
        raise VoucherError("opaque_state cannot be read", param="context_phase_params") from error
