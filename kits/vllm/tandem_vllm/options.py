"""What an operator may set of the vLLM engine (`engine_options` of a worker), checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tandem.engine import options
from tandem.engine.kv_tag import KvCheck
from tandem.errors import ConfigError
from tandem.ranges import Range, ranged
from tandem_vllm import engine_arguments


class ModelRunner(StrEnum):
    """What of vLLM runs the model and draws tokens. Each has an interface for processors."""

    V1 = "v1"
    V2 = "v2"


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of the vLLM engine. 0 and "" leave a choice to vLLM, on CPUs to our defaults."""

    dtype: str = "auto"
    """The type of weights and KV cache, e.g. "bfloat16"; "auto" is the model's own."""
    tensor_parallel: int = ranged(1, Range(at_least=1))
    """Accelerators of this machine that share the model, equal in both phases."""
    context_length: int = ranged(0, Range(at_least=0))
    """Tokens that prompt and completion may have together; 0: the model's."""
    kv_cache_bytes: int = ranged(0, Range(at_least=0))
    """Size of the KV cache on each accelerator; 0: what gpu_memory_utilization leaves, on CPUs 256
    MiB."""
    gpu_memory_utilization: float = ranged(0.0, Range(at_least=0, below=1))
    """Share of a GPU's memory for weights and KV cache; 0: vLLM's choice."""
    page_size: int = ranged(0, Range(at_least=0))
    """Tokens to a KV page, equal in both phases; 0: vLLM's choice, on CPUs 32."""
    max_batched_tokens: int = ranged(0, Range(at_least=0))
    """Tokens that one step computes at most; 0: vLLM's choice. On CPUs no less than a context."""
    enforce_eager: bool = False
    """Compile nothing and capture no graphs. On CPUs that is always so."""
    model_runner: ModelRunner = ModelRunner.V1
    """vLLM's "v1" or "v2", the same in both phases."""
    decode_prefix_cache: bool = False
    """DECODE: keep the KV of what has ended, and read of a prompt what is not kept."""
    kv_check: KvCheck = KvCheck.TAG
    """What decode compares of a hand-over before it reads the KV, the same in both phases: "tag"
    (whose KV prefill has) or "off"."""
    random_seed: int = 0
    """What draws for requests that name no seed; 0 takes another one at each start."""
    kv_port: int = ranged(0, Range(at_least=0, at_most=65535))
    """PREFILL: port at which decode engines call for KV; 0: any free one."""
    side_channel_port: int = ranged(0, Range(at_least=0, at_most=65535))
    """PREFILL: port at which NIXL says how its memory is read; 0: any free one."""
    handover_timeout_seconds: float = ranged(60.0, Range(above=0))
    """A hand-over that makes no progress for this long fails. It has to cover the prompts queued
    before it in prefill, and the wait for KV pages in decode."""
    load_seconds: int = ranged(1800, Range(at_least=1))
    """Weights are loaded, and memory and graphs made ready, in this time; else the start fails."""
    warm_up_seconds: int = ranged(1800, Range(at_least=1))
    """Requests of its own, which have kernels compiled before any client's, take no longer."""
    engine_args: str = ""
    """JSON object of further arguments of vLLM, e.g. {"quantization": "fp8"}: see below."""

    @property
    def extra(self) -> Mapping[str, Any]:
        """`engine_args`, parsed. Raises ConfigError where it cannot be used."""
        extra = options.json_object(self.engine_args, "engine_args")
        for name in extra:
            if refusal := engine_arguments.refusal(name):
                raise ConfigError(f"engine option engine_args must not hold {name}: {refusal}")
        return extra


def parse(raw: Mapping[str, Any]) -> Options:
    """Options from settings, whose values may be text. Raises ConfigError naming the option."""
    given = options.parse(Options, raw, engine="vllm")
    _ = given.extra
    if given.kv_check is KvCheck.BYTES:
        raise ConfigError("engine option kv_check must be tag or off: vLLM sums up no bytes of KV")
    return given
