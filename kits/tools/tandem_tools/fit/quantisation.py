"""How many bytes a weight of a checkpoint takes, matrix by matrix, as its quantisation says.

Three places may say it, and SGLang 0.5.21 looks in this order (`_parse_quant_hf_config` in its
configs/model_config.py): `quantization_config` and `compression_config` of config.json, and NVIDIA
ModelOpt's own file, `hf_quant_config.json`, beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from tandem.errors import ConfigError

PLAIN_BYTES = 2
"""SGLang computes in half precision, also where a model is stored in single or says nothing."""
_GROUP = 128
"""Weights that share a scale, in AWQ and GPTQ unless they say so."""
_SCALE_BYTES = 2
"""A scale of compressed-tensors."""
_PREFIXES = ("model.language_model.", "language_model.model.", "model.")
"""Before the names of layers, in checkpoints of models with and without other inputs than text."""
_MOST_EXCLUDED = 100_000
_MOST_REPEATS = 4
_REPEAT = re.compile(r"(?<!\\)[*+?{]")
_REPEATED_GROUP = re.compile(r"(?<!\\)\)[*+{]")


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Bytes of a checkpoint's weights, with their shares of the scales."""

    size: float
    """Bytes of a weight that is quantised."""
    names: frozenset[str] = frozenset()
    """Paths, or parts of paths, of modules that are not quantised, nor what is below them."""
    patterns: tuple[re.Pattern[str], ...] = ()
    """Whole paths of further modules that are not quantised."""
    fp8_kv: bool = False
    """SGLang keeps the KV cache in FP8 unless it is told otherwise."""
    padded: bool = False
    """SGLang rounds up the experts' widths."""

    def bytes_of(self, module: str) -> float:
        """Bytes of a weight of `module`, such as "layers.0.self_attn.q_proj"."""
        return PLAIN_BYTES if self._excludes(module) else self.size

    def _excludes(self, module: str) -> bool:
        parts = module.split(".")
        ends = range(1, len(parts) + 1)
        if any(".".join(parts[begin:end]) in self.names for end in ends for begin in range(end)):
            return True
        paths = (module, *(prefix + module for prefix in _PREFIXES))
        return any(pattern.fullmatch(path) for pattern in self.patterns for path in paths)


def declared(config: Mapping[str, Any], modelopt: Mapping[str, Any] | None = None) -> Quantisation:
    """`config`: config.json; `modelopt`: hf_quant_config.json, where the model has one. Raises
    ConfigError for a way of quantising that is not known here.
    """
    try:
        return _declared(config, modelopt)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"the quantisation describes no weights ({error})") from error


def _declared(config: Mapping[str, Any], modelopt: Mapping[str, Any] | None) -> Quantisation:
    given = config.get("quantization_config") or config.get("compression_config")
    if not given and modelopt:
        return _modelopt(modelopt.get("quantization") or modelopt)
    if not given:
        return Quantisation(PLAIN_BYTES)
    method = given.get("quant_method")
    if method == "modelopt" or (method is None and "quant_algo" in given):
        return _modelopt(given)
    if method not in _METHODS:
        known = ", ".join(sorted((*_METHODS, "modelopt")))
        raise ConfigError(f"config.json: quantization method {method!r} is none of {known}")
    excluded = given.get("modules_to_not_convert") or given.get("ignore") or ()
    padded = method == "mxfp4"
    return Quantisation(_METHODS[method](given), *_excluded(excluded), padded=padded)


def _fp8(given: Mapping[str, Any]) -> float:
    rows, columns = given.get("weight_block_size") or (_GROUP, _GROUP)
    return 1 + 4 / (rows * columns)


def _mxfp4(_: Mapping[str, Any]) -> float:
    return (4 + 8 / 32) / 8


def _in_groups(given: Mapping[str, Any]) -> float:
    bits = given.get("bits", 4)
    return float(bits + (16 + bits) / (given.get("group_size") or _GROUP)) / 8


def _compressed_tensors(given: Mapping[str, Any]) -> float:
    groups = [*given["config_groups"].values()]
    if len(groups) != 1 or groups[0].get("targets") != ["Linear"]:
        raise ConfigError(
            "config.json: compressed-tensors with several groups of weights, or with a group that"
            " is not all of them, is not known"
        )
    weights = groups[0]["weights"]
    block = weights.get("block_structure") or ()
    in_group = weights.get("group_size") or (block[0] * block[1] if block else 0)
    return float(weights["num_bits"]) / 8 + (_SCALE_BYTES / in_group if in_group else 0)


_METHODS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "awq": _in_groups,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "gptq": _in_groups,
    "mxfp4": _mxfp4,
}


def _modelopt(given: Mapping[str, Any]) -> Quantisation:
    """NVIDIA ModelOpt's, in either of the two forms in which its releases write it."""
    sizes = {
        "FP8": 1.0,
        "NVFP4": (4 + 8 / (given.get("group_size") or 16)) / 8,
        "MXFP8": 1 + 1 / (given.get("group_size") or 32),
    }
    algorithm = given.get("quant_algo")
    if algorithm not in sizes:
        raise ConfigError(
            f"quantization by ModelOpt: quant_algo {algorithm!r} is none of {', '.join(sizes)}"
        )
    scheme = given.get("kv_cache_scheme")
    of_kv = (
        "FP8"
        if isinstance(scheme, Mapping)
        and (scheme.get("type"), scheme.get("num_bits")) == ("float", 8)
        else given.get("kv_cache_quant_algo")
    )
    excluded = given.get("exclude_modules") or given.get("ignore") or ()
    return Quantisation(sizes[algorithm], *_excluded(excluded), fp8_kv=of_kv == "FP8")


def _excluded(given: Iterable[str]) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """The names and the patterns of modules that are left as they were trained. Patterns are paths
    with stars, or regular expressions behind "re:".
    """
    names = [str(name) for name in given]
    if len(names) > _MOST_EXCLUDED:
        raise ConfigError(
            f"a model excludes at most {_MOST_EXCLUDED:,} modules, not {len(names):,}"
        )
    plain = {_below_prefix(name) for name in names if "*" not in name and name[:3] != "re:"}
    return frozenset(plain), tuple(
        re.compile(_expression(name)) for name in names if "*" in name or name[:3] == "re:"
    )


def _below_prefix(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _expression(name: str) -> str:
    """A regular expression for whole paths. Raises ConfigError for one that could take for ever."""
    if not name.startswith("re:"):
        return translate(_below_prefix(name)).removesuffix(r"\Z") + r"(?:\..*)?"
    found = name.removeprefix("re:")
    try:
        re.compile(found)
    except re.error as error:
        raise ConfigError(f"a model excludes no modules by {name!r} ({error})") from error
    if len(_REPEAT.findall(found)) > _MOST_REPEATS or _REPEATED_GROUP.search(found):
        raise ConfigError(
            f"a model excludes modules by {name!r}: at most {_MOST_REPEATS} repetitions, none of a"
            " group, can be matched in bounded time"
        )
    return f"(?:{found}).*"
