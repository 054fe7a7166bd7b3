"""Which models SGLang hands KV over for between phases of unequal tensor parallelism.

Of grouped-query attention it writes the heads that a rank of decode has, of latents (MLA) the whole
of them to each. What else a layer keeps it writes as it is, or not at all, and finds that out at
the first hand-over (`NixlKVManager.maybe_send_extra`).
"""

from __future__ import annotations

from typing import Any

from sglang.srt.arg_groups.overrides import model_config_of, resolved_view
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.configs.model_config import AttentionArch, is_minimax_sparse

from tandem.errors import StartError


def check(server_args: Any) -> None:
    """`server_args` are resolved. Raises StartError for a model with more than plain attention."""
    config = model_config_of(server_args)
    if why := _objection(config, resolved_view(server_args).kv_cache_dtype):
        raise StartError(
            f"{config.hf_config.architectures[0]}: SGLang hands its KV over between equal ranks "
            f"alone, because {why}: leave engine option decode_tensor_parallel at 0"
        )


def _objection(config: Any, kv_dtype: str) -> str:
    if mambaish_config(config) is not None:
        return "some layers keep a state"
    if config.is_hybrid_swa:
        return "some layers see a window"
    if is_minimax_sparse(config.hf_config):
        return "its layers keep an index"
    if config.attention_arch not in (AttentionArch.MHA, AttentionArch.MLA):
        return "it has no attention"
    if kv_dtype == "mxfp8" and config.attention_arch is AttentionArch.MHA:
        return "its KV has scales beside it"
    return ""
