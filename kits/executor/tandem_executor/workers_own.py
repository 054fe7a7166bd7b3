"""TensorRT-LLM's shapes for what workers are set to here: programs may make, read and pass them,
and nothing of them is used. An executor that is given one warns.
"""

from __future__ import annotations

import enum
from dataclasses import field, make_dataclass
from typing import Any


def _values(name: str, **defaults: Any) -> Any:
    """A class of settings with these defaults, in the order in which they are given by place."""
    fields = [(each, Any, field(default=default)) for each, default in defaults.items()]
    return make_dataclass(name, fields, namespace={"__module__": __name__, "__doc__": __doc__})


class CapacitySchedulerPolicy(enum.Enum):
    MAX_UTILIZATION = 0
    GUARANTEED_NO_EVICT = 1
    STATIC_BATCH = 2


class ContextChunkingPolicy(enum.Enum):
    FIRST_COME_FIRST_SERVED = 0
    EQUAL_PROGRESS = 1


class CommunicationType(enum.Enum):
    MPI = 0


class CommunicationMode(enum.Enum):
    LEADER = 0
    ORCHESTRATOR = 1


class CacheTransceiverBackendType(enum.Enum):
    DEFAULT = 0
    MPI = 1
    UCX = 2
    NIXL = 3
    MOONCAKE = 4


KvCacheConfig = _values(
    "KvCacheConfig",
    enable_block_reuse=True,
    max_tokens=None,
    max_attention_window=None,
    sink_token_length=None,
    free_gpu_memory_fraction=None,
    host_cache_size=None,
    onboard_blocks=True,
    cross_kv_cache_fraction=None,
    secondary_offload_min_priority=None,
    event_buffer_max_size=0,
    enable_partial_reuse=True,
    copy_on_partial_reuse=True,
    use_uvm=False,
    runtime_defaults=None,
)
RuntimeDefaults = _values("RuntimeDefaults", max_attention_window=None, sink_token_length=None)
DynamicBatchConfig = _values(
    "DynamicBatchConfig",
    enable_batch_size_tuning=False,
    enable_max_num_tokens_tuning=False,
    dynamic_batch_moving_average_window=128,
)
SchedulerConfig = _values(
    "SchedulerConfig",
    capacity_scheduler_policy=CapacitySchedulerPolicy.GUARANTEED_NO_EVICT,
    context_chunking_policy=None,
    dynamic_batch_config=None,
)
OrchestratorConfig = _values(
    "OrchestratorConfig",
    is_orchestrator=True,
    worker_executable_path="",
    orch_leader_comm=None,
    spawn_processes=True,
)
ParallelConfig = _values(
    "ParallelConfig",
    communication_type=CommunicationType.MPI,
    communication_mode=CommunicationMode.LEADER,
    device_ids=None,
    participant_ids=None,
    orchestrator_config=None,
    num_nodes=None,
)
PeftCacheConfig = _values(
    "PeftCacheConfig",
    num_host_module_layer=0,
    num_device_module_layer=0,
    optimal_adapter_size=8,
    max_adapter_size=64,
    num_put_workers=1,
    num_ensure_workers=1,
    num_copy_streams=1,
    max_pages_per_block_host=24,
    max_pages_per_block_device=8,
    device_cache_percent=None,
    host_cache_size=None,
    lora_prefetch_dir=None,
)
ExtendedRuntimePerfKnobConfig = _values(
    "ExtendedRuntimePerfKnobConfig",
    multi_block_mode=True,
    enable_context_fmha_fp32_acc=False,
    cuda_graph_mode=False,
    cuda_graph_cache_size=0,
)
DebugConfig = _values(
    "DebugConfig",
    debug_input_tensors=False,
    debug_output_tensors=False,
    debug_tensor_names=None,
    debug_tensors_max_iterations=0,
)
CacheTransceiverConfig = _values(
    "CacheTransceiverConfig",
    backend=None,
    max_tokens_in_buffer=None,
    kv_transfer_timeout_ms=None,
    kv_transfer_sender_future_timeout_ms=None,
)

NAMES = frozenset(
    name
    for name, value in globals().items()
    if isinstance(value, type) and value.__module__ == __name__
)
"""Names of this module that an executor's module exports."""
