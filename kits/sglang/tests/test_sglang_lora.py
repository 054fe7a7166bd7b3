"""LoRA adapters on their way into SGLang: what it is started with, asked, and says of its cache."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from test_sglang_requests import fields_of, request
from test_sglang_warm_up import ABORTED, DONE, Manager

from tandem.engine.base import EngineSettings, Role
from tandem.engine.cache_events import CacheEvents
from tandem.engine.lora import LoraAdapter
from tandem.errors import ConfigError, StartError
from tandem.logits.registry import Registry
from tandem.prefix_blocks import BLOCK_TOKENS, packed, unpacked
from tandem_sglang import argument_rules, arguments, options, requests, warm_up
from tandem_sglang.engine import SglangEngine
from tandem_sglang.ports import Ports
from tandem_sglang.validation import EngineBounds

TOKENS = list(range(BLOCK_TOKENS))
TWO = tuple(LoraAdapter(name, Path("/a") / name, 4, "r") for name in ("sql", "tone"))


def settings(
    model_path: Path, options: Mapping[str, Any], adapters: Sequence[LoraAdapter]
) -> EngineSettings:
    return EngineSettings(
        model_path=model_path,
        model_name="tiny",
        max_sequences=2,
        host="127.0.0.1",
        options=options,
        registry=Registry.builtin(),
        lora_adapters=tuple(adapters),
    )


def server_args(
    adapters: Any,
    *,
    device: str = "cuda",
    ranks: Mapping[str, Any] | None = None,
    **extra: Any,
) -> dict[str, Any]:
    return arguments.server_args(
        options.parse({"server_args": json.dumps(extra), **(ranks or {})}),
        role=Role.PREFILL,
        model_path=Path("model/tandem-tiny"),
        max_sequences=8,
        host="127.0.0.1",
        device=device,
        ports=Ports(bootstrap=1),
        processors=False,
        lora_adapters=adapters,
    )


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


def test_on_cpus_adapters_beside_data_parallel_ranks_are_refused(model_path: Path) -> None:
    def engine(device: str, ranks: int, adapters: Sequence[LoraAdapter]) -> SglangEngine:
        options = {"device": device, "tensor_parallel": 2, "data_parallel": ranks}
        return SglangEngine(Role.DECODE, settings(model_path, options, adapters))

    with pytest.raises(ConfigError, match="setting lora_adapters empty, or engine option data_par"):
        engine("cpu", 2, TWO)
    assert engine("cpu", 1, TWO)
    assert engine("cpu", 2, ())
    assert engine("cuda", 2, TWO)


@pytest.mark.promise("S6-422")
@pytest.mark.parametrize("cache", [{"enable_flexkv": True}, {"radix_cache_backend": "flexkv"}])
def test_a_cache_that_knows_kv_by_its_tokens_alone_is_refused_beside_adapters(
    model_path: Path, cache: Mapping[str, Any]
) -> None:
    """Each would give one adapter's KV to another."""

    def engine(adapters: Sequence[LoraAdapter]) -> SglangEngine:
        options = {"device": "cuda", "server_args": json.dumps(cache)}
        return SglangEngine(Role.PREFILL, settings(model_path, options, adapters))

    with pytest.raises(ConfigError, match=f"{next(iter(cache))} beside the setting lora_adapters"):
        engine(TWO)


def test_on_gpus_a_backend_that_has_no_data_parallel_ranks_is_refused_beside_them(
    model_path: Path,
) -> None:
    def engine(backend: str, ranks: int) -> SglangEngine:
        options = {
            "device": "cuda",
            "tensor_parallel": 2,
            "data_parallel": ranks,
            "server_args": json.dumps({"lora_backend": backend}),
        }
        return SglangEngine(Role.DECODE, settings(model_path, options, TWO))

    with pytest.raises(ConfigError, match="lora_backend triton alone"):
        engine("csgmv", 2)
    assert engine("triton", 2)
    assert engine("csgmv", 1)


def test_a_batch_has_room_for_each_adapter_and_the_model_alone_as_far_as_sglang_s_default() -> None:
    many = [LoraAdapter(f"a{n}", Path("/a"), 4, "r") for n in range(20)]
    sizes = {n: server_args(many[:n])["max_loras_per_batch"] for n in (1, 2, 7, 8, 20)}
    assert sizes == {1: 2, 2: 3, 7: 8, 8: 8, 20: 8}
    assert server_args(many, max_loras_per_batch=21)["max_loras_per_batch"] == 21


@pytest.mark.promise("S5-410")
def test_a_request_names_its_adapter() -> None:
    assert fields_of(request(lora_adapter="sql"))["lora_path"] == "sql"
    assert "lora_path" not in fields_of(request())


@pytest.mark.parametrize("name", ["enable_lora", "lora_paths"])
def test_what_the_setting_says_is_not_taken_from_server_args(name: str) -> None:
    with pytest.raises(ConfigError, match="it is set by setting lora_adapters"):
        options.parse({"server_args": json.dumps({name: True})})


def test_what_is_about_adapters_is_refused_where_there_are_none(model_path: Path) -> None:
    def engine(adapters: Sequence[LoraAdapter]) -> SglangEngine:
        given = {"max_lora_rank": 8, "lora_backend": "triton", "watchdog_timeout": 9}
        options = {"server_args": json.dumps(given)}
        return SglangEngine(Role.DECODE, settings(model_path, options, adapters))

    assert engine(TWO)
    with pytest.raises(ConfigError, match="lora_backend, max_lora_rank: the setting lora_adapters"):
        engine(())
    argument_rules.check_idle({"watchdog_timeout": 9}, adapters=False, mooncake=False)


# --- the prefix cache ----------------------------------------------------------------------------


def told(**request_fields: Any) -> set[int]:
    """Blocks that are known to be cached once SGLang published the pages of such a request."""
    events = CacheEvents(requests.root_of)
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


async def warm(manager: Manager, *names: str) -> None:
    bounds = EngineBounds(
        role=Role.DECODE,
        context_length=64,
        prompt_length=60,
        vocabulary=1000,
        unseeded="",
        scores_prompts=True,
        drafts=False,
    )
    launched: Any = SimpleNamespace(
        manager=manager, messages=SimpleNamespace(GenerateReqInput=dict)
    )
    await warm_up.run(launched, bounds, grammars=False, lora_adapters=names, seconds=5.0)


@pytest.mark.promise("S5-415")
async def test_each_adapter_has_a_request_of_its_own() -> None:
    manager = Manager()
    await warm(manager, "sql", "tone")
    asked = [fields["lora_path"] for fields in manager.asked]
    assert asked == [None, None, "sql", "tone"] * 2


@pytest.mark.promise("S5-415")
async def test_an_adapter_that_does_not_run_fails_the_start() -> None:
    with pytest.raises(StartError, match="no kernel"):
        await warm(Manager(DONE, DONE, ABORTED), "sql")
