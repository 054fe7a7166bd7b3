"""What an operator may set of the SGLang engine (`engine_options` of a worker), checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tandem.engine import options
from tandem.engine.kv_tag import KvCheck
from tandem.errors import ConfigError
from tandem.ranges import Range, ranged
from tandem_sglang import argument_rules

_WITHOUT_PREFIXES = ("disable_radix_cache", "enable_hisparse")
_DRAFTS_WITH_PREFIXES = "DSPARK"
"""The only speculative decoding that SGLang's decode keeps prefixes beside."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of the SGLang engine. 0 and "" leave a choice to SGLang, on CPU to our defaults."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """"auto" is cuda where this process sees an NVIDIA device, and cpu otherwise."""
    dtype: str = "auto"
    """The type of weights and KV cache, e.g. "bfloat16"; "auto" is the model's own. "float32" is
    for CPUs: SGLang's kernels for cuda do not know it."""
    context_length: int = ranged(0, Range(at_least=0))
    """Tokens that prompt and completion may have together, and two that SGLang keeps; 0: the
    model's."""
    max_total_tokens: int = ranged(0, Range(at_least=0))
    """Tokens the KV cache holds; 0: what memory allows, on CPU 65536."""
    mem_fraction_static: float = ranged(0.0, Range(at_least=0, below=1))
    """Share of the device's memory for weights and KV cache; 0: SGLang's choice, on CPU 0.5.
    Workers that share a GPU need one each, which together leave some of it."""
    page_size: int = ranged(0, Range(at_least=0))
    """Tokens to a KV page, equal in both phases; 0: 64 on cuda, but SGLang's choice for models that
    keep states, and with drafts that may be a tree. CPU knows only 1."""
    attention_backend: str = ""
    """"": SGLang's choice, on CPU torch_native."""
    chunked_prefill_size: int = ranged(0, Range(at_least=-1))
    """Prompt tokens of one prefill step; 0: SGLang's choice, -1: never cut a prompt."""
    disable_overlap_schedule: bool = False
    """Take each step's result in before the next is planned. Slower."""
    tensor_parallel: int = ranged(1, Range(at_least=1))
    """Accelerators that share the model, on all nodes of a worker together."""
    decode_tensor_parallel: int = ranged(0, Range(at_least=0))
    """tensor_parallel of decode workers, where the number differs; 0: it does not. Prefill has to
    be told too. Only for models with plain attention, or with latents (MLA).
    """
    data_parallel: int = ranged(1, Range(at_least=1))
    """Groups among which the accelerators are divided for attention, each for sequences of its own
    (DP attention)."""
    decode_data_parallel: int = ranged(0, Range(at_least=0))
    """data_parallel of decode workers, where the number differs; 0: it does not. Prefill has to be
    told too.
    """
    pipeline_parallel: int = ranged(1, Range(at_least=1))
    """Groups of tensor_parallel accelerators, each with a part of the layers. No logits processors
    with it."""
    decode_pipeline_parallel: int = ranged(0, Range(at_least=0))
    """pipeline_parallel of decode workers: 1, or 0 for as many as prefill has, which has to be told
    too.
    """
    transfer_backend: Literal["nixl", "mooncake"] = "nixl"
    """What hands KV over, the same in both phases. "mooncake" needs its package in the workers'
    environment."""
    kv_check: KvCheck = KvCheck.TAG
    """What decode compares of a hand-over before the first token leaves, the same in both phases:
    "tag" (whose KV has come, and into which pages), "bytes" (that and a checksum of the KV, which
    costs time) or "off"."""
    decode_prefix_cache: bool = False
    """DECODE: keep the KV of what has ended, as prefill does, and be sent of a prompt what is not
    kept. SGLang calls it experimental."""
    random_seed: int = 0
    """The seed of requests that name none; 0 takes another one at each start."""
    bootstrap_port: int = ranged(0, Range(at_least=0, at_most=65535))
    """PREFILL: port on which decode engines begin a hand-over; 0: any free one."""
    handover_timeout_seconds: int = ranged(60, Range(at_least=1))
    """A hand-over that makes no progress for this long fails. It has to cover the prompts queued
    before it in prefill, and the wait for KV pages in decode."""
    first_handover_timeout_seconds: int = ranged(300, Range(at_least=1))
    """handover_timeout_seconds until this engine has moved KV once: NIXL opens its connections
    meanwhile. Where it is raised, so is the router's canary_seconds.
    """
    load_seconds: int = ranged(1800, Range(at_least=1))
    """Weights are loaded, and memory and graphs made ready, in this time; else the start fails."""
    warm_up_seconds: int = ranged(1800, Range(at_least=1))
    """Requests of its own, which have kernels compiled before any client's, take no longer."""
    seeded_sampling: bool = True
    """Make a request's seed decide its tokens, whatever shares its batches; false: SGLang's choice
    samples, on cuda FlashInfer's, and a request with a seed is refused."""
    strict_units: bool = False
    """Start with every unit alone: a name that the installed SGLang lacks, and a unit needs, ends
    the start; false: a worker does without the unit, with a warning."""
    server_args: str = ""
    """JSON object of further SGLang ServerArgs, e.g. {"quantization": "fp8"}. One that has no
    effect in a worker, or that Tandem sets, is refused by name."""
    unlisted_server_args: bool = False
    """Pass on what no table of Tandem's has, where the SGLang that is installed has it, with a
    warning; false: it is refused by name."""

    @property
    def extra(self) -> Mapping[str, Any]:
        """`server_args`, parsed. Raises ConfigError where it cannot be used."""
        extra = options.json_object(self.server_args, "server_args")
        argument_rules.check(extra, unlisted=self.unlisted_server_args)
        return extra


def parse(raw: Mapping[str, Any]) -> Options:
    """Options from settings, whose values may be text. Raises ConfigError naming the option."""
    given = options.parse(Options, raw, engine="sglang")
    if given.device == "cpu" and given.page_size > 1:
        raise ConfigError(
            "engine option page_size must be 1 on cpu: SGLang pages KV with a GPU kernel"
        )
    _check_prefix_cache(given)
    unequal = given.decode_tensor_parallel or given.decode_data_parallel
    if given.kv_check is KvCheck.BYTES and (unequal or given.pipeline_parallel > 1):
        raise ConfigError(
            "engine option kv_check must be tag or off where ranks of prefill and decode have "
            "other parts of the KV, or pipelines have stages: their checksums differ"
        )
    return given


def _check_prefix_cache(chosen: Options) -> None:
    given = chosen.extra
    if not chosen.decode_prefix_cache:
        return
    against = [name for name in _WITHOUT_PREFIXES if given.get(name)]
    if given.get("speculative_algorithm", _DRAFTS_WITH_PREFIXES) != _DRAFTS_WITH_PREFIXES:
        against.append("speculative_algorithm")
    if against:
        raise ConfigError(
            f"engine option server_args must not hold {', '.join(against)} with engine option "
            "decode_prefix_cache: SGLang cannot do both"
        )
