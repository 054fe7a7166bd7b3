"""What goes into vLLM and comes out of it, and the options: pure."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy
import pytest
from vllm_stand_ins import VOCABULARY, Side, request

from tandem.engine import model_files
from tandem.engine.base import Ending, EngineSettings, Role
from tandem.engine.cache_events import CacheEvents
from tandem.engine.lora import LoraAdapter
from tandem.errors import ConfigError, ProcessorError, StartError
from tandem.logits.registry import Registry
from tandem.prefix_blocks import packed
from tandem.v1 import pull_pb2
from tandem_vllm import arguments, engine, launch, outputs, requests, settle
from tandem_vllm.engine import VllmEngine
from tandem_vllm.notes import NoteReader, NoteWriter
from tandem_vllm.options import ModelRunner, Options, parse
from tandem_vllm.validation import EngineBounds

QUEUED = 1 + int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())


def test_sampling_parameters_are_vllms() -> None:
    asked = request(
        1, temperature=0.5, top_k=3, seed=2**63 - 1, logprobs=0, logit_bias={4: -1.0}, min_p=0.1
    )
    given = requests.sampling(asked, role=Role.AGGREGATED, eos_token_ids=frozenset({2}))
    assert given == {
        "n": 1,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 3,
        "min_p": pytest.approx(0.1),
        "seed": 2**63 - 1,
        "max_tokens": 8,
        "ignore_eos": True,
        "stop_token_ids": [2],
        "logprobs": 0,
        "prompt_logprobs": None,
        "logit_bias": {4: -1.0},
        "detokenize": False,
        "extra_args": None,
    }
    quiet = requests.sampling(
        request(1, ignore_eos=True, stop_token_ids=[5]),
        role=Role.DECODE,
        eos_token_ids=frozenset({2}),
    )
    assert quiet["stop_token_ids"] == [5]
    assert quiet["seed"] is quiet["logprobs"] is None


@pytest.mark.parametrize("role", list(Role))
def test_a_prompt_is_scored_where_it_is_computed(role: Role) -> None:
    asked = request(1, prompt_logprobs=3)
    given = requests.sampling(asked, role=role, eos_token_ids=frozenset())
    assert given["prompt_logprobs"] == (None if role is Role.DECODE else 3)


def test_endings() -> None:
    said = [outputs.ending(each) for each in (None, 0, 1, 2, 3, 4)]
    assert said == [None, Ending.STOP, Ending.LENGTH] + [Ending.FAILED] * 3


def test_logprobs_are_the_tokens_own_and_as_many_as_asked() -> None:
    lists = SimpleNamespace(
        logprob_token_ids=numpy.array([[7, 1, 2]]),
        logprobs=numpy.array([[-numpy.inf, -0.5, -1.5]], dtype=numpy.float32),
    )
    found = outputs.logprobs(lists, 1)
    assert found is not None
    assert (found.chosen, found.top) == ([-9999.0], [[(1, -0.5)]])
    none = outputs.logprobs(lists, 0)
    assert none is not None
    assert none.top == ()
    assert outputs.logprobs(None, 3) is None
    prompt = outputs.prompt_logprobs(lists, [3, 7], 2)
    assert prompt is not None
    assert (prompt.token_ids, len(prompt.logprobs.top[0])) == ([3, 7], 2)


def test_prefills_word_of_its_token_is_shown() -> None:
    assert outputs.first_logprobs(pull_pb2.PullReady()) is None
    ready = pull_pb2.PullReady(logprob=[-0.5], top_token_id=[4], top_logprob=[-0.5])
    found = outputs.first_logprobs(ready)
    assert found is not None
    assert (found.chosen, found.top) == ([-0.5], [[(4, -0.5)]])


def test_notes_arrive_with_what_they_say() -> None:
    reader = NoteReader()
    try:
        writer = NoteWriter(reader.address)
        assert reader.read() == {}
        writer.pages(4096)
        writer.failed("tandem-3", ProcessorError("it raised"))
        (found,) = reader.read().items()
        assert (found[0], type(found[1]), str(found[1])) == (
            "tandem-3",
            ProcessorError,
            "it raised",
        )
        assert reader.page_bytes == 4096
    finally:
        reader.close()
    writer.failed("tandem-4", ProcessorError("nobody reads"))
    writer._socket.close()
    assert not Path(reader.address).exists()


@pytest.mark.promise("S5-729")
async def test_a_whole_batch_may_fail_in_one_step() -> None:
    """Linux queues ten datagrams, or as many as net.unix.max_dgram_qlen says."""
    reader = NoteReader()
    reader.follow()
    writer = NoteWriter(reader.address)
    names = [f"tandem-{number}" for number in range(2 * QUEUED)]

    def fail_all() -> None:
        for name in names:
            writer.failed(name, ProcessorError("it raised"))

    try:
        async with asyncio.timeout(4.0):
            await asyncio.to_thread(fail_all)
        assert list(reader.read()) == names
    finally:
        writer._socket.close()
        reader.close()


def _batch(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([0.0, list(events), None])


def _stored(pages: list[bytes], parent: bytes | None, tokens: list[int], **more: Any) -> Any:
    return {
        "type": "BlockStored",
        "block_hashes": pages,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": 32,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **more,
    }


def _numbers(*prompt: Any) -> set[int]:
    blocks = packed(*prompt)
    return {int.from_bytes(blocks[at : at + 8], "little") for at in range(0, len(blocks), 8)}


def test_pages_of_vllm_are_blocks_of_tandem() -> None:
    events, tokens = CacheEvents(requests.owner_of), list(range(100, 228))
    events.take(0, _batch(_stored([b"a", b"b", b"c"], None, tokens[:96])))
    assert set(events.log.held) == _numbers(tokens[:96])
    events.take(1, _batch(_stored([b"d"], b"c", tokens[96:])))
    assert set(events.log.held) == _numbers(tokens)
    events.take(2, _batch({"type": "BlockRemoved", "block_hashes": [b"d"], "medium": "GPU"}))
    assert set(events.log.held) == _numbers(tokens[:64])
    events.take(3, _batch(_stored([b"x"], b"unknown", tokens[:32])))
    events.take(4, _batch({"type": "AllBlocksCleared"}))
    assert not events.log.held


def test_a_salt_keeps_blocks_apart_and_a_gap_forgets() -> None:
    events, tokens = CacheEvents(requests.owner_of), list(range(64))
    stored = _stored([b"a", b"b"], None, tokens, extra_keys=[["key"], None])
    events.take(0, _batch(stored))
    assert set(events.log.held) == _numbers(tokens, "key") != _numbers(tokens)
    events.take(2, _batch())
    assert not events.log.held


def test_an_adapter_keeps_blocks_apart_with_a_salt_and_without() -> None:
    tokens = list(range(64))
    for salt, keys in (("", ["sql"]), ("key", ["sql", "key"])):
        events = CacheEvents(requests.owner_of)
        stored = _stored([b"a", b"b"], None, tokens, lora_name="sql", extra_keys=[keys, ["sql"]])
        events.take(0, _batch(stored))
        assert set(events.log.held) == _numbers(tokens, salt, "sql")


def test_options_are_checked_by_name() -> None:
    given = parse({"page_size": "64", "decode_prefix_cache": "true", "dtype": "float32"})
    assert (given.page_size, given.decode_prefix_cache, given.dtype) == (64, True, "float32")
    for wrong in (
        {"speed": 1},
        {"page_size": "many"},
        {"page_size": -1},
        {"dtype": 3},
        {"handover_timeout_seconds": 0},
        {"engine_args": "no JSON"},
        {"engine_args": "[]"},
        {"engine_args": '{"speculative_config": {}}'},
        {"engine_args": '{"kv_transfer_config": {}}'},
        {"kv_check": "bytes"},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            parse(wrong)
    assert parse({"engine_args": '{"quantization": "fp8"}'}).extra == {"quantization": "fp8"}


@pytest.mark.promise("S5-730")
@pytest.mark.parametrize("role", list(Role))
def test_the_side_channel_listens_for_prefills_peers_alone(role: Role) -> None:
    given = arguments.own_variables(role, ModelRunner.V1, host="10.0.0.7", side_channel_port=7)
    expected = "10.0.0.7" if role is Role.PREFILL else "127.0.0.1"
    assert given["VLLM_NIXL_SIDE_CHANNEL_HOST"] == expected


@pytest.mark.promise("S5-882")
async def test_a_pair_has_one_model_runner_and_its_class_for_processors(model_path: Path) -> None:
    layouts = set()
    for runner, variable, path, refused in (
        ("v1", "0", "processor:TandemLogitsProcessor", {"seed"}),
        ("v2", "1", "processor_v2:TandemLogitsProcessorV2", set()),
    ):
        made = VllmEngine(Role.AGGREGATED, _settings(model_path, model_runner=runner))
        bounds = EngineBounds(role=Role.AGGREGATED, context_length=200, vocabulary=VOCABULARY)
        said = made._description(Side(Role.AGGREGATED).launched, bounds, "")
        layouts.add(said.fingerprint.kv_layout)
        assert said.cannot_resume == refused
        own = arguments.own_variables(
            Role.DECODE, made._options.model_runner, host="", side_channel_port=0
        )
        assert own["VLLM_USE_V2_MODEL_RUNNER"] == variable
        settings = _for_arguments(model_path)
        given = arguments.engine_args(made._options, settings, Role.AGGREGATED, cpu=True, notes="")
        assert given["logits_processors"] == [f"tandem_vllm.{path}"]
        await made.close()
    assert len(layouts) == 2
    with pytest.raises(ConfigError, match="model_runner"):
        parse({"model_runner": "v3"})


def test_nothing_is_compiled_on_cpus() -> None:
    assert arguments.environment(host="10.0.0.7", cpu=True)["TORCH_COMPILE_DISABLE"] == "1"
    assert "TORCH_COMPILE_DISABLE" not in arguments.environment(host="10.0.0.7", cpu=False)


def _settings(model_path: Path, **options: Any) -> EngineSettings:
    return EngineSettings(
        model_path=model_path,
        model_name="tiny",
        max_sequences=4,
        host="127.0.0.1",
        options=options,
        registry=Registry.builtin(),
    )


async def test_no_variable_of_the_environment_decides_what_is_tandems(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = arguments.own_variables(Role.PREFILL, ModelRunner.V1, host="", side_channel_port=0)
    for name in names:
        monkeypatch.setenv(name, "1")

    def not_started(*_: Any, **__: Any) -> None:
        raise StartError("not started")

    monkeypatch.setattr(engine, "VllmThread", not_started)
    monkeypatch.setattr(arguments, "environment", lambda **_: {})
    monkeypatch.setattr(settle, "announce", lambda _: None)
    with pytest.raises(StartError, match="not started"):
        await VllmEngine(Role.PREFILL, _settings(model_path)).start()
    assert [os.environ[name] for name in names if os.environ[name] == "1"] == []


async def test_a_side_channel_whose_port_is_taken_is_refused_at_the_start(
    model_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = _settings(model_path, side_channel_port=port)
        with pytest.raises(StartError, match=f"{port}.*side_channel_port"):
            await VllmEngine(Role.PREFILL, settings).start()


def _for_arguments(model_path: Path, adapters: Sequence[LoraAdapter] = ()) -> Any:
    """EngineSettings, as far as vLLM's arguments are made of them."""
    return SimpleNamespace(
        model_path=model_path,
        max_sequences=16,
        registry=Registry.builtin(),
        host="127.0.0.1",
        lora_adapters=adapters,
    )


def _adapter(name: str = "sql", rank: int = 4, *modules: str) -> LoraAdapter:
    return LoraAdapter(name, Path("/adapters") / name, rank, "r", frozenset(modules))


def _with_adapters(model_path: Path, *adapters: LoraAdapter, cpu: bool = True) -> dict[str, Any]:
    settings = _for_arguments(model_path, adapters)
    return arguments.engine_args(Options(), settings, Role.DECODE, cpu=cpu, notes="")


@pytest.mark.promise("S5-852")
def test_rows_without_an_adapter_have_an_empty_place_on_cpus(model_path: Path) -> None:
    """There vLLM applies what is in the last place to them, where rows with adapters are beside."""
    adapters = [_adapter(f"a{number}", 4, "q_proj") for number in range(20)]
    assert _with_adapters(model_path, *adapters)["max_loras"] == 21
    on_gpu = _with_adapters(model_path, *adapters, cpu=False)
    assert (on_gpu["max_loras"], on_gpu["max_cpu_loras"]) == (8, 21)
    assert "enable_lora" not in _with_adapters(model_path)


def test_adapters_are_applied_to_what_they_change_alone(model_path: Path) -> None:
    """So that vLLM computes log-probabilities of prompts without adapters in its way."""
    two = (_adapter("sql", 4, "q_proj", "o_proj"), _adapter("tone", 20, "up_proj", "o_proj"))
    given = _with_adapters(model_path, *two)
    assert given["lora_target_modules"] == ["o_proj", "q_proj", "up_proj"]
    assert (given["enable_lora"], given["max_lora_rank"]) == (True, 32)


@pytest.mark.promise("S5-852")
@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        (_adapter("sql", 4, "q_proj", "lm_head"), "sql: vLLM cannot score prompts with lm_head"),
        (_adapter("sql", 513, "q_proj"), "sql: vLLM has no kernels for rank 513, only up to 512"),
    ],
    ids=["lm_head", "rank"],
)
def test_adapters_that_vllm_cannot_apply_are_refused_at_the_start(
    model_path: Path, adapter: LoraAdapter, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        _with_adapters(model_path, adapter)


@pytest.mark.promise("S5-732")
def test_on_cpus_no_prompt_is_cut(model_path: Path) -> None:
    """Whatever an operator says of steps: see `arguments._batched_tokens`."""
    settings = _for_arguments(model_path)
    context = model_files.context_length(model_path)
    for asked, tokens in ((0, context), (100, context), (context + 1, context + 1)):
        given = arguments.engine_args(
            Options(max_batched_tokens=asked),
            settings,
            Role.PREFILL,
            cpu=True,
            notes="",
        )
        assert given["enable_chunked_prefill"] is False
        assert given["max_num_batched_tokens"] == tokens
    on_gpu = arguments.engine_args(
        Options(max_batched_tokens=100),
        settings,
        Role.DECODE,
        cpu=False,
        notes="",
    )
    assert "enable_chunked_prefill" not in on_gpu
    assert on_gpu["max_num_batched_tokens"] == 100


@pytest.mark.promise("S5-856")
def test_a_release_that_lacks_what_is_used_is_refused_by_what_it_lacks() -> None:
    whole = {name: type(name, (), dict.fromkeys(asked)) for name, asked in launch._ASKED.items()}
    launch.check_release("0.99", *whole.values())
    for name, asked in launch._ASKED.items():
        for missing in asked:
            lacking = type(name, (), dict.fromkeys(each for each in asked if each != missing))
            with pytest.raises(StartError, match=f"vLLM 0.99, .* lacks {name}.{missing}:"):
                launch.check_release("0.99", *(whole | {name: lacking}).values())


def test_a_page_that_does_not_come_is_never_recomputed() -> None:
    given = arguments._transfer(Role.DECODE, cpu=True)
    assert (given["kv_load_failure_policy"], given["kv_role"]) == ("fail", "kv_consumer")
    assert arguments._transfer(Role.PREFILL, cpu=False)["kv_role"] == "kv_producer"
    assert Options().extra == {}
