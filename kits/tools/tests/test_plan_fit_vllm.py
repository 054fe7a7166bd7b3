"""`tandem plan-fit --engine vllm`: what vLLM leaves for KV, reckoned by hand and held to logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tandem.cli import main

CONFIGS = Path(__file__).resolve().parents[3] / "tests" / "model_configs"
CHECKPOINTS = Path(__file__).parent / "checkpoints"
QWEN, GPT_OSS, GPT_OSS_20B, DEEPSEEK = "Qwen3-8B", "gpt-oss-120b", "gpt-oss-20b", "DeepSeek-V3"
H100 = 81_559 * 2**20
GIB = 2**30


def folder(name: str) -> str:
    return str(next(path for path in (CONFIGS / name, CHECKPOINTS / name) if path.exists()))


def told(capsys: pytest.CaptureFixture[str], name: str, *flags: str) -> dict[str, Any]:
    """What is said of both phases."""
    main(["plan-fit", folder(name), "--engine", "vllm", "--json", *flags])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.promise("S5-861")
@pytest.mark.parametrize(
    ("flags", "share", "tokens", "page"),
    [
        ((), 0.92, 2048, 16),
        (("--max-batched-tokens", "8192"), 0.92, 8192, 16),
        (("--prefill-memory-share", "0.8", "--decode-memory-share", "0.8"), 0.8, 2048, 16),
        (("--page-size", "32"), 0.92, 2048, 32),
    ],
)
def test_kv_is_what_the_share_leaves_beside_weights_and_the_first_run(
    flags: tuple[str, ...], share: float, tokens: int, page: int, capsys: pytest.CaptureFixture[str]
) -> None:
    matrices = 2 * 151_936 * 4096 + 36 * (
        2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12_288  # attention, and what follows it
    )
    first_run = 128 * 151_936 * 28 + tokens * 3 * (4096 + 12_288) * 2 + 2 * GIB
    left = H100 * 0.987 * share - 2 * matrices - first_run
    pages = int(left / (147_456 * page)) - 1  # one is nobody's
    found = told(capsys, QWEN, "--max-sequences", "128", *flags)
    for phase in ("prefill", "decode"):
        said = found[phase]
        assert said["weight_bytes"] == 2 * matrices
        assert said["kv_bytes"] == pytest.approx(left, abs=2)
        assert (said["pages"], said["kv_tokens"]) == (pages, pages * page)
        assert said["sequences"] == pages // (8192 // page)
        assert said["handover_bytes"] == 147_456 * 8192
        assert (said["pinned_bytes"], said["memory_share"]) == (0, share)
    assert found["notes"] == [
        f"Options of the engine: page_size {page}, max_batched_tokens {tokens}. vLLM measures at"
        " its start what is left for KV."
    ]


@pytest.mark.promise("S5-861")
def test_weights_in_four_bits_are_what_vllm_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """vllm-project/vllm#23278, on an H100: "Model loading took 65.9651 GiB", with biases."""
    found = told(capsys, GPT_OSS)["decode"]["weight_bytes"]
    assert found == pytest.approx(65.9651 * GIB, rel=0.003)
    main(["plan-fit", folder(GPT_OSS), "--json"])
    of_sglang = json.loads(capsys.readouterr().out)["decode"]["weight_bytes"]
    experts = 36 * 128 * 3 * 2880 * 2880 * 4.25 / 8
    assert found - of_sglang == pytest.approx(experts * (3072 * 2944 / 2880**2 - 1), rel=1e-6)


@pytest.mark.promise("S5-861")
@pytest.mark.parametrize(
    ("share", "tokens", "logged"),
    [
        # "Available KV cache memory", with the 1,024 sequences that vLLM's own server takes:
        ("0.95", "1024", 1.71),  # vllm-project/vllm#27508
        ("0.9", "8192", -2.14),  # vllm-project/vllm#23278
    ],
)
def test_no_more_is_promised_than_vllm_logged(
    share: str, tokens: str, logged: float, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--decode-memory-share", share, "--max-batched-tokens", tokens)
    found = told(capsys, GPT_OSS, "--max-sequences", "1024", *flags)["decode"]["kv_bytes"] / GIB
    assert logged - 1.5 < found < logged


@pytest.mark.promise("S5-861")
def test_layers_with_a_window_take_pages_of_the_same_pool(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = told(capsys, GPT_OSS_20B, "--max-sequences", "128")
    prefill, decode = found["prefill"], found["decode"]
    assert prefill["token_bytes"] == prefill["sliding_token_bytes"] == 2 * 8 * 64 * 2 * 12
    whole = 8192 // 16
    # The window, one page more where it begins inside one; prefill also what a step adds.
    assert decode["sequences"] == decode["pages"] // (whole + 128 // 16 + 1)
    assert prefill["sequences"] == prefill["pages"] // (whole + (128 + 2048) // 16 + 1)
    assert decode["handover_bytes"] == 24_576 * (8192 + 128)


@pytest.mark.promise("S5-861")
def test_a_model_that_is_too_large_for_one_gpu_is_told_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan-fit", folder(GPT_OSS), "--engine", "vllm", "--gpu", "a100-40gb"]) == 1
    shown = capsys.readouterr().out
    assert "decode holds no sequence of 8,192 tokens: a larger GPU is needed" in shown
    found = told(capsys, GPT_OSS, "--gpu", "a100-40gb")["decode"]
    assert (found["fits"], found["fewest_gpus"]) == (False, 0)
    assert told(capsys, QWEN)["decode"]["fewest_gpus"] == 1


@pytest.mark.promise("S5-861")
@pytest.mark.parametrize(
    ("name", "flags", "named"),
    [
        *(
            (QWEN, (flag, "2"), "only vLLM on one GPU is reckoned: leave --tp, --dp and --pp at 1")
            for flag in ("--tp", "--dp", "--pp", "--decode-tp", "--decode-dp", "--decode-pp")
        ),
        (
            QWEN,
            ("--kv-dtype", "fp8_e4m3"),
            "own type is reckoned for vLLM: leave --kv-dtype",
        ),
        (QWEN, ("--moe-a2a-backend", "deepep"), "--moe-a2a-backend: SGLang has such an option"),
        (QWEN, ("--moe-dense-tp-size", "1"), "--moe-dense-tp-size: SGLang has such an option"),
        (QWEN, ("--enable-dp-lm-head",), "--enable-dp-lm-head: SGLang has such an option"),
        (QWEN, ("--ep-num-redundant-experts", "2"), "--ep-num-redundant-experts: SGLang has"),
        (QWEN, ("--context", "50000"), "the model's context has 40,960 tokens"),
        (DEEPSEEK, (), "what vLLM makes of latents (MLA) is not known"),
    ],
)
def test_what_no_worker_of_vllm_takes_is_refused_by_name(
    name: str, flags: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan-fit", folder(name), "--engine", "vllm", *flags]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.promise("S5-861")
def test_unequal_numbers_of_layers_with_a_window_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((CONFIGS / GPT_OSS / "config.json").read_text())
    config["layer_types"][0] = "full_attention"
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["plan-fit", str(tmp_path), "--engine", "vllm"]) == 2
    assert "17 of 36 layers look at a window" in capsys.readouterr().err


def test_an_option_of_vllm_is_refused_for_sglang(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan-fit", folder(QWEN), "--max-batched-tokens", "1024"]) == 2
    assert "--max-batched-tokens is vLLM's: give --engine vllm too" in capsys.readouterr().err


def test_the_table_says_of_what_the_share_is_and_pins_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan-fit", folder(QWEN), "--engine", "vllm"]) == 0
    shown = capsys.readouterr().out
    assert "0.920 of the GPU's memory" in shown
    assert "pins" not in shown
