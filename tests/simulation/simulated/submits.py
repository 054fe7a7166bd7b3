"""Requests as a router's core is told of them."""

from __future__ import annotations

from typing import Any

from tandem.errors import TandemError
from tandem.prefix_blocks import Blocks
from tandem.v1 import common_pb2, router_pb2
from tandem_router.core.events import Submit
from tandem_router.core.values import Needs


def submit(
    first_sequence: int,
    *,
    frontend: int = 1,
    task: bytes = b"t",
    prompt_blocks: Blocks = (),
    logits_processors: frozenset[str] = frozenset(),
    sampling: frozenset[str] = frozenset(),
    lora_adapter: str = "",
    voucher: common_pb2.Voucher | None = None,
    first_span: int = 0,
    fault: TandemError | None = None,
    timeout_seconds: float = 60.0,
    **fields: Any,
) -> Submit:
    """A request of one output of the model "tiny". `fields`: others of tandem.v1.Submit."""
    message = router_pb2.Submit(
        **{
            "first_sequence": first_sequence,
            "n": 1,
            "model": "tiny",
            "timeout_ms": int(timeout_seconds * 1000),
            "weight": 1,
            **fields,
        }
    )
    needs = Needs(logits_processors=logits_processors, lora_adapter=lora_adapter, sampling=sampling)
    return Submit(frontend, message, task, prompt_blocks, needs, voucher, first_span, fault)
