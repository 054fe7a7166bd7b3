"""How SGLang is started: its ServerArgs and its environment, from a role and an operator's options.

A mapping; nothing of SGLang is imported. Defaults that are not SGLang's own have their reason
beside them.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tandem.engine import model_files
from tandem.engine.base import ONE_NODE, Nodes, Role
from tandem.engine.kv_tag import KvCheck
from tandem.engine.lora import LoraAdapter
from tandem.errors import ConfigError
from tandem_sglang import mooncake, parallel
from tandem_sglang.options import Options
from tandem_sglang.ports import Ports
from tandem_sglang.server_arguments import ONE_LINE_JSON

CPU_PLUGIN = "tandem_sglang_cpu"
TAGGED_FIELDS = {"llguidance": "ebnf", "xgrammar": "structural_tag", "none": ""}
"""The sampling parameter of SGLang that says where calls are, by grammar backend."""
GRAMMAR_BACKENDS = tuple(TAGGED_FIELDS)
"""Backends that check forms of answers before the scheduler sees them. The first is our choice,
because it has limits for each step: a step of xgrammar's may take seconds, in which nobody is
served.
"""
CHOSEN = (
    "attention_backend",
    "chunked_prefill_size",
    "context_length",
    "max_total_tokens",
    "mem_fraction_static",
    "page_size",
)
"""Arguments that are options too, and that SGLang or a default decides where none is chosen."""
_DRAFTS_WITH_GRAMMARS = frozenset(
    ["DFLASH", "DSPARK", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "NEXTN", "NGRAM", "STANDALONE"]
)
"""Speculative decoding whose verification applies grammars. UNO's refuses them, which is refused
itself, and nothing is known of what a plugin brings.
"""
_CPU_KV_TOKENS = 65536
_CUDA_PAGE_SIZE = 64
"""A piece of a hand-over costs the same whatever its size, and a page is a piece of each layer."""
_LORAS_PER_BATCH = 8
"""SGLang's own default: each takes memory beside the model's."""
LORA_WITH_RANKS = "triton"
"""The one backend of LoRA kernels for GPUs that SGLang has beside data-parallel ranks."""
_NVIDIA_CONTROL = Path("/dev/nvidiactl")


def resolve_device(options: Options) -> str:
    """ "cpu" or "cuda". Looks for the driver's file, because asking torch would import it."""
    if options.device != "auto":
        return options.device
    return "cuda" if _NVIDIA_CONTROL.exists() else "cpu"


def environment(options: Options, *, host: str, device: str, ranks: int = 1) -> dict[str, str]:
    """Variables SGLang reads when it is imported, here and in its child processes.

    `ranks`: those that share the model.
    """
    timeout = str(max(options.handover_timeout_seconds, options.first_handover_timeout_seconds))
    variables = {
        "HF_HUB_OFFLINE": "1",  # models are folders here
        "TOKENIZERS_PARALLELISM": "false",
        "SGLANG_HOST_IP": host,  # without it SGLang looks for a default route, and dies without one
        "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": timeout,
        "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": timeout,
        # Decode asks a prefill engine this often whether it lives, and gives up after two failures.
        "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "2",
        # A crashed scheduler waits 60 s for a core dump while its ports still answer: peers hang.
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
        # Log-probabilities of the model, not of what temperature makes of it.
        "SGLANG_RETURN_ORIGINAL_LOGPROB": "1",
        # Tokens of prompts whose log-probabilities are computed at once, each with a row of the
        # whole vocabulary. SGLang sets no memory aside for them, and 2048 rows may take gigabytes.
        "SGLANG_LOGPROB_CHUNK_SIZE": "256",
        # A follower's launch returns once its ranks are up, as a leader's does.
        "SGLANG_BLOCK_NONZERO_RANK_CHILDREN": "0",
    }
    if options.transfer_backend == mooncake.NAME:
        variables |= mooncake.ENVIRONMENT
    if device == "cpu":
        variables |= {
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_PLUGINS": CPU_PLUGIN,
            "OMP_NUM_THREADS": "1",  # several engines share the cores
            # Sharded embeddings are compiled by C++ at their first use, by a command line that
            # breaks at a space in the environment's path; here they are as fast without.
            "TORCHDYNAMO_DISABLE": "1",
            # It records a CUDA event whatever the device is, and so kills the scheduler.
            "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "0",
            "SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS": '{"num_threads":"1"}',  # not 8
        }
        if ranks > 1:
            cores = sorted(os.sched_getaffinity(0))
            variables |= {
                # A CUDA build of torch brings NCCL, which SGLang would use whatever the device is.
                "SGLANG_NCCL_SO_PATH": "none",
                # A core for each rank; by default each wants a NUMA node of its own.
                "SGLANG_CPU_OMP_THREADS_BIND": "|".join(
                    str(cores[rank % len(cores)]) for rank in range(ranks)
                ),
            }
    return variables


def server_args(
    options: Options,
    *,
    role: Role,
    model_path: Path,
    max_sequences: int,
    host: str,
    device: str,
    ports: Ports,
    processors: bool,
    nodes: Nodes = ONE_NODE,
    cache_events: str = "",
    lora_adapters: Sequence[LoraAdapter] = (),
) -> dict[str, Any]:
    """Keyword arguments of SGLang's Engine. `processors`: requests may name logits processors.
    `cache_events`: where it publishes what its prefix cache holds; empty: nowhere.
    """
    sizes = parallel.of(options, role)
    arguments: dict[str, Any] = {
        "log_level": "error",  # of the child processes
        "device": device,
        "dtype": options.dtype,
        "random_seed": options.random_seed or secrets.randbits(30),
        "tp_size": sizes.tensor,
        **({"pp_size": sizes.pipeline} if sizes.pipeline > 1 else {}),
        **({"dp_size": sizes.data, "enable_dp_attention": True} if sizes.data > 1 else {}),
        "disable_overlap_schedule": options.disable_overlap_schedule,
        "sleep_on_idle": True,  # an idle scheduler would poll without a pause
        ONE_LINE_JSON: True,  # of which a model may want no end
        **(
            _cpu_defaults()
            if device == "cpu"
            else _cuda_defaults(options, role, model_path, max_sequences // sizes.data)
        ),
        **chosen(options),
        **(_lora(lora_adapters, device, sizes.data) if lora_adapters else {}),
        **options.extra,
        "grammar_backend": grammar_backend(options),
        "model_path": str(model_path),
        "host": host,
        "max_running_requests": max_sequences,  # of all data-parallel ranks together
        "batch_notify_size": max_sequences,  # a step's outputs are one step here, not parts of it
        "incremental_streaming_output": True,
        "enable_custom_logit_processor": processors,
    }
    if options.seeded_sampling:
        arguments["sampling_backend"] = "pytorch"
    if role is not Role.AGGREGATED:
        arguments |= _disaggregated(options, role, ports)
    if cache_events:
        published = {"publisher": "zmq", "endpoint": cache_events}
        arguments.setdefault("kv_events_config", json.dumps(published))
    if ports.meeting:
        arguments.setdefault("nccl_port", ports.meeting)  # an operator's own goes first
    arguments |= _place(nodes, ports)
    if role is Role.DECODE and device == "cpu":
        # The default keeps retracted pages in pinned memory, which needs CUDA.
        arguments.setdefault("disaggregation_decode_retraction_backup", "cpu_tensor")
    if role is not Role.AGGREGATED and device != "cpu" and options.kv_check is KvCheck.BYTES:
        arguments["disaggregation_enable_kv_checksum"] = True
    return arguments


def _place(nodes: Nodes, ports: Ports) -> dict[str, Any]:
    """Arguments that say where an engine listens, and which of several nodes it runs on."""
    inner = {"port": ports.inner} if ports.inner else {}
    if nodes.count == 1:
        return inner
    shared = {"nnodes": nodes.count, "node_rank": nodes.rank, "dist_init_addr": nodes.leader}
    return inner | shared


def _disaggregated(options: Options, role: Role, ports: Ports) -> dict[str, Any]:
    """Arguments of an engine that runs one phase."""
    arguments: dict[str, Any] = {
        "disaggregation_mode": role.value,
        "disaggregation_transfer_backend": options.transfer_backend,
        "disaggregation_bootstrap_port": ports.bootstrap,
    }
    if role is Role.DECODE and options.decode_prefix_cache:
        arguments["disaggregation_decode_enable_radix_cache"] = True
    return arguments


def grammar_backend(options: Options) -> str:
    """SGLang's, by name. Raises ConfigError for one that nothing is checked with."""
    name = options.extra.get("grammar_backend") or GRAMMAR_BACKENDS[0]
    if name not in GRAMMAR_BACKENDS:
        raise ConfigError(
            f"engine option server_args: grammar_backend must be one of "
            f"{', '.join(GRAMMAR_BACKENDS)}, not {name!r}"
        )
    return str(name)


def speculative(options: Options) -> bool:
    """Whether speculative decoding is on: its verification skips logits processors."""
    return bool(options.extra.get("speculative_algorithm"))


def without_grammars(options: Options) -> str:
    """Why no answer can be given a form; empty: some can."""
    name = str(options.extra.get("speculative_algorithm") or "").upper()
    if not name or name in _DRAFTS_WITH_GRAMMARS:
        return ""
    return f"SGLang's speculative decoding by {name} applies no grammars"


def _cpu_defaults() -> Mapping[str, Any]:
    return {
        "attention_backend": "torch_native",
        "chunked_prefill_size": 1024,  # a cancel waits for the step that runs
        "disable_cuda_graph": True,
        "disable_custom_all_reduce": True,
        "max_total_tokens": _CPU_KV_TOKENS,
        # max_total_tokens is what bounds it; this leaves room for what else starts meanwhile.
        "mem_fraction_static": 0.5,
        "page_size": 1,
    }


def _lora(adapters: Sequence[LoraAdapter], device: str, data_ranks: int) -> Mapping[str, Any]:
    """Arguments of an engine that loads these adapters."""
    arguments: dict[str, Any] = {
        "enable_lora": True,
        "lora_paths": [{"lora_name": each.name, "lora_path": str(each.path)} for each in adapters],
        # A batch has room for each, and for rows of the model alone, which count as one.
        "max_loras_per_batch": min(len(adapters) + 1, _LORAS_PER_BATCH),
        "lora_strict_loading": True,  # what fits no matrix of the model would be left out
    }
    if device == "cpu":
        arguments["lora_backend"] = "torch_native"  # the others are kernels for accelerators
    elif data_ranks > 1:
        arguments["lora_backend"] = LORA_WITH_RANKS
    return arguments


def _cuda_defaults(
    options: Options, role: Role, model_path: Path, max_sequences: int
) -> Mapping[str, Any]:
    """`max_sequences`: of a data-parallel rank."""
    defaults = {}
    if role is not Role.PREFILL:
        # Larger steps than SGLang captured graphs for, 256 on an H100, would run without one.
        defaults["cuda_graph_max_bs_decode"] = max_sequences
    # Sizes that a kernel needs, SGLang takes over this one, but where pages may have to hold one
    # token: states, and drafts that are verified as a tree.
    if not _may_draft_trees(options) and not model_files.keeps_states(model_path):
        defaults["page_size"] = _CUDA_PAGE_SIZE
    return defaults


def _may_draft_trees(options: Options) -> bool:
    """A step may draft several tokens for one place. Where nothing is said of that, SGLang decides,
    for some models so, and for NGRAM whatever is said.
    """
    algorithm = str(options.extra.get("speculative_algorithm") or "").upper()
    drafts = options.extra.get("speculative_eagle_topk")
    if not algorithm:
        return drafts not in (None, 1)
    return algorithm == "NGRAM" or drafts != 1


def chosen(options: Options) -> Mapping[str, Any]:
    """What the operator chose of `CHOSEN`, over the defaults."""
    return {name: value for name in CHOSEN if (value := getattr(options, name))}
