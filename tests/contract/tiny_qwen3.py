"""The tiny model as a Qwen3: the same weights, with a norm of queries and keys, which makes other
text of them. SGLang computes attention of this architecture apart from the rest of a layer; of a
Llama it cannot.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

_ONE = struct.pack("<H", 0x3F80)
"""In bfloat16."""


def make(llama: Path, folder: Path) -> Path:
    """Written into `folder`, which is there and is returned."""
    config = json.loads((llama / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((llama / name).read_bytes())
    head, layers = config["head_dim"], config["num_hidden_layers"]
    norms = [
        f"model.layers.{layer}.self_attn.{norm}.weight"
        for layer in range(layers)
        for norm in ("q_norm", "k_norm")
    ]
    weights = (llama / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(_with_ones(weights, norms, head))
    return folder


def _with_ones(safetensors: bytes, names: list[str], length: int) -> bytes:
    """The file with further tensors, each of `length` ones."""
    (size,) = struct.unpack("<Q", safetensors[:8])
    header: dict[str, Any] = json.loads(safetensors[8 : 8 + size])
    data = safetensors[8 + size :]
    for name in names:
        offsets = [len(data), len(data) + 2 * length]
        header[name] = {"dtype": "BF16", "shape": [length], "data_offsets": offsets}
        data += _ONE * length
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data
