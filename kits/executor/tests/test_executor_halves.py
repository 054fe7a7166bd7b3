"""Requests of one phase, on both executors, in front of a router that answers by script."""

from __future__ import annotations

from typing import Any

import pytest
from both import Start, final, request
from fake_router import Reply

from tandem.v1 import common_pb2
from tandem_executor import ContextPhaseParams, FinishReason, OutputConfig, RequestType
from tandem_executor.halves import left

FIRST = RequestType.REQUEST_TYPE_CONTEXT_ONLY
SECOND = RequestType.REQUEST_TYPE_GENERATION_ONLY


def signed(*token_ids: int) -> bytes:
    voucher = common_pb2.Voucher(
        room=1, first_token_ids=token_ids, first_logprobs=[-0.5] * len(token_ids)
    )
    return common_pb2.SignedVoucher(voucher=voucher.SerializeToString()).SerializeToString()


@pytest.mark.promise("S2-082")
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_context_only_request_brings_what_the_second_half_needs(
    start: Start, streaming: bool
) -> None:
    async def script(reply: Reply) -> None:
        assert reply.submit.context_only
        assert not reply.submit.voucher
        reply.end(voucher=signed(7))

    _, executor = await start(script)
    output = OutputConfig(return_log_probs=True, exclude_input_from_output=True)
    asked = request(type=FIRST, streaming=streaming, output_config=output)
    (response,) = await final(executor, executor.enqueue_request(asked))
    result = response.result
    assert (result.output_token_ids, result.log_probs) == ([[7]], [[-0.5]])
    assert result.finish_reasons == [FinishReason.LENGTH]
    assert (result.is_final, result.is_sequence_final) == (True, True)
    params = ContextPhaseParams([7], response.request_id, signed(7))
    assert result.context_phase_params == params


async def test_a_token_that_a_hook_held_back_is_not_there(start: Start) -> None:
    async def script(reply: Reply) -> None:
        reply.end(voucher=signed())

    _, executor = await start(script)
    (response,) = await final(executor, executor.enqueue_request(request(type=FIRST)))
    assert response.result.output_token_ids == [[1, 2]]
    assert response.result.context_phase_params.first_gen_tokens == []


async def test_the_second_half_shows_the_voucher_and_keeps_the_callback_s_id(start: Start) -> None:
    async def script(reply: Reply) -> None:
        reply.token_ids([7, 8])
        reply.finish(length=True)

    router, executor = await start(script)
    params = ContextPhaseParams([7], 55, signed(7))
    name = {"logits_post_processor_name": "n"}
    second = request(type=SECOND, context_phase_params=params, **name)
    (response,) = await final(executor, executor.enqueue_request(second))
    assert response.result.output_token_ids == [[1, 2, 7, 8]]
    assert response.result.context_phase_params is None
    await final(executor, executor.enqueue_request(request(**name)))
    halved, whole = router.replies.values()
    assert (halved.submit.voucher, halved.submit.context_only) == (signed(7), False)
    assert whole.submit.voucher == b""
    args = [each.task.logits.processors[0].args_json for each in (halved, whole)]
    assert args == ['{"request_id": 55}', '{"request_id": 2}']


@pytest.mark.parametrize(
    ("kind", "voucher", "code"),
    [(FIRST, b"\xff", "worker_error"), (None, signed(7), "worker_error")],
)
async def test_a_router_that_says_nonsense_costs_its_own_request(
    start: Start, kind: Any, voucher: bytes, code: str
) -> None:
    async def script(reply: Reply) -> None:
        reply.end(voucher=voucher)

    _, executor = await start(script)
    asked = request() if kind is None else request(type=kind)
    (response,) = await final(executor, executor.enqueue_request(asked))
    assert response.error_code == code


def test_what_is_left_is_read_from_what_the_router_signed() -> None:
    params, log_probs = left(3, signed(9))
    assert (params.first_gen_tokens, params.req_id, params.opaque_state) == ([9], 3, signed(9))
    assert list(log_probs) == [-0.5]
