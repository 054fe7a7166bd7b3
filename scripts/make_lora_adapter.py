"""Make a LoRA adapter of random numbers for a model's folder, in PEFT's layout: something to try
and to test with, which has learned nothing.

    python scripts/make_lora_adapter.py model/tandem-tiny /tmp/adapters/first --seed 1
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_STRENGTH = 0.08
"""The standard deviation of B: enough for other words."""


def make(model_path: Path, folder: Path, *, seed: int, rank: int = 4, **config: Any) -> Path:
    """Writes the adapter to `folder`, which is returned. `config`: further keys of its
    configuration, or other values.
    """
    sizes = _sizes(json.loads((model_path / "config.json").read_text()))
    draw = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for name, (outputs, inputs) in sizes.items():
        key = f"base_model.model.model.{name}.lora"
        tensors[f"{key}_A.weight"] = draw.normal(0, inputs**-0.5, (rank, inputs))
        tensors[f"{key}_B.weight"] = draw.normal(0, _STRENGTH, (outputs, rank))
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "base_model_name_or_path": model_path.resolve().name,
        "bias": "none",
        "lora_alpha": 2 * rank,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in sizes}),
        "task_type": "CAUSAL_LM",
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(content, indent=2))
    (folder / "adapter_model.safetensors").write_bytes(_safetensors(tensors))
    return folder


def _sizes(config: Mapping[str, Any]) -> Mapping[str, tuple[int, int]]:
    """Outputs and inputs of each matrix of a Llama that is changed."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    kv, inner = config.get("num_key_value_heads", heads) * head, config["intermediate_size"]
    of_layer = {
        "self_attn.q_proj": (heads * head, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, heads * head),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    layers = range(config["num_hidden_layers"])
    return {f"layers.{layer}.{name}": size for layer in layers for name, size in of_layer.items()}


def _safetensors(tensors: Mapping[str, Any]) -> bytes:
    """A table of the tensors, and behind it their numbers."""
    table, parts, end = {}, [], 0
    for name, values in tensors.items():
        part = values.astype("<f4").tobytes()
        table[name] = {
            "dtype": "F32",
            "shape": values.shape,
            "data_offsets": [end, end + len(part)],
        }
        parts.append(part)
        end += len(part)
    head = json.dumps(table).encode()
    return len(head).to_bytes(8, "little") + head + b"".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="folder of a Llama")
    parser.add_argument("folder", type=Path, help="folder for the adapter")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rank", type=int, default=4)
    given = parser.parse_args()
    print(make(given.model, given.folder, seed=given.seed, rank=given.rank))


if __name__ == "__main__":
    main()
