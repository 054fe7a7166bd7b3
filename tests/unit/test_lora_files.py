"""LoRA adapters' files: what can be used, and what is refused at the start, with its name."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from make_lora_adapter import make

from tandem.engine import lora
from tandem.errors import ConfigError
from tandem.worker.config import WorkerConfig

Change = Callable[[Path], Any]


def load(folder: Path, model_path: Path, max_rank: int = 8) -> tuple[lora.LoraAdapter, ...]:
    return lora.load({"sql": str(folder)}, model_path, max_rank=max_rank)


def configured(**keys: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / lora.CONFIG
        path.write_text(json.dumps(json.loads(path.read_text()) | keys))

    return change


def written(name: str, content: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content)


def without(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def table(head: bytes) -> bytes:
    return len(head).to_bytes(8, "little") + head


def shaped(name: str, *shape: int) -> Change:
    """Weights that are one tensor."""
    tensor = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}
    return written(lora.WEIGHTS, table(json.dumps(tensor).encode()))


def with_tensor(*names: str) -> Change:
    """Further tensors, of one number."""

    def change(folder: Path) -> None:
        path = folder / lora.WEIGHTS
        content = path.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        size = len(content) - end
        more = {"dtype": "F32", "shape": [1], "data_offsets": [size, size + 4]}
        head = json.loads(content[8:end]) | dict.fromkeys(names, more)
        path.write_bytes(table(json.dumps(head).encode()) + content[end:] + bytes(4))

    return change


LAYER = "base_model.model.model.layers.0.self_attn"
Q = "base_model.model.model.layers.{}.self_attn.q_proj.lora_A.weight"


def test_an_adapter_s_files_say_its_rank_and_are_told_from_others(
    model_path: Path, tmp_path: Path
) -> None:
    first, second = (make(model_path, tmp_path / f"{seed}", seed=seed) for seed in (1, 2))
    (one,) = load(first, model_path)
    assert (one.name, one.path, one.rank) == ("sql", first, 4)
    copy = shutil.copytree(first, tmp_path / "copy")
    assert load(copy, model_path)[0].revision == one.revision
    assert load(second, model_path)[0].revision != one.revision


@pytest.mark.promise("S5-412")
def test_sets_are_equal_by_names_and_files_and_not_by_order(
    model_path: Path, tmp_path: Path
) -> None:
    first, second = (str(make(model_path, tmp_path / f"{n}", seed=n)) for n in (1, 2))

    def digest(**folders: str) -> str:
        return lora.digest(lora.load(folders, model_path, max_rank=8))

    assert digest() == ""
    assert digest(a=first, b=second) == digest(b=second, a=first)
    sets = [digest(a=first), digest(b=first), digest(a=second), digest(a=first, b=second)]
    assert len({*sets, digest(a=second, b=first), ""}) == 6


@pytest.mark.promise("S5-415")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without(lora.CONFIG), "cannot read adapter_config.json"),
        (without(lora.WEIGHTS), "cannot read adapter_model.safetensors"),
        (written(lora.CONFIG, b"{"), "no JSON"),
        (written(lora.CONFIG, b"[]"), "peft_type must be LORA"),
        (configured(peft_type="IA3"), "peft_type must be LORA"),
        (configured(r=0), "no rank"),
        (configured(r="4"), "no rank"),
        (configured(r=9), "above max_lora_rank"),
        (configured(use_dora=True), "use_dora"),
        (configured(use_rslora=True), "use_rslora"),
        (configured(rank_pattern={"q_proj": 2}), "rank_pattern"),
        (configured(modules_to_save=["lm_head"]), "modules_to_save"),
        (configured(bias="all"), "bias"),
        (configured(lora_bias=True), "lora_bias"),
        (configured(layer_replication=[[0, 2], [1, 3]]), "layer_replication"),
        (configured(trainable_token_indices=[1]), "trainable_token_indices"),
        (configured(alora_invocation_tokens=[1]), "alora_invocation_tokens"),
        (configured(use_qalora=True), "use_qalora"),
        (configured(use_bdlora={"nblocks": 2}), "use_bdlora"),
        (configured(arrow_config={"top_k": 2}), "arrow_config"),
        (configured(target_parameters=["experts.gate_up_proj"]), "target_parameters"),
        *(
            (configured(init_lora_weights=began), "init_lora_weights is .*not the model's")
            for began in ("pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga")
        ),
        (with_tensor(f"{LAYER}.q_proj.lora_B.bias"), "q_proj.lora_B.bias, which engines do not"),
        (with_tensor(f"{LAYER}.q_proj.lora_magnitude_vector"), "lora_magnitude_vector, which"),
        (with_tensor("base_model.model.lm_head.base_layer.weight"), "base_layer.weight, which"),
        (with_tensor("base_model.model.visual.merger.lora_A.weight"), "visual.merger.lora_A.weigh"),
        (with_tensor(f"{LAYER}.q_proj.lora_embedding_A"), "lora_embedding_A, which"),
        (with_tensor(f"{LAYER}.q_norm.lora_A.weight"), "of .*q_norm lora_A alone"),
        (with_tensor("base_model.model.lm_head.lora_B.weight"), "of .*lm_head lora_B alone"),
        (
            with_tensor(
                "base_model.model.vision.layers.0.fc1.lora_A.weight",
                "base_model.model.vision.layers.0.fc1.lora_B.weight",
            ),
            "several parts of a model: base_model.model.model, base_model.model.vision",
        ),
        (configured(r=3), "has the shape"),
        (written(lora.WEIGHTS, b""), "no safetensors file"),
        (written(lora.WEIGHTS, b"\xff" * 64), "no safetensors file"),
        (written(lora.WEIGHTS, table(b"{")), "no safetensors file"),
        (written(lora.WEIGHTS, table(b'{"a": 1}')), "no safetensors file"),
        (written(lora.WEIGHTS, table(b"{}")), "no matrices of LoRA"),
        (shaped(Q.format(0), 4, 128), "has the shape"),
        (shaped(Q.format(4), 4, 256), "of no layer"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_adapter_s_name(
    model_path: Path, tmp_path: Path, change: Change, words: str
) -> None:
    folder = make(model_path, tmp_path / "adapter", seed=1)
    change(folder)
    with pytest.raises(ConfigError, match=words) as refused:
        load(folder, model_path)
    assert "sql" in str(refused.value)


@pytest.mark.parametrize(
    "keys",
    [
        {"modules_to_save": None},
        {"rank_pattern": {}},
        {"use_dora": False},
        {"layer_replication": None, "target_parameters": None, "lora_bias": False},
        *({"init_lora_weights": began} for began in (True, False, "gaussian", "eva", "orthogonal")),
    ],
)
def test_what_says_nothing_is_passed_over(
    model_path: Path, tmp_path: Path, keys: dict[str, Any]
) -> None:
    assert load(make(model_path, tmp_path / "adapter", seed=1, **keys), model_path)


def test_matrices_of_the_first_and_the_last_layer_are_taken(
    model_path: Path, tmp_path: Path
) -> None:
    folder = make(model_path, tmp_path / "adapter", seed=1)
    first, last = "base_model.model.model.embed_tokens", "base_model.model.lm_head"
    names = [f"{first}.lora_embedding_A", f"{first}.lora_embedding_B"]
    names += [f"{last}.lora_A.weight", f"{last}.lora_B.weight"]
    with_tensor(*names)(folder)
    assert load(folder, model_path)


@pytest.mark.parametrize(
    ("base", "count"), [("hub/Tandem-Tiny", 0), ("", 0), ("hub/another", 1)], ids=str
)
def test_another_base_model_s_name_is_worth_a_warning(
    model_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, base: str, count: int
) -> None:
    folder = make(model_path, tmp_path / "adapter", seed=1, base_model_name_or_path=base)
    with caplog.at_level(logging.WARNING):
        load(folder, model_path)
    assert len(caplog.records) == count


@pytest.mark.parametrize("name", ["", "a:b", "a/b", ".a", "a" * 65, "a b", "a\0"])
def test_a_name_that_no_request_could_give_is_refused(model_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="lora_adapters"):
        WorkerConfig(model_path=model_path, lora_adapters={name: "/a"})


def test_there_may_be_only_so_many(model_path: Path) -> None:
    two = {"a": "/a", "b": "/b"}
    assert WorkerConfig(model_path=model_path, lora_adapters=two, max_lora_adapters=2)
    for most in (1, 0, lora.MOST_ADAPTERS + 1):
        with pytest.raises(ConfigError, match="max_lora_adapters"):
            WorkerConfig(model_path=model_path, lora_adapters=two, max_lora_adapters=most)
