"""No argument of SGLang is ignored without a word: each works, is passed on, or is refused, and
those that Tandem makes for CUDA are taken by SGLang itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import generate_sglang_page
import pytest
import sglang_arguments
from one_case import one_case
from sglang_settings import server_args

from tandem.engine.base import Role
from tandem.errors import ConfigError, StartError
from tandem_sglang import argument_rules, kept, options, server_arguments

CONFIGS = Path(__file__).resolve().parents[3] / "tests" / "model_configs"
STATES = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "dtype": "bfloat16",
    "head_dim": 64,
    "hidden_size": 256,
    "intermediate_size": 512,
    "max_position_embeddings": 4096,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
}
"""Three of four layers have linear attention."""


def promised(raw: dict[str, Any], given: dict[str, Any]) -> Mapping[str, Any]:
    return kept.of(given, options.parse({"device": "cuda", "random_seed": 7, **raw}))


def made(raw: dict[str, Any], *, model_path: Path, role: Role = Role.DECODE) -> dict[str, Any]:
    """Arguments for CUDA."""
    given = {"device": "cuda", "random_seed": 7, **raw}
    return server_args(role, given, device="cuda", model_path=model_path, max_sequences=300)


def classified() -> list[str]:
    tables = (server_arguments.REFUSED, server_arguments.WORKS, server_arguments.PASSED)
    listed = [name for table in tables for names in table.values() for name in names]
    return [*server_arguments.OWNED, *listed]


@pytest.mark.promise("S5-300")
def test_an_argument_has_one_fate() -> None:
    assert [name for name, count in Counter(classified()).items() if count > 1] == []


@pytest.mark.promise("S5-300")
@one_case("name", sorted(server_arguments.OWNED))
def test_what_tandem_sets_is_refused_by_name_with_what_sets_it(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        options.parse({"server_args": json.dumps({name: 1})})
    assert f" {name}: it is set by {server_arguments.OWNED[name]}" in str(refused.value)


@pytest.mark.promise("S5-300")
@one_case("reason", server_arguments.REFUSED)
def test_what_would_have_no_effect_is_refused_by_name_with_the_reason(reason: str) -> None:
    for name in server_arguments.REFUSED[reason]:
        with pytest.raises(ConfigError) as refused:
            options.parse({"server_args": json.dumps({name: 1})})
        assert f" {name}: {reason}" in str(refused.value)


@pytest.mark.promise("S5-300")
@pytest.mark.parametrize("reason", server_arguments.REFUSED_VALUES)
def test_a_value_that_would_have_no_effect_is_refused_with_the_reason(reason: str) -> None:
    for name, value in server_arguments.REFUSED_VALUES[reason]:
        for said in (value, value.swapcase()):
            with pytest.raises(ConfigError) as refused:
                options.parse({"server_args": json.dumps({name: said})})
            assert f" {name} {said}: {reason}" in str(refused.value)
    given = {"speculative_algorithm": "EAGLE", "expert_balancedness_report_mode": "server_log"}
    assert options.parse({"server_args": json.dumps(given)}).extra == given


ONE_LINE = "constrained_json_disable_any_whitespace"
IDLE = [
    ({"enable_request_time_stats_logging": True}, {"log_level": "info"}),
    ({"expert_balancedness_report_mode": "server_log"}, {"log_level": "debug"}),
    ({"expert_distribution_recorder_mode": "stat"}, {"enable_eplb": True}),
    (
        {"expert_distribution_recorder_buffer_size": 9},
        {"expert_balancedness_report_mode": "server_log", "log_level": "info"},
    ),
    (
        {"constrained_json_max_whitespace_cnt": 3},
        {"grammar_backend": "xgrammar", ONE_LINE: False},
    ),
]
"""What has an effect beside something else alone, and that."""


@pytest.mark.promise("S5-300")
@pytest.mark.parametrize(("idle", "needed"), IDLE, ids=lambda given: next(iter(given)))
def test_what_has_no_effect_without_something_else_is_refused_by_name(
    idle: dict[str, Any], needed: dict[str, Any]
) -> None:
    def check(given: dict[str, Any]) -> None:
        argument_rules.check_idle(given, adapters=False, mooncake=False)

    check(idle | needed)
    for missing in needed:
        with pytest.raises(ConfigError, match="must not hold ") as refused:
            check(idle | {name: value for name, value in needed.items() if name != missing})
        assert {*idle, *needed} & set(str(refused.value).replace(":", "").split())


@pytest.mark.promise("S5-300")
@one_case("companions", server_arguments.COMPANIONS, ids=lambda names: names[0])
def test_what_needs_another_argument_is_refused_by_name_without_it(
    companions: tuple[str, ...],
) -> None:
    def check(given: dict[str, Any]) -> None:
        argument_rules.check_idle(given, adapters=False, mooncake=False)

    for name in server_arguments.COMPANIONS[companions]:
        for given in ({}, dict.fromkeys(companions)):  # None is SGLang's default of many
            with pytest.raises(ConfigError) as refused:
                check({name: 1, **given})
            assert f" {name}: it needs {' or '.join(companions)} beside it" in str(refused.value)
        for each in companions:
            check({name: 1, each: "given"})


@pytest.mark.promise("S5-300")
def test_companions_are_arguments_that_can_be_given() -> None:
    passed = {name for names in server_arguments.PASSED.values() for name in names}
    for companions, names in server_arguments.COMPANIONS.items():
        assert {*companions, *names} <= passed
        assert not {*companions} & {*names}


def test_all_that_is_wrong_is_said_at_once() -> None:
    given = {"tp_size": 4, "api_key": "a", "quantisation": "fp8", "quantization": "fp8"}
    with pytest.raises(ConfigError) as refused:
        options.parse({"server_args": json.dumps(given)})
    said = str(refused.value)
    places = [said.index(f"{name}: ") for name in ("api_key", "quantisation", "tp_size")]
    assert places == sorted(places)
    assert "quantization" not in said


@pytest.mark.promise("S5-300")
def test_what_is_passed_on_arrives_over_every_default(model_path: Path) -> None:
    listed = [
        name
        for table in (server_arguments.WORKS, server_arguments.PASSED)
        for names in table.values()
        for name in names
        if name != "grammar_backend"  # one of three names
    ]
    built = made({"server_args": json.dumps(dict.fromkeys(listed, "given"))}, model_path=model_path)
    assert {name for name in listed if built[name] != "given"} == set()


def drafted(algorithm: str, **more: Any) -> dict[str, Any]:
    return {"server_args": json.dumps({"speculative_algorithm": algorithm, **more})}


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({}, 64),
        ({"page_size": 128}, 128),
        ({"server_args": '{"speculative_eagle_topk": 1}'}, 64),
        ({"server_args": '{"speculative_eagle_topk": 4}'}, None),
        (drafted("EAGLE"), None),
        (drafted("eagle", speculative_eagle_topk=1), 64),
        (drafted("EAGLE", speculative_eagle_topk=4), None),
        (drafted("NGRAM", speculative_eagle_topk=1), None),
    ],
)
def test_a_page_on_cuda_holds_64_tokens_unless_sglang_knows_better(
    raw: dict[str, Any], named: int | None, model_path: Path
) -> None:
    for role in Role:
        assert made(raw, model_path=model_path, role=role).get("page_size") == named


@pytest.mark.parametrize("key", ["mamba_d_conv", "linear_num_key_heads", "conv_L_cache"])
def test_a_model_that_keeps_states_has_the_pages_that_sglang_chooses(
    tmp_path: Path, key: str
) -> None:
    for name, size in ((key, None), ("hidden_size", 64)):
        (tmp_path / "config.json").write_text(json.dumps({"text_config": {name: 4}}))
        assert made({}, model_path=tmp_path).get("page_size") == size


def test_the_page_says_what_the_tables_do() -> None:
    """Else: scripts/generate_sglang_page.py."""
    text = generate_sglang_page.PAGE.read_text(encoding="utf-8")
    assert generate_sglang_page.page(text) == text
    assert all(f"`{name}`" in text for name in classified())


LATER = {
    "attn_dp_size",
    "aux_hidden_state_capture",
    "disaggregation_decode_allocation_policy",
    "dsa_triton_union",
    "enable_amd_monokernel",
    "enable_cp_tp_group_sharing",
    "enable_dsa_fused_indexer",
    "enable_http_worker_reuseport",
    "enable_kv_cache_sharding",
    "enable_megamoe_for_layernorm_sp",
    "enable_nvidia_megakernel",
    "enable_paged_experts",
    "enable_return_aux_hidden_states",
    "enable_watermark",
    "paged_experts_num_resident",
    "prefill_decode_interval_min_bs",
    "qsa_indexer_dtype",
    "return_aux_hidden_state_layer_ids",
    "speculative_enable_w4a4_mxfp4_megamoe",
    "speculative_use_block_verification",
    "unified_cache_external_linker_config",
    "watermark_config",
    "watermark_context_window",
    "watermark_default_enabled",
    "watermark_enforce_all",
    "watermark_key",
    "watermark_key_b",
    "watermark_max_probability",
    "watermark_mixing_probability",
}
"""What 0.5.22 and 0.5.23 have beside what 0.5.21 has."""
GONE = {"cuda_graph_tc_compiler", "speculative_skip_dp_mlp_sync"}
"""What one of them has no longer."""


@pytest.fixture(scope="module")
def told(model_path: Path) -> dict[str, Any]:
    return sglang_arguments.ask([made({}, model_path=model_path, role=role) for role in Role])


@pytest.mark.sglang
@pytest.mark.promise("S5-300")
def test_every_argument_of_sglang_is_classified(told: dict[str, Any]) -> None:
    names, listed = set(told["names"]), set(classified())
    assert names <= listed
    assert listed - names <= LATER | GONE


SHAPES: dict[str, tuple[dict[str, Any], str, Role]] = {
    "experts": (
        {
            "tensor_parallel": 16,
            "data_parallel": 16,
            "server_args": '{"ep_size": 16, "moe_a2a_backend": "deepep"}',
        },
        "DeepSeek-V3",
        Role.DECODE,
    ),
    "groups": (
        {"tensor_parallel": 8, "data_parallel": 4, "server_args": '{"ep_size": 8}'},
        "Qwen3-235B-A22B",
        Role.PREFILL,
    ),
    "layers": (
        {"tensor_parallel": 4, "pipeline_parallel": 2},
        "Llama-3.3-70B-Instruct",
        Role.PREFILL,
    ),
    "prefixes": ({"decode_prefix_cache": True}, "Llama-3.3-70B-Instruct", Role.DECODE),
}
"""Options, model and role."""


@pytest.mark.sglang
@pytest.mark.promise("S5-472")
@pytest.mark.parametrize("model", sorted(path.name for path in CONFIGS.iterdir()))
def test_sglang_takes_the_page_of_every_way_to_draft(model: str) -> None:
    """With several drafts for a place it refuses 64, or verifies them with other kernels."""
    draft = {"speculative_draft_model_path": str(CONFIGS / "Qwen3-8B")}
    ways = [
        drafted("NGRAM"),
        *(drafted(name, **draft) for name in ("EAGLE", "EAGLE3", "STANDALONE")),
        drafted("EAGLE", speculative_eagle_topk=1, speculative_num_steps=3,
                speculative_num_draft_tokens=4, **draft),
    ]  # fmt: skip
    asked = [made(way, model_path=CONFIGS / model, role=Role.DECODE) for way in ways]
    resolved = sglang_arguments.ask(asked)["resolved"]
    assert [told for told in resolved if isinstance(told, str)] == []
    chosen = [(told["speculative_eagle_topk"], told["page_size"]) for told in resolved]
    assert all(page == 1 for drafts, page in chosen if drafts > 1)
    assert chosen[-1][0] == 1
    assert chosen[-1][1] >= 64


GIVEN: dict[str, Any] = {
    "chunked_prefill_size": 4096,
    "context_length": 2048,
    "max_total_tokens": 9999,
    "mem_fraction_static": 0.7,
    "page_size": 32,
    "dtype": "bfloat16",
    "attention_backend": "triton",
    "disable_overlap_schedule": True,
}
"""Every option that an operator may choose of what SGLang else decides."""


@pytest.fixture(scope="module")
def resolved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What SGLang makes of prefill workers of each model, and of the shapes."""
    folder = tmp_path_factory.mktemp("states")
    (folder / "config.json").write_text(json.dumps(STATES), encoding="utf-8")
    models = {"states": folder, **{path.name: path for path in CONFIGS.iterdir()}}
    given = {name: made({}, model_path=at, role=Role.PREFILL) for name, at in models.items()}
    for name, (raw, model, role) in SHAPES.items():
        given[name] = made(raw, model_path=CONFIGS / model, role=role)
    answers = sglang_arguments.ask(list(given.values()))["resolved"]
    return dict(zip(given, answers, strict=True))


@pytest.mark.sglang
@pytest.mark.promise("S5-371")
def test_sglang_takes_ranks_for_sequences_experts_and_layers(
    resolved: dict[str, dict[str, Any]],
) -> None:
    names = ("tp_size", "dp_size", "pp_size", "ep_size", "enable_dp_attention")
    shapes = ("experts", "groups", "layers")
    found = {shape: [resolved[shape][name] for name in names] for shape in shapes}
    assert found == {
        "experts": [16, 16, 1, 16, True],
        "groups": [8, 4, 1, 8, True],
        "layers": [4, 1, 2, 1, False],
    }
    assert resolved["groups"]["load_balance_method"] == "follow_bootstrap_room"
    assert resolved["experts"]["cuda_graph_config"]["decode"]["max_bs"] == 300 // 16
    assert resolved["layers"]["disable_overlap_schedule"]


@pytest.mark.sglang
@pytest.mark.promise("S5-420")
def test_sglang_keeps_decode_s_prefixes_where_it_is_told_to_alone(
    resolved: dict[str, dict[str, Any]], told: dict[str, Any]
) -> None:
    decode = dict(zip(Role, told["resolved"], strict=True))[Role.DECODE]
    assert decode["disable_radix_cache"] is True
    assert resolved["prefixes"]["disable_radix_cache"] is False


@pytest.mark.sglang
@pytest.mark.promise("S5-370")
def test_unequal_ranks_are_refused_for_models_that_keep_more_than_plain_kv(
    resolved: dict[str, dict[str, Any]],
) -> None:
    said_of_models = {name: each["unequal"] for name, each in resolved.items()}
    refused = {name: said for name, said in said_of_models.items() if said}
    assert refused.keys() == {"states", "gpt-oss-20b", "gpt-oss-120b"}
    assert "because some layers keep a state" in refused["states"]
    assert "because some layers see a window" in refused["gpt-oss-120b"]
    assert {"Llama-3.3-70B-Instruct", "DeepSeek-V3"} <= said_of_models.keys()


@pytest.mark.sglang
def test_sglang_takes_our_defaults_for_cuda_as_they_are(told: dict[str, Any]) -> None:
    by_role = dict(zip(Role, told["resolved"], strict=True))
    for role, resolved in by_role.items():
        assert isinstance(resolved, dict), resolved
        assert (resolved["page_size"], resolved["sampling_backend"]) == (64, "pytorch")
        assert resolved["device"] == "cuda"
        if role is not Role.PREFILL:
            graphs = resolved["cuda_graph_config"]["decode"]
            assert (graphs["backend"], graphs["max_bs"], graphs["bs"][-1]) == ("full", 300, 300)


ADAPTERS = [{"lora_name": "sql", "lora_path": "/a"}, {"lora_name": "tone", "lora_path": "/b"}]
RESOLVED = {"lora_id": "1", "pinned": False}
KEPT: dict[str, Any] = {
    "tp_size": 4,
    "pp_size": 2,
    "dp_size": 1,
    "enable_lora": True,
    "lora_paths": ADAPTERS,
    "disaggregation_mode": "decode",
}
RIGHT = KEPT | {"lora_paths": [each | RESOLVED for each in ADAPTERS], "page_size": 64}


def test_what_sglang_has_kept_it_may_have_written_otherwise() -> None:
    kept.check(KEPT, RIGHT)
    off = {"enable_lora": False}
    for value in (None, False):
        kept.check(off, {"enable_lora": value})


@pytest.mark.promise("S5-453")
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"pp_size": 1}, "pp_size from 2 to 1 .set by engine options pipeline_parallel"),
        ({"disaggregation_mode": "null"}, "from 'decode' to 'null' .set by the component"),
        ({"enable_lora": False}, "enable_lora from True to False .set by setting lora_adapters"),
        ({"lora_paths": [ADAPTERS[0]]}, "lora_paths from"),
        ({"lora_paths": [ADAPTERS[1], ADAPTERS[0]]}, "lora_paths from"),
        ({"lora_paths": None}, "lora_paths from .* to None"),
        ({"dp_size": 4, "tp_size": 8}, "tp_size from 4 to 8 .*; dp_size from 1 to 4"),
    ],
)
def test_what_sglang_changes_ends_the_start_by_name(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(StartError, match=words):
        kept.check(KEPT, RIGHT | changed)


def test_a_default_that_nobody_chose_sglang_may_change(model_path: Path) -> None:
    given = made({}, model_path=model_path)
    assert given["page_size"] == 64
    free = {"page_size", "dtype", "disable_overlap_schedule", "model_path"}
    assert not free & promised({}, given).keys()
    given = made(GIVEN, model_path=model_path)
    assert GIVEN.items() <= promised(GIVEN, given).items()


def test_a_rank_s_share_of_a_prompt_s_step_is_what_is_kept(model_path: Path) -> None:
    raw = {"tensor_parallel": 4, "data_parallel": 4, "chunked_prefill_size": 8192}
    assert promised(raw, made(raw, model_path=model_path))["chunked_prefill_size"] == 2048


@pytest.mark.sglang
@pytest.mark.promise("S5-453")
def test_sglang_keeps_what_it_is_given_of_every_shape(
    resolved: dict[str, dict[str, Any]], told: dict[str, Any], model_path: Path
) -> None:
    for name, (raw, model, role) in SHAPES.items():
        given = made(raw, model_path=CONFIGS / model, role=role)
        kept.check(promised(raw, given), resolved[name])
    for role, answer in zip(Role, told["resolved"], strict=True):
        kept.check(promised({}, made({}, model_path=model_path, role=role)), answer)
    given = made(GIVEN, model_path=model_path)
    kept.check(promised(GIVEN, given), sglang_arguments.ask([given])["resolved"][0])


CHANGING: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"dtype": "float16"}, {}, "gpt-oss-120b", "dtype from 'float16' to 'bfloat16'"),
    (
        {"attention_backend": "flashmla", "page_size": 32},
        {},
        "DeepSeek-V3",
        "page_size from 32 to 64",
    ),
    (
        {"attention_backend": "triton"},
        {"prefill_attention_backend": "fa3", "decode_attention_backend": "fa3"},
        "Llama-3.3-70B-Instruct",
        "attention_backend from 'triton' to 'fa3' .set by engine option attention_backend",
    ),
    (
        {"tensor_parallel": 2},
        {"dwdp_size": 2},
        "DeepSeek-V3",
        "dp_size from 1 to 2 .set by engine options data_parallel and decode_data_parallel",
    ),
]
"""Options, arguments beside them, model, and what is said of it."""


@pytest.mark.sglang
@pytest.mark.promise("S5-453")
@pytest.mark.parametrize(("raw", "beside", "model", "words"), CHANGING, ids=lambda each: str(each))
def test_what_sglang_really_changes_is_found(
    raw: dict[str, Any], beside: dict[str, Any], model: str, words: str
) -> None:
    given = made(raw, model_path=CONFIGS / model, role=Role.PREFILL) | beside
    answer = sglang_arguments.ask([given])["resolved"][0]
    with pytest.raises(StartError, match=words):
        kept.check(promised(raw, given), answer)
