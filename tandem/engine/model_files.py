"""What a model's folder (Hugging Face layout) says of it, read with the standard library alone.

Every function raises ConfigError, naming the file and what to do, where the folder or one of its
files is missing or malformed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tandem.errors import ConfigError

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
_STATE_KEYS = ("mamba_", "linear_", "ssm_", "conv_l_cache", "hybrid_override_pattern")
"""How keys begin that only models have of which some layers keep a state."""
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf")
_EDGE_BYTES = 1 << 20


def tokenizer_sha256(model_path: Path) -> str:
    """Hex SHA-256 of `tokenizer.json`: equal where token ids mean the same."""
    return hashlib.sha256(_read(model_path / "tokenizer.json")).hexdigest()


def revision(model_path: Path, config: str = "config.json") -> str:
    """Names the weights: hex SHA-256 of `config` and each weight file's name, size and edges.

    The first and last MiB of each file are read, never all of it: a safetensors file begins with
    the index of its tensors, and two trainings of one model differ in their first layers. A copy of
    the folder has the same revision.
    """
    digest = hashlib.sha256(_read(model_path / config))
    for path in sorted(p for p in model_path.iterdir() if p.suffix in _WEIGHT_SUFFIXES):
        digest.update(f"{path.name}:{path.stat().st_size}".encode())
        digest.update(_edges(path))
    return digest.hexdigest()


def eos_token_ids(model_path: Path) -> frozenset[int]:
    """The tokens that end a sequence, by `config.json` and `generation_config.json` together."""
    found = _token_ids(_config(model_path).get("eos_token_id"))
    found |= _token_ids(text_config(model_path).get("eos_token_id"))
    generation = model_path / "generation_config.json"
    if generation.exists():
        found |= _token_ids(_json(generation).get("eos_token_id"))
    return frozenset(found)


def context_length(model_path: Path) -> int:
    """Tokens that prompt and completion may have together."""
    config = text_config(model_path)
    for key in _CONTEXT_KEYS:
        if isinstance(value := config.get(key), int):
            return value
    raise ConfigError(
        f"{model_path / 'config.json'} has no context length: "
        f"set one of {', '.join(_CONTEXT_KEYS)} in it"
    )


def vocabulary(model_path: Path) -> int:
    """Rows of the logits: token ids are below it."""
    value = text_config(model_path).get("vocab_size")
    if isinstance(value, int):
        return value
    raise ConfigError(f"{model_path / 'config.json'} has no vocab_size: set it there")


def architectures(model_path: Path) -> list[str]:
    """Names of the model's classes, such as "LlamaForCausalLM"."""
    found = _config(model_path).get("architectures")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def dtype(model_path: Path) -> str:
    """The weights' data type, such as "bfloat16"; empty where the folder does not say."""
    config = text_config(model_path)
    value = config.get("dtype") or config.get("torch_dtype") or ""
    return str(value).removeprefix("torch.")


def keeps_states(model_path: Path) -> bool:
    """Whether some layers keep a state instead of a KV cache: state-space models, linear attention
    and short convolutions.
    """
    return any(key.lower().startswith(_STATE_KEYS) for key in text_config(model_path))


def text_config(model_path: Path) -> dict[str, Any]:
    """The language model's part of `config.json`: a multimodal model nests it. `model_path` may
    name the file itself.
    """
    config = _json(model_path) if model_path.is_file() else _config(model_path)
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config


def modelopt_config(model_path: Path) -> dict[str, Any] | None:
    """`hf_quant_config.json`, in which NVIDIA ModelOpt says how it quantised the weights; None: the
    model has none. `model_path` may name `config.json` itself.
    """
    path = (model_path.parent if model_path.is_file() else model_path) / "hf_quant_config.json"
    return _json(path) if path.exists() else None


def processor_facts(model_path: Path) -> dict[str, Any]:
    """What logits processors are told: arguments of tandem.logits.model.Model, as JSON values."""
    return {
        "vocabulary": vocabulary(model_path),
        "eos_token_ids": sorted(eos_token_ids(model_path)),
        "tokenizer_path": str(model_path / "tokenizer.json"),
    }


def _config(model_path: Path) -> dict[str, Any]:
    return _json(model_path / "config.json")


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read(path))
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON ({error}): download the model again") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object: download the model again")
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path} ({error.strerror}): "
            "model_path must be the folder of a model in Hugging Face layout"
        ) from error


def _edges(path: Path) -> bytes:
    with path.open("rb") as file:
        first = file.read(_EDGE_BYTES)
        file.seek(max(len(first), path.stat().st_size - _EDGE_BYTES))
        return first + file.read(_EDGE_BYTES)


def _token_ids(value: object) -> set[int]:
    if isinstance(value, int):
        return {value}
    return {item for item in value if isinstance(item, int)} if isinstance(value, list) else set()
