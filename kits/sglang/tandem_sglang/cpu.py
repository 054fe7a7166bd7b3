"""Whether SGLang was really made fit for a machine without a GPU.

The distribution tandem-sglang-cpu does that through SGLang's plugins, whose failures SGLang only
logs. Without it the engine starts all the same, then fails at its first hand-over, or keeps a core
busy while idle.
"""

from __future__ import annotations

from sglang.srt.plugins.hook_registry import HookRegistry

from tandem.errors import StartError

HOOKS = (
    "nixl._api.nixl_agent_config.__init__",
    "sglang.srt.disaggregation.nixl.conn.NixlKVManager._prepare_payload_xfer",
    "sglang.srt.disaggregation.nixl.conn._normalize_kv_mem_kinds",
)


def verify() -> None:
    """Call it after SGLang has loaded its plugins. Raises StartError, which says what to do."""
    if missing := sorted(set(HOOKS) - HookRegistry._patched):
        raise StartError(
            f"SGLang on cpu needs the plugin tandem-sglang-cpu (not hooked: {', '.join(missing)}): "
            "run `pip install ./kits/sglang-cpu` in this environment"
        )
