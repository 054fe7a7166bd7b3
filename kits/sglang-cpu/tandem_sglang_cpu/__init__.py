"""SGLang plugin: what its disaggregated engine needs on a machine without a GPU.

SGLang calls `register` in every process of an engine, before the scheduler is built. Hooks that
cannot be applied are only logged by SGLang, so tests/unit/test_sglang_cpu_plugin.py asserts that
these are.
"""

import os
from collections.abc import Callable, Sequence
from importlib import metadata
from types import ModuleType
from typing import Any

KV_MEMORY_KINDS = "sglang.srt.disaggregation.nixl.conn._normalize_kv_mem_kinds"
UNEQUAL_RANKS = "sglang.srt.disaggregation.nixl.conn.NixlKVManager._prepare_payload_xfer"
NIXL_AGENT_CONFIG = "nixl._api.nixl_agent_config.__init__"
NIXL_RECEIVER = "sglang.srt.disaggregation.nixl.conn.NixlKVReceiver.poll"
ATTENTION = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.__init__"
LORA_MANAGER = "sglang.srt.lora.lora_manager.LoRAManager.__init__"
REAL_KERNELS = "sglang-kernel"


class RealKernelsInstalledError(RuntimeError):
    """The GPU build of SGLang is installed too, and our stub would hide its `sgl_kernel`."""


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`.

    Raises:
        RealKernelsInstalledError: the distribution `sglang-kernel` is installed.
    """
    refuse_beside_real_kernels()
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        return
    # Imported late: the check above must work even where SGLang's own import would fail.
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(KV_MEMORY_KINDS, all_dram, HookType.REPLACE)
    HookRegistry.register(UNEQUAL_RANKS, between_unequal_ranks, HookType.AROUND)
    # A hook on a class may only replace it, hence on its __init__.
    HookRegistry.register(NIXL_AGENT_CONFIG, without_progress_thread, HookType.AROUND)
    HookRegistry.register(NIXL_RECEIVER, with_progress, HookType.AROUND)
    HookRegistry.register(ATTENTION, with_padding_length, HookType.AROUND)
    HookRegistry.register(LORA_MANAGER, without_pinned_memory, HookType.AROUND)


def refuse_beside_real_kernels() -> None:
    try:
        version = metadata.version(REAL_KERNELS)
    except metadata.PackageNotFoundError:
        return
    raise RealKernelsInstalledError(
        f"tandem-sglang-cpu must not be installed beside {REAL_KERNELS} {version}: both own the "
        f"package sgl_kernel. On a GPU machine run `pip uninstall tandem-sglang-cpu` and then "
        f"reinstall {REAL_KERNELS}."
    )


def all_dram(kinds: Sequence[str] | None, expected_len: int) -> list[str]:
    """Every KV buffer is host memory; SGLang names each `VRAM`, which NIXL cannot register here."""
    if kinds is not None and len(kinds) != expected_len:
        raise ValueError(f"{len(kinds)} memory kinds for {expected_len} KV buffers")
    return ["DRAM"] * expected_len


def between_unequal_ranks(original: Callable[..., None], manager: Any, peer: Any) -> None:
    """Between ranks that hold unequal shares of the KV heads SGLang writes to a device's memory
    alone. What it prepares for that serves here as well, once it is told of host memory.
    """
    if manager.is_mla_backend or peer.decode_tp_size == manager.attn_tp_size:
        original(manager, peer)
        return
    peer.dst_homogeneous_mem_kind = "DRAM"
    manager._init_hetero_tp_prep_handle(
        peer.agent_name, peer, src_mem_kind="DRAM", dst_mem_kind="DRAM"
    )


def without_progress_thread(
    original: Callable[..., None], config: object, *args: Any, **kwargs: Any
) -> None:
    """NIXL's progress thread polls without a pause: one busy core in each idle worker.

    SGLang asks NIXL for the state of every transfer it started, and asking makes progress too; for
    decode, `with_progress` asks.
    """
    if args:
        args = (False, *args[1:])
    else:
        kwargs["enable_prog_thread"] = False
    original(config, *args, **kwargs)


def with_progress(original: Callable[..., Any], receiver: Any, *args: Any, **kwargs: Any) -> Any:
    """From 0.5.23 decode asks NIXL nothing: prefill itself tells when it has written. Without the
    progress thread nothing would arrive, so each poll of a hand-over asks, and drops the answer.
    Until 0.5.23 is the oldest: where SGLang reads the answers itself, it is left to.
    """
    if not hasattr(receiver.kv_mgr, "update_transfer_status"):
        receiver.kv_mgr.agent.get_new_notifs()
    return original(receiver, *args, **kwargs)


def with_padding_length(
    original: Callable[..., None], backend: Any, *args: Any, **kwargs: Any
) -> None:
    """Data-parallel ranks pad their batches to the longest, and ask how long a sequence of padding
    is. Of the backends for CPUs the one that uses AMX alone says so: as long as a token.
    """
    original(backend, *args, **kwargs)
    backend.get_cpu_graph_seq_len_fill_value = lambda: 1


class Unpinned(ModuleType):
    """torch, but for memory that is pinned for a GPU: without its driver torch refuses to."""

    def __init__(self, torch: Any) -> None:
        super().__init__("torch")
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def tensor(self, *args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return self._torch.tensor(*args, **kwargs)

    def zeros(self, *args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return self._torch.zeros(*args, **kwargs)


def without_pinned_memory(
    original: Callable[..., None], manager: object, *args: Any, **kwargs: Any
) -> None:
    """LoRA's own backend for CPUs pins what it would copy to a GPU."""
    from sglang.srt.lora import layers
    from sglang.srt.lora.backend import torch_backend

    torch: Any = layers.torch
    for module in (layers, torch_backend):
        module.torch = Unpinned(torch)  # type: ignore[attr-defined]
    torch.Tensor.pin_memory = lambda tensor, *_: tensor
    original(manager, *args, **kwargs)
