"""LoRA adapters on their way into SGLang: what it is started with, asked, and says of its cache."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sglang_settings
from sglang_settings import engine_settings
from test_sglang_requests import fields_of, request
from test_sglang_warm_up import ABORTED, DONE, Manager, run

from tandem.engine.base import Role
from tandem.engine.cache_events import CacheEvents
from tandem.engine.lora import LoraAdapter
from tandem.errors import ConfigError, StartError
from tandem.prefix_blocks import BLOCK_TOKENS, packed, unpacked
from tandem_sglang import argument_rules, requests
from tandem_sglang.engine import SglangEngine

TOKENS = list(range(BLOCK_TOKENS))
TWO = tuple(LoraAdapter(name, Path("/a") / name, 4, "r") for name in ("sql", "tone"))


def server_args(
    adapters: Any, *, device: str = "cuda", ranks: Mapping[str, Any] | None = None, **extra: Any
) -> dict[str, Any]:
    raw = {"server_args": json.dumps(extra), **(ranks or {})}
    return sglang_settings.server_args(
        Role.PREFILL, raw, device=device, processors=False, lora_adapters=adapters
    )


def engine(
    raw: Mapping[str, Any], adapters: Sequence[LoraAdapter], role: Role = Role.DECODE
) -> SglangEngine:
    return SglangEngine(role, engine_settings(raw, lora_adapters=tuple(adapters)))


@pytest.mark.promise("S5-410")
def test_sglang_is_given_the_adapters_by_name_and_path() -> None:
    made = server_args(TWO)
    assert made["enable_lora"] is True
    assert made["lora_paths"] == [
        {"lora_name": "sql", "lora_path": "/a/sql"},
        {"lora_name": "tone", "lora_path": "/a/tone"},
    ]
    assert "lora_backend" not in made
    assert made["lora_strict_loading"] is True
    assert server_args(TWO, lora_strict_loading=False)["lora_strict_loading"] is False
    assert server_args(TWO, device="cpu")["lora_backend"] == "torch_native"
    assert not [name for name in server_args(()) if "lora" in name]


def test_beside_data_parallel_ranks_sglang_gets_the_one_backend_that_has_them() -> None:
    ranks = {"tensor_parallel": 2, "data_parallel": 2}
    assert server_args(TWO, ranks=ranks)["lora_backend"] == "triton"
    assert "lora_backend" not in server_args((), ranks=ranks)


def test_on_cpus_adapters_beside_data_parallel_ranks_are_refused() -> None:
    def of(device: str, ranks: int, adapters: Sequence[LoraAdapter]) -> SglangEngine:
        raw = {"device": device, "tensor_parallel": 2, "data_parallel": ranks}
        return engine(raw, adapters)

    with pytest.raises(ConfigError, match="setting lora_adapters empty, or engine option data_par"):
        of("cpu", 2, TWO)
    assert of("cpu", 1, TWO)
    assert of("cpu", 2, ())
    assert of("cuda", 2, TWO)


@pytest.mark.promise("S6-422")
@pytest.mark.parametrize("cache", [{"enable_flexkv": True}, {"radix_cache_backend": "flexkv"}])
def test_a_cache_that_knows_kv_by_its_tokens_alone_is_refused_beside_adapters(
    cache: Mapping[str, Any],
) -> None:
    """Each would give one adapter's KV to another."""
    raw = {"device": "cuda", "server_args": json.dumps(cache)}
    with pytest.raises(ConfigError, match=f"{next(iter(cache))} beside the setting lora_adapters"):
        engine(raw, TWO, Role.PREFILL)


def test_on_gpus_a_backend_that_has_no_data_parallel_ranks_is_refused_beside_them() -> None:
    def of(backend: str, ranks: int) -> SglangEngine:
        raw = {"device": "cuda", "tensor_parallel": 2, "data_parallel": ranks}
        return engine(raw | {"server_args": json.dumps({"lora_backend": backend})}, TWO)

    with pytest.raises(ConfigError, match="lora_backend triton alone"):
        of("csgmv", 2)
    assert of("triton", 2)
    assert of("csgmv", 1)


def test_a_batch_has_room_for_each_adapter_and_the_model_alone_as_far_as_sglang_s_default() -> None:
    many = [LoraAdapter(f"a{n}", Path("/a"), 4, "r") for n in range(20)]
    sizes = {n: server_args(many[:n])["max_loras_per_batch"] for n in (1, 2, 7, 8, 20)}
    assert sizes == {1: 2, 2: 3, 7: 8, 8: 8, 20: 8}
    assert server_args(many, max_loras_per_batch=21)["max_loras_per_batch"] == 21


@pytest.mark.promise("S5-410")
def test_a_request_names_its_adapter() -> None:
    assert fields_of(request(lora_adapter="sql"))["lora_path"] == "sql"
    assert "lora_path" not in fields_of(request())


def test_what_is_about_adapters_is_refused_where_there_are_none() -> None:
    given = {"max_lora_rank": 8, "lora_backend": "triton", "watchdog_timeout": 9}
    raw = {"server_args": json.dumps(given)}
    assert engine(raw, TWO)
    with pytest.raises(ConfigError, match="lora_backend, max_lora_rank: the setting lora_adapters"):
        engine(raw, ())
    argument_rules.check_idle({"watchdog_timeout": 9}, adapters=False, mooncake=False)


# --- the prefix cache ----------------------------------------------------------------------------


def told(**request_fields: Any) -> set[int]:
    """Blocks that are known to be cached once SGLang published the pages of such a request."""
    events = CacheEvents(requests.owner_of)
    salt = fields_of(request(**request_fields))["cache_salt"]
    stored = {
        "type": "BlockStored",
        "block_hashes": [1],
        "parent_block_hash": None,
        "token_ids": TOKENS,
        "block_size": BLOCK_TOKENS,
        "lora_id": None,
        **({"cache_salt": salt} if salt else {}),
    }
    events.take(0, msgspec.msgpack.encode([0.5, [stored], 0]))
    return set(events.log.held)


@pytest.mark.promise("S5-413")
@pytest.mark.parametrize("salt", ["", "acme", "sql", "a\0b"])
@pytest.mark.parametrize("name", ["", "sql"])
def test_cached_pages_are_known_by_the_numbers_that_frontends_say(salt: str, name: str) -> None:
    found = told(cache_salt=salt, lora_adapter=name)
    assert found == set(unpacked(packed(TOKENS, salt, name)))


def test_no_two_requests_that_differ_have_one_salt() -> None:
    parts = ("", "a", "b", "a\0b", "\0a", "a\0")
    names = [each for each in parts if "\0" not in each]
    salts = [requests.salt(salt, name) for salt in parts for name in names]
    assert len(set(salts)) == len(salts)


# --- before the first request ---------------------------------------------------------------------


@pytest.mark.promise("S5-415")
async def test_each_adapter_has_a_request_of_its_own() -> None:
    manager = Manager()
    await run(manager, grammars=False, lora_adapters=("sql", "tone"))
    asked = [fields["lora_path"] for fields in manager.asked]
    assert asked == [None, None, "sql", "tone"] * 2


@pytest.mark.promise("S5-415")
async def test_an_adapter_that_does_not_run_fails_the_start() -> None:
    with pytest.raises(StartError, match="no kernel"):
        await run(Manager(DONE, DONE, ABORTED), grammars=False, lora_adapters=("sql",))
