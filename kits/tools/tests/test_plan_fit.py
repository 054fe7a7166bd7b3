"""`tandem plan-fit`: the memory of models whose sizes are known.

tests/model_configs/ and checkpoints/ hold what the public configurations say, in the keys that
describe a model's shape: https://huggingface.co/ and Qwen/Qwen3-8B,
meta-llama/Llama-3.3-70B-Instruct, Qwen/Qwen3-235B-A22B, deepseek-ai/DeepSeek-V3 and -V3.2,
openai/gpt-oss-120b, MiniMaxAI/MiniMax-M2.5, moonshotai/Kimi-K2.5, zai-org/GLM-5.1, and of nvidia
DeepSeek-V3.1-NVFP4, Qwen3-235B-A22B-NVFP4 and Llama-3.1-70B-Instruct-FP8. The parameters below are
those that the same pages and the models' reports give.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.cli import main
from tandem.engine import model_files
from tandem_tools.fit import quantisation, shape

CONFIGS = Path(__file__).resolve().parents[3] / "tests" / "model_configs"
CHECKPOINTS = Path(__file__).parent / "checkpoints"
QWEN, LLAMA, MOE = "Qwen3-8B", "Llama-3.3-70B-Instruct", "Qwen3-235B-A22B"
DEEPSEEK, GPT_OSS = "DeepSeek-V3", "gpt-oss-120b"
INDEXED, MINIMAX, KIMI, GLM = "DeepSeek-V3.2", "MiniMax-M2.5", "Kimi-K2.5", "GLM-5.1"
DEEPSEEK_FP4, MOE_FP4 = "DeepSeek-V3.1-NVFP4", "Qwen3-235B-A22B-NVFP4"
LLAMA_FP8 = "Llama-3.1-70B-Instruct-FP8"


def folder(name: str) -> Path:
    """The folder of a configuration."""
    return next(path for path in (CONFIGS / name, CHECKPOINTS / name) if path.exists())


def read(path: Path) -> shape.ModelShape:
    config = model_files.text_config(path)
    quantised = quantisation.declared(config, model_files.modelopt_config(path))
    return shape.read(config, quantised, shape.Serving())


Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def both(capsys: pytest.CaptureFixture[str]) -> Plan:
    """Says what is planned for a model by its name, with these flags."""

    def ask(name: str, *flags: str) -> dict[str, Any]:
        main(["plan-fit", str(folder(name)), "--json", *flags])
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    return ask


@pytest.fixture
def told(both: Plan) -> Plan:
    """As `both`, what is said of decode."""
    return lambda name, *flags: both(name, *flags)["decode"]


def changed(tmp_path: Path, name: str, **fields: Any) -> str:
    """The configuration of a model with other fields."""
    config = json.loads((folder(name) / "config.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, **fields}))
    return str(path)


@pytest.mark.promise("S5-302")
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        *((QWEN, 8.19), (LLAMA, 70.55), (MOE, 235.09), (DEEPSEEK, 671.03), (GPT_OSS, 116.83)),
        *((INDEXED, 671.9), (MINIMAX, 228.7), (GLM, 743.9), (KIMI, 1026.4)),
    ],
)
def test_parameters_are_those_that_the_model_is_known_for(name: str, billions: float) -> None:
    found = read(folder(name))
    assert found.parameters / 1e9 == pytest.approx(billions, rel=1e-3)


ABSORBED = 61 * 512 * 128 * (128 + 128) * 2
"""Bytes of what SGLang makes of DeepSeek-V3's `kv_b_proj` and keeps beside it."""


@pytest.mark.promise("S5-666")
@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        # Sums of the public index files, in which SGLang's own copies are not.
        (QWEN, 16.3815),
        (LLAMA, 141.107),
        (GPT_OSS, 65.249),
        # The files of these weigh so.
        (LLAMA_FP8, 72.7),
        (KIMI, 595.0),
        # Four bits and a scale of eight for each 16, in all but the attention of its layers.
        (MOE_FP4, 134.1),
    ],
)
def test_weights_are_within_two_percent_of_the_public_files(
    name: str, gigabytes: float, told: Plan
) -> None:
    found = told(name, "--gpu", "h200")["weight_bytes"] / 1e9
    absorbed = 61 * 512 * 64 * (128 + 128) * 2 / 1e9 if name == KIMI else 0
    assert found - absorbed == pytest.approx(gigabytes, rel=0.02)


@pytest.mark.promise("S5-666")
def test_modules_that_a_quantisation_leaves_out_are_counted_as_they_are(tmp_path: Path) -> None:
    """The files of DeepSeek-R1-NVFP4, whose `o_proj` is in half precision too, weigh 397 GB."""
    whole = read(folder(DEEPSEEK_FP4)).parts(shape.Division(1))[0].weights
    config = json.loads((folder(DEEPSEEK_FP4) / "config.json").read_text())
    beside = json.loads((folder(DEEPSEEK_FP4) / "hf_quant_config.json").read_text())
    beside["quantization"]["exclude_modules"] += ["model.layers.*.self_attn.o_proj"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    for path in (tmp_path, tmp_path / "config.json"):
        found = read(path).parts(shape.Division(1))[0].weights
        assert (found - ABSORBED) / 1e9 == pytest.approx(397, rel=0.005)
        assert found - whole == pytest.approx(61 * 128 * 128 * 7168 * (2 - 4.5 / 8))


@pytest.mark.promise("S5-666")
@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("model.layers.1.self_attn.q_proj", True),
        ("model.layers.1.self_attn", True),
        ("language_model.model.layers.1", True),
        ("model.layers.1*", True),
        ("*self_attn*", True),
        (r"re:model\.layers\.1\.self.*", True),
        ("re:.*self_attn", True),
        ("self_attn", True),
        ("model.layers.11", False),
        ("model.layers.1.mlp", False),
        ("model.layers.0*", False),
        (r"re:layers\.1\.mlp", False),
        ("attn", False),
    ],
)
def test_modules_are_left_out_by_path_by_star_and_by_expression(name: str, left_out: bool) -> None:
    found = quantisation.declared(excluding(name)).bytes_of("layers.1.self_attn.q_proj")
    assert (found == 2) is left_out


@pytest.mark.promise("S5-302", "S5-666")
@pytest.mark.parametrize(
    ("name", "flags", "of_token"),
    [
        (QWEN, (), 2 * 8 * 128 * 2 * 36),  # keys and values of 8 heads of 128, two bytes, 36 layers
        (QWEN, ("--tp", "4"), 2 * 2 * 128 * 2 * 36),  # two of the heads
        (QWEN, ("--kv-dtype", "fp8_e4m3"), 2 * 8 * 128 * 36),
        (LLAMA, ("--tp", "8"), 2 * 1 * 128 * 2 * 80),
        (LLAMA, ("--tp", "16"), 2 * 1 * 128 * 2 * 80),  # each head lies on two GPUs
        (MOE, ("--tp", "8"), 2 * 1 * 128 * 2 * 94),
        (GPT_OSS, ("--tp", "2"), 2 * 4 * 64 * 2 * 18),  # every other of 36 layers
        (DEEPSEEK, (), (512 + 64) * 2 * 61),  # one latent and its rotated part for all heads
        (DEEPSEEK, ("--tp", "16"), (512 + 64) * 2 * 61),  # which every GPU holds
        # ModelOpt's checkpoints say that the cache is in eight bits, unless SGLang is told.
        (DEEPSEEK_FP4, (), (512 + 64) * 61),
        (DEEPSEEK_FP4, ("--kv-dtype", "bfloat16"), (512 + 64) * 2 * 61),
        (LLAMA_FP8, (), 2 * 8 * 128 * 80),
        (KIMI, (), (512 + 64) * 2 * 61),
        # A key of 128 numbers in eight bits and its scale, beside the latent.
        (INDEXED, ("--gpu", "h200"), ((512 + 64) * 2 + 128 + 4) * 61),
        (INDEXED, ("--gpu", "h200", "--kv-dtype", "fp8_e4m3"), (512 + 16 + 128 + 128 + 4) * 61),
        (INDEXED, ("--gpu", "b200"), (512 + 64 + 128 + 4) * 61),
        (GLM, ("--gpu", "b300"), (512 + 64 + 128 + 4) * 78),
        (GLM, ("--gpu", "rtx-pro-6000"), (512 + 16 + 128 + 128 + 4) * 78),
        (INDEXED, ("--gpu", "150000", "--kv-dtype", "bfloat16"), ((512 + 64) * 2 + 132) * 61),
    ],
)
def test_kv_of_a_token_is_of_the_heads_that_a_gpu_holds_and_of_the_type_that_sglang_takes(
    name: str, flags: tuple[str, ...], of_token: int, told: Plan
) -> None:
    assert told(name, *flags)["token_bytes"] == of_token


SPREAD = (
    *("--gpu", "h200", "--tp", "8", "--dp", "8", "--moe-a2a-backend", "deepep"),
    *("--ep-num-redundant-experts", "32", "--moe-dense-tp-size", "1", "--enable-dp-lm-head"),
)


@pytest.mark.promise("S5-666")
def test_deepseek_takes_what_sglang_logged_of_it(told: Plan) -> None:
    """sgl-project/sglang#6017, on eight H200: "mem usage=105.59 GB", in GiB."""
    found = told(DEEPSEEK, *SPREAD)["weight_bytes"]
    assert found == pytest.approx(105.59 * 2**30, rel=0.005)


@pytest.mark.promise("S5-666")
def test_each_option_of_experts_and_groups_adds_what_it_copies(told: Plan) -> None:
    flags = ("--gpu", "h200", "--tp", "8", "--dp", "8", "--moe-a2a-backend", "deepep")
    least = told(DEEPSEEK, *flags)["weight_bytes"]
    expert, table = 3 * 7168 * 2048, 129_280 * 7168 * 2
    for more, added in (
        (("--ep-num-redundant-experts", "32"), 58 * 32 / 8 * expert),
        (("--moe-dense-tp-size", "1"), 3 * 3 * 7168 * 18_432 * 7 / 8),
        (("--enable-dp-lm-head",), table * 7 / 8),
    ):
        found = told(DEEPSEEK, *flags, *more)["weight_bytes"]
        assert found - least == pytest.approx(added, rel=1e-3), more


@pytest.mark.promise("S5-666")
@pytest.mark.parametrize(
    ("flags", "width", "hidden"),
    [
        (("--gpu", "h100", "--tp", "1"), 2880, 2880),
        (("--gpu", "h100", "--tp", "2"), 1472, 2880),  # 1,440 in whole steps of 64
        (("--gpu", "b200", "--tp", "2"), 1536, 2944),  # steps of 128
        (("--gpu", "b200", "--tp", "2", "--moe-a2a-backend", "deepep"), 1440, 2880),
    ],
)
def test_experts_in_four_bits_are_padded(
    flags: tuple[str, ...], width: int, hidden: int, told: Plan
) -> None:
    plain = (116.83 - 114.66) * 2e9 / int(flags[3])
    found = told(GPT_OSS, *flags)["weight_bytes"]
    experts = 36 * 128 * 3 * width * hidden * 4.25 / 8
    assert found == pytest.approx(experts + plain, rel=0.02)
    assert abs(found - experts - plain) < 0.4e9


@pytest.mark.promise("S5-666")
def test_decode_says_what_deepep_takes_at_once(both: Plan) -> None:
    few, many = (
        both(DEEPSEEK, *SPREAD, "--max-sequences", str(number))["notes"]
        for number in (128 * 8, 256 * 8)
    )
    assert few == []
    assert "a group has 256 sequences: set SGLANG_DEEPEP_NUM_MAX_DISPATCH" in many[0]
    assert both(KIMI)["notes"] == ["The model's part for pictures is not counted."]


@pytest.mark.promise("S5-666")
@pytest.mark.parametrize(
    ("name", "flags", "named"),
    [
        (GLM, ("--gpu", "200000"), "depends on the GPU: set --kv-dtype"),
        (GLM, ("--kv-dtype", "fp8_e5m2"), "in bfloat16 or fp8_e4m3, not fp8_e5m2"),
        (DEEPSEEK, ("--ep-num-redundant-experts", "8"), "need a --moe-a2a-backend"),
        (DEEPSEEK, (*SPREAD, "--ep-num-redundant-experts", "33"), "256 experts and 33 copies"),
        (DEEPSEEK, ("--tp", "8", "--enable-dp-lm-head"), "needs groups of GPUs (--dp)"),
    ],
)
def test_what_sglang_would_not_take_is_refused(
    name: str, flags: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan-fit", str(folder(name)), *flags]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("gpu", ["h100x", "4095", "4194305", "-5", "1e5", "９９９９９", "9" * 99])
def test_a_gpu_is_a_name_or_a_number_of_mib(
    gpu: str, told: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["plan-fit", str(folder(QWEN)), f"--gpu={gpu}"])
    assert "is none of l4, a30" in capsys.readouterr().err
    assert told(QWEN, "--gpu", "81559")["kv_bytes"] == told(QWEN)["kv_bytes"]


def excluding(name: str) -> dict[str, Any]:
    """A quantisation that leaves modules out."""
    return {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": [name]}}


LATENTS = 61 * (
    7168 * (1536 + 512 + 64)  # what makes them
    + 1536 * 128 * (128 + 64)  # queries
    + 512 * 128 * (128 + 128)  # keys without their rotated part, and values
    + 128 * 128 * 7168  # what leaves attention
)
"""Parameters of DeepSeek-V3's attention, nearly a byte each."""


@pytest.mark.promise("S5-432")
def test_groups_of_gpus_have_attention_and_a_cache_of_their_own(told: Plan) -> None:
    together = told(DEEPSEEK, "--tp", "16", "--gpu", "h200")
    apart = told(DEEPSEEK, "--tp", "16", "--dp", "16", "--gpu", "h200")
    made, embeddings = 61 * 7168 * (1536 + 512 + 64), 129_280 * 7168 * 2
    more = (LATENTS - made + embeddings + ABSORBED) * 15 / 16
    assert apart["weight_bytes"] - together["weight_bytes"] == pytest.approx(more, rel=1e-3)
    assert apart["token_bytes"] == (512 + 64) * 2 * 61
    of_rank = int(apart["kv_bytes"] / apart["token_bytes"]) // 64
    assert apart["pages"] == 16 * of_rank
    assert apart["kv_tokens"] == 16 * of_rank * 64
    assert apart["sequences"] == 16 * (of_rank * 64 // (8192 + 512))
    assert apart["handover_bytes"] == (512 + 64) * 2 * 61 * 8192  # from the one that holds it
    assert together["handover_bytes"] == 16 * apart["handover_bytes"]


@pytest.mark.promise("S5-432")
def test_gpus_of_a_group_share_its_heads(told: Plan) -> None:
    found = told(MOE, "--tp", "8", "--dp", "4", "--gpu", "h200")
    assert found["token_bytes"] == 2 * 2 * 128 * 2 * 94  # two of four heads
    assert found["handover_bytes"] == 2 * found["token_bytes"] * 8192


@pytest.mark.promise("S5-432")
@pytest.mark.parametrize(
    ("parts", "layers"), [(1, [61]), (2, [30, 31]), (4, [15, 15, 15, 16]), (5, [12] * 4 + [13])]
)
def test_parts_of_a_pipeline_have_the_layers_that_sglang_gives_them(
    parts: int, layers: list[int]
) -> None:
    found = read(folder(DEEPSEEK))
    made = found.parts(shape.Division(1, parts=parts))
    assert [part.kv / ((512 + 64) * 2) for part in made] == layers
    whole = found.parts(shape.Division(1))
    assert sum(part.weights for part in made) == pytest.approx(whole[0].weights)


@pytest.mark.promise("S5-432")
def test_the_fullest_part_of_a_pipeline_decides_what_all_hold(told: Plan) -> None:
    found = told(DEEPSEEK, "--tp", "8", "--pp", "2")
    whole = told(DEEPSEEK, "--tp", "8", "--gpu", "h200")
    # The first part has the three layers without experts, the second 31 with them.
    assert whole["weight_bytes"] / 2 < found["weight_bytes"] < whole["weight_bytes"] * 0.55
    assert found["token_bytes"] == (512 + 64) * 2 * 31
    assert found["kv_tokens"] == int(found["kv_bytes"] / found["token_bytes"]) // 64 * 64
    assert found["handover_bytes"] == whole["handover_bytes"]
    assert found["fewest_gpus"] == 16


def test_the_last_part_has_a_copy_of_embeddings_that_are_its_head_too(tmp_path: Path) -> None:
    config = Path(changed(tmp_path, QWEN, tie_word_embeddings=True))
    found = read(config)
    whole, *parts = (
        part.weights for number in (1, 2) for part in found.parts(shape.Division(1, parts=number))
    )
    assert sum(parts) - whole == 151_936 * 4096 * 2


def test_layers_with_a_window_hold_no_more_than_that(both: Plan) -> None:
    found = both(GPT_OSS, "--tp", "1", "--gpu", "h200", "--max-sequences", "96")
    prefill, decode = found["prefill"], found["decode"]
    assert (found["window"], decode["sliding_token_bytes"]) == (128, 2 * 8 * 64 * 2 * 18)
    assert decode["handover_bytes"] == 36_864 * 8192 + 36_864 * 128
    # SGLang gives those layers of prefill a pool of 0.8 times the others' tokens.
    assert prefill["kv_tokens"] == prefill["kv_bytes"] // (36_864 * 1.8) // 64 * 64
    # And of decode what 96 sequences need: a window, 128 tokens until it is emptied, two pages.
    left = decode["kv_bytes"] - 96 * 384 * 36_864
    assert decode["kv_tokens"] == left // 36_864 // 64 * 64


def test_few_sequences_have_room_for_windows_on_their_way(told: Plan) -> None:
    found = told(GPT_OSS, "--gpu", "h200", "--max-sequences", "32")
    left = found["kv_bytes"] - (32 * 384 + 64 * 192) * 36_864
    assert found["kv_tokens"] == left // 36_864 // 64 * 64


@pytest.mark.parametrize(
    ("name", "tp", "gigabytes"),
    [
        (LLAMA, 4, 70.55 * 2 / 4),
        # Embeddings and routers in two bytes, and what is made of `kv_b_proj`.
        (DEEPSEEK, 1, 671.03 - 1.85 + 1.85 * 2 + 0.27 + ABSORBED / 1e9),
        (
            GPT_OSS,
            1,
            114.66 * 4.25 / 8 + (116.83 - 114.66) * 2,
        ),  # its experts alone are in four bits
    ],
)
def test_weights_take_what_their_types_say(
    name: str, tp: int, gigabytes: float, told: Plan
) -> None:
    found = told(name, "--tp", str(tp))["weight_bytes"] / 1e9
    assert found == pytest.approx(gigabytes, rel=5e-3)


@pytest.mark.parametrize(
    ("quantised", "bytes_each"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, (4 + 20 / 128) / 8),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, (8 + 24 / 128) / 8),
        ({"quant_method": "fp8"}, 1.0),
    ],
)
def test_embeddings_stay_as_they_are_under_quantisation(
    quantised: dict[str, Any], bytes_each: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["plan-fit", changed(tmp_path, QWEN, quantization_config=quantised), "--json"])
    found = json.loads(capsys.readouterr().out)
    embeddings = 2 * 151_936 * 4096
    matrices = found["parameters"] - embeddings
    assert found["decode"]["weight_bytes"] == pytest.approx(
        2 * embeddings + bytes_each * matrices, rel=1e-3
    )


@pytest.mark.promise("S5-302")
def test_what_fits_is_counted_in_whole_pages_beside_what_decode_keeps_free(both: Plan) -> None:
    flags = ("--context", "1000", "--page-size", "64", "--prefill-memory-share", "0.5")
    found = both(QWEN, *flags, "--decode-memory-share", "0.6")
    prefill, decode = found["prefill"], found["decode"]
    assert prefill["gpu_bytes"] == 85_520_809_984
    # 2 percent are never free.
    assert prefill["kv_bytes"] == pytest.approx(41_905_196_892 - prefill["weight_bytes"], abs=2)
    assert decode["kv_bytes"] == pytest.approx(50_286_236_270 - decode["weight_bytes"], abs=2)
    for phase in (prefill, decode):
        assert phase["pages"] == int(phase["kv_bytes"] / 147_456) // 64
        assert phase["kv_tokens"] == phase["pages"] * 64
    assert prefill["sequences"] == prefill["kv_tokens"] // 1024
    assert decode["sequences"] == decode["kv_tokens"] // 1536  # 512 for each


@pytest.mark.promise("S5-302")
@pytest.mark.parametrize(
    ("gpu", "prefill", "decode"),
    [
        ("l4", 0.700, 0.811),
        ("a30", 0.719, 0.823),
        ("l40s", 0.850, 0.906),
        ("a100-40gb", 0.831, 0.894),
        ("a100", 0.841, 0.875),
        ("h100", 0.840, 0.874),
        ("h20", 0.867, 0.895),
        ("rtx-pro-6000", 0.867, 0.895),
        ("h200", 0.909, 0.929),
        ("b200", 0.862, 0.944),
        ("gb200", 0.866, 0.946),
        ("b300", 0.908, 0.963),
        ("gb300", 0.911, 0.964),
    ],
)
def test_the_share_of_each_gpu_is_what_sglang_resolves_for_it(
    gpu: str, prefill: float, decode: float, both: Plan
) -> None:
    """SGLang 0.5.21, told of each card's MiB, said so of Qwen3-8B on two of them."""
    found = both(QWEN, "--gpu", gpu, "--tp", "2", "--max-sequences", "256")
    assert [found[phase]["memory_share"] for phase in ("prefill", "decode")] == [prefill, decode]


@pytest.mark.promise("S5-302")
@pytest.mark.parametrize(
    ("name", "flags", "prefill", "decode"),
    [
        (QWEN, ("--max-sequences", "4096"), 0.841, 0.816),
        (QWEN, ("--max-sequences", "6000"), 0.841, 0.735),
        (LLAMA, ("--tp", "4", "--decode-tp", "8"), 0.837, 0.874),
        (MOE, ("--tp", "8", "--dp", "4", "--max-sequences", "2048"), 0.831, 0.818),
        (DEEPSEEK, ("--tp", "8", "--pp", "2"), 0.818, 0.874),
        (DEEPSEEK, ("--tp", "16", "--moe-a2a-backend", "deepep"), 0.818, 0.849),
        (
            DEEPSEEK,
            ("--tp", "16", "--dp", "16", "--moe-a2a-backend", "deepep", "--max-sequences", "2048"),
            0.818,
            0.827,
        ),
        (
            DEEPSEEK,
            ("--tp", "16", "--dp", "16", "--moe-a2a-backend", "deepep", "--max-sequences", "8192"),
            0.818,
            0.328,
        ),
    ],
)
def test_the_share_of_a_phase_is_what_sglang_resolves_for_its_workers(
    name: str, flags: tuple[str, ...], prefill: float, decode: float, both: Plan
) -> None:
    """What SGLang 0.5.21 said of these on H100."""
    found = both(name, *flags)
    assert [found[phase]["memory_share"] for phase in ("prefill", "decode")] == [prefill, decode]


@pytest.mark.promise("S5-302")
def test_decode_pins_a_sequence_of_the_whole_context_where_that_is_more_than_a_fifth(
    told: Plan,
) -> None:
    fifth = told(QWEN)
    assert fifth["pinned_bytes"] == pytest.approx(0.2 * fifth["kv_bytes"], rel=1e-3)
    # 131,072 tokens, three that SGLang adds, in whole pages: all layers and heads of each.
    assert told(LLAMA, "--tp", "4")["pinned_bytes"] == pytest.approx(131_136 * 327_680)
    wider = told(LLAMA, "--tp", "4", "--pp", "2")
    assert wider["pinned_bytes"] == pytest.approx(0.2 * 8 * wider["kv_bytes"], rel=1e-3)


@pytest.mark.promise("S5-302")
def test_decode_pins_no_more_than_its_cache_and_nothing_of_latents(told: Plan, both: Plan) -> None:
    whole = told(GPT_OSS)
    assert whole["kv_tokens"] < 131_072
    assert whole["pinned_bytes"] == pytest.approx(whole["kv_bytes"], rel=1e-3)
    assert told(DEEPSEEK, "--tp", "16")["pinned_bytes"] == 0
    assert both(LLAMA, "--tp", "4")["prefill"]["pinned_bytes"] == 0


@pytest.mark.promise("S5-432")
def test_decode_may_have_other_numbers_of_gpus_than_prefill(told: Plan, both: Plan) -> None:
    found = both(LLAMA, "--tp", "4", "--decode-tp", "8")
    assert found["prefill"]["token_bytes"] == 2 * 2 * 128 * 2 * 80
    assert found["decode"]["token_bytes"] == 2 * 1 * 128 * 2 * 80
    assert found["decode"] == told(LLAMA, "--tp", "8")
    assert found["decode"]["handover_bytes"] == found["prefill"]["handover_bytes"]
    apart = both(DEEPSEEK, "--tp", "16", "--decode-dp", "16")
    assert apart["decode"]["division"] == {"tensor": 16, "groups": 16, "parts": 1}
    assert apart["prefill"]["division"] == {"tensor": 16, "groups": 1, "parts": 1}


@pytest.mark.promise("S5-432")
def test_each_gpu_has_shared_experts_whole_where_experts_exchange_tokens(told: Plan) -> None:
    divided, whole = (
        told(DEEPSEEK, "--tp", "16", "--moe-a2a-backend", backend)["weight_bytes"]
        for backend in ("none", "deepep")
    )
    # One expert of 3 matrices in each of 58 layers, nearly a byte a weight.
    assert whole - divided == pytest.approx(58 * 3 * 7168 * 2048 * 15 / 16, rel=1e-3)


@pytest.mark.promise("S5-302")
def test_what_does_not_fit_says_how_many_gpus_it_takes(
    told: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan-fit", str(folder(DEEPSEEK)), "--tp", "8"]) == 1
    shown = capsys.readouterr().out
    assert "prefill holds no sequence of 8,192 tokens: it takes 16 of these GPUs (--tp)" in shown
    assert "decode holds no sequence" in shown
    assert main(["plan-fit", str(folder(DEEPSEEK)), "--tp", "16"]) == 0
    assert main(["plan-fit", str(folder(DEEPSEEK)), "--tp", "8", "--decode-tp", "16"]) == 1
    assert "!!  decode" not in capsys.readouterr().out
    assert main(["plan-fit", str(folder(DEEPSEEK)), "--gpu", "l40s", "--tp", "32"]) == 0
    capsys.readouterr()
    assert told(LLAMA, "--gpu", "l4")["fewest_gpus"] == 8
    scarce = ("--gpu", "l4", "--decode-memory-share", "0.01")
    assert main(["plan-fit", str(folder(LLAMA)), *scarce]) == 1
    assert "no number of these GPUs is enough" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "flags", "named"),
    [
        ({"model_type": "mamba2"}, (), "a model of type 'mamba2'"),
        ({"dtype": "float8"}, (), "dtype 'float8'"),
        ({"hidden_size": "wide"}, (), "hidden_size must be a number, not 'wide'"),
        ({"num_attention_heads": None}, (), "num_attention_heads must be a number, not None"),
        ({"num_attention_heads": 0}, (), "num_attention_heads must be from 1"),
        ({"num_hidden_layers": 10**12}, (), "num_hidden_layers must be from 1"),
        ({"layer_types": 5}, (), "describes no model"),
        (
            {"layer_types": ["sliding_attention"] * 36, "sliding_window": 128},
            (),
            "all layers look at a window",
        ),
        ({"quantization_config": "fp8"}, (), "describes no weights"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 0]}},
            (),
            "describes no weights",
        ),
        ({"quantization_config": {"quant_method": "hqq"}}, (), "'hqq' is none of awq"),
        ({"quantization_config": {"quant_algo": "W4A8"}}, (), "quant_algo 'W4A8' is none of FP8"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {}}},
            (),
            "several groups",
        ),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, (), "describes no"),
        (excluding("re:(a+)+b"), (), "can be matched in bounded time"),
        (excluding("re:a*b*c*d*e*"), (), "can be matched in bounded time"),
        (excluding("re:("), (), "excludes no modules"),
        ({}, ("--tp", "3"), "3 GPUs cannot share 32 attention heads, 8 for KV, equally"),
        ({}, ("--tp", "4", "--dp", "3"), "3 groups cannot share 4 GPUs equally"),
        ({}, ("--tp", "2", "--dp", "4"), "4 groups cannot share 2 GPUs equally"),
        ({"model_type": "llama"}, ("--tp", "4", "--dp", "2"), "SGLang does not divide this model"),
        ({}, ("--pp", "37"), "37 parts cannot share 36 layers"),
        ({}, ("--context", "50000"), "the model's context has 40,960 tokens"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(
    fields: dict[str, Any],
    flags: tuple[str, ...],
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan-fit", changed(tmp_path, QWEN, **fields), *flags]) == 2
    assert named in capsys.readouterr().err


def test_a_folder_without_a_configuration_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan-fit", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err


def test_the_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan-fit", str(folder(LLAMA)), "--tp", "4", "--decode-tp", "8"]) == 0
    shown = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = {row[1]: [cell for cell in map(str.strip, row[2:]) if cell] for row in shown}
    assert "70.55 billion parameters" in cells
    assert cells["GPUs"] == ["4 x h100 of 85.5 GB", "8 x h100 of 85.5 GB"]
    assert cells["KV a token"] == ["81,920 B a GPU", "40,960 B a GPU"]
    assert cells["a hand-over"] == ["2.7 GB for 8,192 tokens"]
    assert "attention" not in cells
    main(["plan-fit", str(folder(MOE)), "--tp", "8", "--dp", "4", "--decode-dp", "8", "--pp", "2"])
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["attention", "in", "4", "groups", "in", "8", "groups"] in shown
    assert ["layers", "in", "2", "parts", "in", "2", "parts"] in shown
