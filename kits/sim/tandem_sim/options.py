"""The sim engine's options, as they stand in `engine_options`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tandem import ranges
from tandem.config import setting
from tandem.engine import options
from tandem.engine.kv_tag import KvCheck
from tandem.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """Time, memory and language of the simulated model."""

    step_ms: float = setting(
        10.0, "Time of one decode step, ms. 0: as fast as the machine can.", at_least=0
    )
    step_ms_per_sequence: float = setting(
        0.0, "Load curve: each running sequence makes a step longer by this, ms.", at_least=0
    )
    prefill_base_ms: float = setting(0.0, "Time to prefill any prompt, ms.", at_least=0)
    prefill_ms_per_token: float = setting(0.0, "Time to prefill each prompt token, ms.", at_least=0)
    page_size: int = setting(64, "Tokens to a KV page. Both phases must agree.", at_least=1)
    kv_bytes_per_token: int = setting(
        64, "Size of a token's KV slot, bytes; a multiple of 8. Both phases must agree.", at_least=8
    )
    max_total_tokens: int = setting(
        0,
        "Size of the KV pool, tokens; requests wait for room in the pool. 0: room for all.",
        at_least=0,
    )
    prefix_cache_tokens: int = setting(
        0,
        "PREFILL: size of the prefix cache, tokens, in blocks of 64. 0: there is none.",
        at_least=0,
    )
    context_length: int = setting(
        0, "Prompt and completion together, tokens. 0: as the model's config.json says.", at_least=0
    )
    min_output_tokens: int = setting(
        8, "The shortest answer before the end token, tokens.", at_least=2
    )
    max_output_tokens: int = setting(
        400, "The longest answer before the end token, tokens.", at_least=2
    )
    handover_timeout_seconds: float = setting(
        30.0,
        "Time for which one phase waits for the other phase's part of a hand-over, s.",
        above=0,
    )
    kv_check: KvCheck = setting(
        KvCheck.BYTES,
        "What decode compares of a hand-over: tag (whose KV has come, into which pages), bytes (the"
        " tag and a checksum of the KV) or off. Both phases must agree.",
    )
    kv_port: int = setting(
        0, "PREFILL: port of the hand-over stream. 0: any.", at_least=0, at_most=65535
    )

    def __post_init__(self) -> None:
        ranges.check(self, owner="engine option ")
        if self.kv_bytes_per_token % 8:
            raise ConfigError("engine option kv_bytes_per_token must be a multiple of 8")
        if self.max_output_tokens < self.min_output_tokens:
            raise ConfigError("engine option max_output_tokens must be at least min_output_tokens")


def parse(model: type[T], values: Mapping[str, Any], *, prefix: str = "") -> T:
    """`values` as the options class `model`, see tandem.engine.options. Raises ConfigError."""
    return options.parse(model, values, engine="sim", prefix=prefix)
