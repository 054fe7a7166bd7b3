"""A program: what a model says once an adapter is added to its weights, by transformers alone.

python lora_oracle.py MODEL_PATH TOKENS < requests.json

Reads a JSON list of [adapter's folder or "", token ids], and writes the greedy token ids of each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def merged(model_path: Path, folder: str) -> Any:
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    if not folder:
        return model
    config = json.loads((Path(folder) / "adapter_config.json").read_text())
    tensors = load_file(Path(folder) / "adapter_model.safetensors")
    with torch.no_grad():
        for name, below in tensors.items():
            if ".lora_A." in name:
                above = tensors[name.replace(".lora_A.", ".lora_B.")]
                place = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
                model.get_parameter(place).add_(config["lora_alpha"] / config["r"] * above @ below)
    return model


def main() -> None:
    model_path, count = Path(sys.argv[1]), int(sys.argv[2])
    answers = []
    for folder, prompt in json.load(sys.stdin):
        model, tokens = merged(model_path, folder), list(prompt)
        with torch.no_grad():
            for _ in range(count):
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        answers.append(tokens[len(prompt) :])
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
