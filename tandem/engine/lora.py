"""LoRA adapters: small changes to a model's weights, in folders as PEFT writes them.

What an engine would ignore without a word is refused at the start, and so are weights that do not
fit the model: SGLang would notice these at the first request alone, and end with all that it runs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tandem.engine import model_files
from tandem.errors import ConfigError

log = logging.getLogger(__name__)

MOST_ADAPTERS = 256
"""Routers and frontends are told all their names."""
MAX_NAME = 64
"""Characters of a name."""
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}")
_LAYER = re.compile(r"\.layers\.([0-9]+)\.")
_READ_HIDDEN = re.compile(r"\.(?:[qkv]_proj|qkv_proj|gate_proj|up_proj|gate_up_proj)\.lora_A\.")
"""Matrices whose rows are as long as the model's hidden state."""
_OF_LAYER = re.compile(r"(?P<module>(?P<part>.*)\.layers\.[0-9]+\..+)\.lora_(?P<half>[AB])\.weight")
_OF_TOKENS = re.compile(
    r"(?P<module>.*\.(?:embed_tokens|lm_head|unembed_tokens))"
    r"\.lora_(?:embedding_)?(?P<half>[AB])(?:\.weight)?"
)
"""Tensors that engines apply: half of what is added to a matrix."""
_IGNORED: Mapping[str, Any] = {
    "alora_invocation_tokens": [],
    "alpha_pattern": {},
    "arrow_config": {},
    "bias": "none",
    "fan_in_fan_out": False,
    "layer_replication": [],
    "lora_bias": False,
    "modules_to_save": [],
    "rank_pattern": {},
    "target_parameters": [],
    "trainable_token_indices": [],
    "use_bdlora": {},
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
}
"""Keys of a configuration that engines pass over, and what says that nothing is lost by that."""
_BASE_AS_IT_WAS = (True, "eva", "gaussian", "orthogonal")
"""What `init_lora_weights` says of training that began with the model's own weights. By PiSSA,
OLoRA, CorDA, LoftQ and others it began with other ones, to which alone the adapter can be added."""
_HEADER_BYTES = 64 * 2**20


class LoraAdapter(NamedTuple):
    name: str
    path: Path
    rank: int
    revision: str
    """What names its files: see model_files.revision."""
    modules: frozenset[str] = frozenset()
    """What it changes in a model's layers and around them, e.g. "q_proj" and "lm_head"."""


def check_names(names: Iterable[str]) -> None:
    """Raises ConfigError for what no request could name."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"lora_adapters: {name!r:.100} is no name of 1 to {MAX_NAME} letters, digits, '.',"
                " '_' and '-', the first a letter or digit"
            )


def load(folders: Mapping[str, str], model_path: Path, *, max_rank: int) -> tuple[LoraAdapter, ...]:
    """What adapters' files say, by name in order. Raises ConfigError where one cannot be used with
    the model.
    """
    return tuple(
        _load(name, Path(folder), model_path, max_rank) for name, folder in sorted(folders.items())
    )


def digest(adapters: Sequence[LoraAdapter]) -> str:
    """Names a set of adapters; empty: there are none."""
    if not adapters:
        return ""
    said = "".join(f"{each.name}:{each.revision}\n" for each in adapters)
    return hashlib.sha256(said.encode()).hexdigest()


def _load(name: str, folder: Path, model_path: Path, max_rank: int) -> LoraAdapter:
    try:
        config = _config(folder)
        rank = config.get("r")
        if not isinstance(rank, int) or rank < 1:
            raise ConfigError(f"{CONFIG} has no rank `r`")
        if rank > max_rank:
            raise ConfigError(f"its rank is {rank}, above max_lora_rank, which is {max_rank}")
        shapes = _shapes(folder / WEIGHTS)
        _check_shapes(shapes, rank, model_files.text_config(model_path))
        modules = _check_names(shapes)
        revision = model_files.revision(folder, CONFIG)
    except ConfigError as error:
        raise ConfigError(f"lora_adapters: {name} ({folder}): {error}") from error
    _compare_base(name, str(config.get("base_model_name_or_path") or ""), model_path)
    return LoraAdapter(name, folder, rank, revision, modules)


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except OSError as error:
        raise ConfigError(
            f"cannot read {CONFIG} ({error.strerror}): an adapter is a folder in PEFT's layout"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{CONFIG} is no JSON ({error})") from error
    if not isinstance(config, dict) or str(config.get("peft_type")).upper() != "LORA":
        raise ConfigError(f"{CONFIG} is of no LoRA adapter: peft_type must be LORA")
    for key, neutral in _IGNORED.items():
        if (given := config.get(key)) and given != neutral:
            raise ConfigError(f"{CONFIG}: {key} is {given!r:.100}, which engines do not apply")
    if (began := config.get("init_lora_weights")) and began not in _BASE_AS_IT_WAS:
        raise ConfigError(
            f"{CONFIG}: init_lora_weights is {began!r:.100}, so the adapter was trained on "
            "weights that are not the model's: PEFT can save some as plain LoRA"
        )
    return config


def _shapes(path: Path) -> Mapping[str, Sequence[int]]:
    """The tensors of a safetensors file, which begins with a table of them."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > min(_HEADER_BYTES, path.stat().st_size):
                raise ConfigError(f"{WEIGHTS} is no safetensors file")
            header = json.loads(file.read(size))
    except OSError as error:
        raise ConfigError(
            f"cannot read {WEIGHTS} ({error.strerror}); weights in other files are not taken"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{WEIGHTS} is no safetensors file") from error
    try:
        return {name: tuple(map(int, header[name]["shape"])) for name in header if name[:2] != "__"}
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{WEIGHTS} is no safetensors file") from error


def _check_shapes(shapes: Mapping[str, Sequence[int]], rank: int, model: Mapping[str, Any]) -> None:
    """What is known of every decoder: how many layers it has, and what they read."""
    layers, hidden = model.get("num_hidden_layers"), model.get("hidden_size")
    if not any(".lora_A." in name for name in shapes):
        raise ConfigError(f"{WEIGHTS} holds no matrices of LoRA (`lora_A`)")
    for name, shape in shapes.items():
        layer = _LAYER.search(name)
        if layer and isinstance(layers, int) and int(layer[1]) >= layers:
            raise ConfigError(f"{name} is of no layer of the model, which has {layers}")
        if not _READ_HIDDEN.search(name) or len(shape) != 2:
            continue
        if tuple(shape) != (rank, hidden if isinstance(hidden, int) else shape[1]):
            raise ConfigError(
                f"{name} has the shape {tuple(shape)}: the model and `r` need ({rank}, {hidden})"
            )


def _check_names(names: Iterable[str]) -> frozenset[str]:
    """What the tensors change. Engines would leave other tensors out, or take them for these."""
    halves: dict[str, str] = {}
    parts = set()
    for name in sorted(names):
        matrix = _OF_LAYER.fullmatch(name) or _OF_TOKENS.fullmatch(name)
        if matrix is None:
            raise ConfigError(f"{WEIGHTS} holds {name:.200}, which engines do not apply")
        halves[matrix["module"]] = halves.get(matrix["module"], "") + matrix["half"]
        parts.add(matrix.groupdict().get("part"))
    for module, found in halves.items():
        if found != "AB":
            raise ConfigError(f"{WEIGHTS} holds of {module:.200} lora_{found} alone")
    if len(told := sorted(filter(None, parts))) > 1:
        raise ConfigError(f"{WEIGHTS} holds layers of several parts of a model: {', '.join(told)}")
    return frozenset(module.rpartition(".")[2] for module in halves)


def _compare_base(name: str, base: str, model_path: Path) -> None:
    """Folders are called as somebody liked: a name that differs is worth a line of the log."""
    said = base.rstrip("/").rpartition("/")[2].lower()
    if said and said not in str(model_path.resolve()).lower():
        log.warning(
            "a LoRA adapter names another base model", extra={"model": name, "reason": base[:200]}
        )
