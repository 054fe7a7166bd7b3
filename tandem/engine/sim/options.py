"""The sim engine's options, as they stand in `engine_options`."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tandem.config import setting
from tandem.errors import ConfigError
from tandem.settings_file import nearest

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """Time, memory and language of the simulated model."""

    step_ms: float = setting(10.0, "Time of one decode step, ms. 0: as fast as it can.")
    step_ms_per_sequence: float = setting(
        0.0, "Load curve: each running sequence makes a step longer by this, ms."
    )
    prefill_base_ms: float = setting(0.0, "Time to prefill any prompt, ms.")
    prefill_ms_per_token: float = setting(0.0, "Time to prefill each prompt token, ms.")
    page_size: int = setting(64, "Tokens to a KV page. Both phases must agree.")
    kv_bytes_per_token: int = setting(
        64, "Size of a token's KV slot, bytes; a multiple of 8. Both phases must agree."
    )
    max_total_tokens: int = setting(
        0, "Size of the KV pool, tokens; requests wait for room in it. 0: room for all."
    )
    prefix_cache_tokens: int = setting(
        0, "PREFILL: size of the prefix cache, tokens, in blocks of 64. 0: there is none."
    )
    context_length: int = setting(
        0, "Prompt and completion together, tokens. 0: as the model's config.json says."
    )
    min_output_tokens: int = setting(8, "The shortest answer before the end token, tokens.")
    max_output_tokens: int = setting(400, "The longest answer before the end token, tokens.")
    handover_timeout_seconds: float = setting(
        30.0, "How long one phase waits for the other's part of a hand-over, s."
    )
    kv_port: int = setting(0, "PREFILL: port of the hand-over stream. 0: any.")

    def __post_init__(self) -> None:
        for name in ("step_ms", "step_ms_per_sequence", "prefill_base_ms", "prefill_ms_per_token"):
            _require(getattr(self, name) >= 0, name, "at least 0")
        _require(self.page_size >= 1, "page_size", "at least 1")
        _require(
            self.kv_bytes_per_token >= 8 and self.kv_bytes_per_token % 8 == 0,
            "kv_bytes_per_token",
            "a multiple of 8",
        )
        _require(self.max_total_tokens >= 0, "max_total_tokens", "at least 0")
        _require(self.prefix_cache_tokens >= 0, "prefix_cache_tokens", "at least 0")
        _require(self.context_length >= 0, "context_length", "at least 0")
        _require(self.min_output_tokens >= 2, "min_output_tokens", "at least 2")
        _require(
            self.max_output_tokens >= self.min_output_tokens,
            "max_output_tokens",
            "at least min_output_tokens",
        )
        _require(self.handover_timeout_seconds > 0, "handover_timeout_seconds", "above 0")
        _require(0 <= self.kv_port < 65536, "kv_port", "a port number")


def parse(model: type[T], values: Mapping[str, Any], *, prefix: str = "") -> T:
    """`values` as the options class `model`, whose names they carry after `prefix`. Text is
    converted, as it comes from a flag or variable.

    Raises ConfigError for an unknown name or a value that does not fit, naming it.
    """
    hints = typing.get_type_hints(model)
    converted = {}
    for name, value in values.items():
        field = name.removeprefix(prefix)
        if not name.startswith(prefix) or field not in hints:
            known = ", ".join(prefix + known for known in hints)
            hint = nearest(name, (prefix + each for each in hints))
            raise ConfigError(f"the sim engine has no option {name!r}; it has: {known}{hint}")
        converted[field] = _convert(hints[field], name, value)
    return model(**converted)


def names(model: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(model)]


def _convert(kind: Any, name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"the sim engine's {name} cannot be {value!r}")
    if kind is int and isinstance(value, float):
        raise ConfigError(f"the sim engine's {name} must be a whole number, not {value!r}")
    try:
        return kind(value)
    except ValueError as error:
        raise ConfigError(f"the sim engine's {name} cannot be {value!r}: {error}") from None


def _require(holds: bool, name: str, what: str) -> None:
    if not holds:
        raise ConfigError(f"the sim engine's {name} must be {what}")
