"""What a started SGLang engine says of itself, without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sglang_settings import engine_settings

from tandem.engine.base import EngineDescription, Role
from tandem.v1 import common_pb2
from tandem_sglang import describe


def fingerprint(role: Role, **arguments: Any) -> common_pb2.Fingerprint:
    return described(role, **arguments).fingerprint


def described(role: Role, **arguments: Any) -> EngineDescription:
    """`arguments`: of SGLang's, as it has resolved them."""
    manager = SimpleNamespace(
        model_config=SimpleNamespace(dtype="torch.float32", hf_eos_token_id=None),
        tokenizer=SimpleNamespace(eos_token_id=None),
    )
    launched: Any = SimpleNamespace(
        manager=manager,
        version="1",
        units=(),
        arguments={
            "disaggregation_transfer_backend": "nixl",
            "kv_cache_dtype": "auto",
            "page_size": 1,
            "enable_dp_attention": False,
            "tp_size": 1,
            "speculative_algorithm": None,
            **arguments,
        },
    )
    limits: Any = SimpleNamespace(role=role, context_length=10, vocabulary=10, cannot_sample={})
    return describe.description(
        launched,
        limits,
        engine_settings({}),
        kv_endpoint="",
        prefixes=None,
        ranks={Role.PREFILL: 1, Role.DECODE: 1},
        stages=1,
    )
