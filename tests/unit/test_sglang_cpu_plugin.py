"""kits/sglang-cpu: each shim is still needed with the installed SGLang and NIXL, and is applied.

SGLang only logs a hook that it cannot apply, so nothing else would notice. Everything runs in fresh
processes, because hooks stay applied for the life of one. Those that look at SGLang are forked.
"""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import fork_server
import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(240)]

# Prints one JSON object of what SGLang and NIXL do in that process, after `load_plugins` if asked.
# The idle agent is made as SGLang makes it. Whether a thread of its process wants to run is looked
# at, and not what CPU time it gets: that depends on what else the machine does.
LOOK = """
import inspect, json, os, sys, threading, time
from collections import Counter
from types import SimpleNamespace
import torch
from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t
from sglang.srt.disaggregation.nixl import conn
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.lora import layers
from sglang.srt.lora.backend import torch_backend
from sglang.srt.lora.lora_manager import LoRAManager
from sglang.srt.plugins import load_plugins

sys.modules.pop("tandem_sglang_cpu", None)  # a fork has what the fork server found

def prepared(latents, decode_ranks):
    # How two ranks of prefill get ready to write into host memory of decode's.
    ways = []
    manager = SimpleNamespace(
        is_mla_backend=latents, is_hybrid_mla_backend=False, attn_tp_size=2, src_mem_kind="DRAM",
        kv_args=SimpleNamespace(kv_item_lens=[8]), prep_handles={"": 1}, _num_slots_src=1,
        _build_transfer_dst_indices=lambda **_: [0],
        _init_equal_tp_prep_handle=lambda *_, mem_kind, **__: ways.append(["equal", mem_kind]),
        _init_hetero_tp_prep_handle=lambda *_, src_mem_kind, dst_mem_kind: ways.append(
            ["unequal", src_mem_kind, dst_mem_kind]
        ),
    )
    peer = SimpleNamespace(
        agent_name="decode", gpu_id=0, requires_dcp_relayout=False, decode_tp_size=decode_ranks,
        dst_kv_item_lens=[8], dst_kv_mem_kinds=["DRAM"], dst_kv_ptrs=[0], dst_num_slots=None,
    )
    try:
        conn.NixlKVManager._prepare_payload_xfer(manager, peer)
    except NotImplementedError as error:
        return [str(error)]
    return [*ways, peer.dst_homogeneous_mem_kind]

def padding():
    # How long attention says that a sequence of padding is.
    class Runner:
        def __getattr__(self, name):
            return None

    backend = TorchNativeAttnBackend(Runner())
    try:
        return backend.get_cpu_graph_seq_len_fill_value()
    except AttributeError:
        return "unknown"

def polls():
    # How often NIXL is asked in a poll of decode, where SGLang reads no answers, and where it does.
    asked = []
    agent = SimpleNamespace(get_new_notifs=lambda: asked.append(1))
    for reads in ({}, {"update_transfer_status": None}):
        receiver = SimpleNamespace(
            conclude_state=4, _lifecycle_lock=threading.Lock(),
            _poll=lambda: 4, kv_mgr=SimpleNamespace(agent=agent, **reads),
        )
        asked.append(0)
        conn.NixlKVReceiver.poll(receiver)
    return asked

def pinned():
    # What LoRA's modules get where they ask for pinned memory, once there is a manager.
    try:
        LoRAManager()
    except TypeError:
        pass
    ways = [
        lambda: layers.torch.tensor([1, 2], pin_memory=True, device="cpu"),
        lambda: torch_backend.torch.zeros(2, pin_memory=True),
        lambda: torch.ones(2).pin_memory(),
    ]
    found = []
    for way in ways:
        try:
            found.append(way().tolist())
        except RuntimeError:
            found.append("refused")
    return found

def busy():
    # The share of looks at which the busiest thread beside this one was running, or ready to run.
    seen = Counter()
    for _ in range(50):
        time.sleep(0.02)
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/stat") as said:
                seen[task] += said.read().rpartition(")")[2].split()[0] == "R"
    del seen[str(os.getpid())]
    return max(seen.values(), default=0) / 50

def look():
    config = nixl_agent_config(
        backends=[], num_threads=0, sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
    )
    agent = nixl_agent("idle", config)
    agent.create_backend("UCX", {})
    idle = busy()
    asked = [nixl_agent_config(True, True), nixl_agent_config(enable_prog_thread=True)]
    return {
        "kinds": conn._normalize_kv_mem_kinds(None, 3),
        "parameters": list(inspect.signature(conn._normalize_kv_mem_kinds).parameters),
        "thread": config.enable_pthread,
        "idle_busy": idle,
        "asked": [[each.enable_pthread, each.enable_listen] for each in asked],
        "prepared": [prepared(False, 1), prepared(False, 2), prepared(True, 1)],
        "pinned": pinned(),
        "polls": polls(),
        "padding": padding(),
        "gpu": torch.cuda.is_available(),
    }

"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter, without SGLang's switches unless they are given."""
    inherited = {name: value for name, value in os.environ.items() if "SGLANG" not in name}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | {"HF_HUB_OFFLINE": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def answer(code: str, **environment: str) -> Any:
    """The JSON that `code` prints last."""
    result = run(code, **environment)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def stock() -> dict[str, Any]:
    """What SGLang does without the plugin, and (`after`) with it where the engine is a GPU's."""
    return answer(
        LOOK + "before = look(); load_plugins(); print(json.dumps(before | {'after': look()}))",
        SGLANG_PLUGINS="tandem_sglang_cpu",
        **{fork_server.OTHERS: "yes"},
    )


@pytest.fixture(scope="module")
def shimmed() -> dict[str, Any]:
    return answer(
        LOOK + "load_plugins(); print(json.dumps(look()))",
        SGLANG_USE_CPU_ENGINE="1",
        SGLANG_PLUGINS="tandem_sglang_cpu",
        **{fork_server.OTHERS: "yes"},
    )


def test_stock_sglang_calls_host_memory_vram(stock: dict[str, Any]) -> None:
    assert stock["kinds"] == ["VRAM", "VRAM", "VRAM"], "SGLang names host memory: drop the shim"
    assert stock["parameters"] == ["kinds", "expected_len"]


def test_the_plugin_calls_host_memory_dram(shimmed: dict[str, Any]) -> None:
    assert shimmed["kinds"] == ["DRAM", "DRAM", "DRAM"]


def test_a_stock_nixl_agent_keeps_a_core_busy_while_idle(stock: dict[str, Any]) -> None:
    assert stock["thread"] is True
    assert stock["idle_busy"] > 0.9, "NIXL no longer spins: drop the shim"


def test_the_plugin_makes_an_idle_agent_quiet(shimmed: dict[str, Any]) -> None:
    assert shimmed["thread"] is False
    assert shimmed["idle_busy"] < 0.5


def test_the_progress_thread_is_off_also_where_the_caller_asks_for_it(
    stock: dict[str, Any], shimmed: dict[str, Any]
) -> None:
    assert stock["asked"] == [[True, True], [True, False]]
    assert shimmed["asked"] == [[False, True], [False, False]]


def test_stock_sglang_writes_to_unequal_ranks_in_a_devices_memory_alone(
    stock: dict[str, Any],
) -> None:
    unequal, *others = stock["prepared"]
    assert "not implemented" in unequal[0], "SGLang writes to unequal ranks' hosts: drop the shim"
    assert others == [[["equal", "DRAM"], "DRAM"]] * 2


def test_the_plugin_has_unequal_ranks_of_attention_written_to_in_host_memory(
    shimmed: dict[str, Any],
) -> None:
    unequal, *others = shimmed["prepared"]
    assert unequal == [["unequal", "DRAM", "DRAM"], "DRAM"]
    assert others == [[["equal", "DRAM"], "DRAM"]] * 2


def test_stock_attention_for_cpus_knows_no_length_of_padding(stock: dict[str, Any]) -> None:
    assert stock["padding"] == "unknown", "data-parallel ranks can pad on a CPU: drop the shim"


def test_the_plugin_has_padding_as_long_as_a_token(shimmed: dict[str, Any]) -> None:
    assert shimmed["padding"] == 1


def test_stock_lora_pins_memory_which_takes_a_driver(stock: dict[str, Any]) -> None:
    if stock["gpu"]:
        pytest.skip("memory can be pinned for a GPU")
    assert stock["pinned"] == ["refused"] * 3, "memory can be pinned without a GPU: drop the shim"


def test_the_plugin_pins_no_memory_for_lora(shimmed: dict[str, Any]) -> None:
    assert shimmed["pinned"] == [[1, 2], [0, 0], [1, 1]]


def test_the_plugin_has_each_poll_of_decode_ask_nixl_where_sglang_does_not(
    stock: dict[str, Any], shimmed: dict[str, Any]
) -> None:
    assert stock["polls"] == [0, 0]
    assert shimmed["polls"] == [0, 1, 0]


def test_the_plugin_changes_nothing_where_the_engine_is_not_a_cpu_engine(
    stock: dict[str, Any],
) -> None:
    assert stock["after"]["kinds"] == stock["kinds"]
    assert stock["after"]["thread"] is True
    assert stock["after"]["prepared"] == stock["prepared"]
    assert stock["after"]["pinned"] == stock["pinned"]
    assert stock["after"]["polls"] == [0, 0]
    assert stock["after"]["padding"] == stock["padding"]


def test_sglang_cannot_load_its_scheduler_without_some_sgl_kernel() -> None:
    code = """
import sys
sys.modules["sgl_kernel"] = None
import sglang.srt.managers.scheduler
"""
    result = run(code, SGLANG_USE_CPU_ENGINE="1")
    assert result.returncode != 0, "SGLang no longer imports sgl_kernel: drop the stub"
    assert "sgl_kernel" in result.stderr


def test_the_real_kernels_are_not_installed_here() -> None:
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("sglang-kernel")


def test_the_stub_has_every_name_and_no_kernel() -> None:
    code = """
import json, sgl_kernel, sgl_kernel.elementwise.deep
from sgl_kernel.scalar_type import scalar_types
from sgl_kernel import rmsnorm
assert sgl_kernel.rmsnorm is rmsnorm and scalar_types.uint4b8
try:
    rmsnorm(1, out=2)
except RuntimeError as error:
    print(json.dumps(str(error)))
"""
    assert "sgl_kernel.rmsnorm needs a GPU" in answer(code)


@pytest.mark.parametrize(
    "use", ["import tandem_sglang_cpu as p; p.register()", "import sgl_kernel"]
)
def test_it_refuses_to_be_used_beside_the_gpu_build(use: str, tmp_path: Path) -> None:
    installed = tmp_path / "sglang_kernel-0.4.7.dist-info"
    installed.mkdir()
    lines = ["Metadata-Version: 2.1", "Name: sglang-kernel", "Version: 0.4.7", ""]
    installed.joinpath("METADATA").write_text("\n".join(lines))

    result = run(use, SGLANG_USE_CPU_ENGINE="1", PYTHONPATH=str(tmp_path))

    assert result.returncode != 0
    assert "must not be installed beside sglang-kernel 0.4.7" in result.stderr
    assert "pip uninstall tandem-sglang-cpu" in result.stderr
