"""vLLM plugin for machines without a GPU: NIXL without its progress thread.

vLLM calls `register` in every process of an engine. NIXL's agents make progress whenever vLLM asks
them what has arrived, which it does all the time while KV moves.
"""

import functools
import os
from typing import Any

ON_CPU = "TANDEM_VLLM_ON_CPU"
"""Set by tandem_vllm where vLLM computes on CPUs."""


def register() -> None:
    """Entry point of the group `vllm.general_plugins`."""
    if os.environ.get(ON_CPU) != "1":
        return
    if os.environ.get("TRITON_INTERPRET") == "1":
        from vllm.v1.sample.ops import topk_topp_sampler

        topk_topp_sampler.HAS_TRITON = False  # PyTorch cuts: the interpreter cannot run that kernel
    from nixl._api import nixl_agent_config  # imported late: vLLM runs without NIXL, too

    if hasattr(nixl_agent_config.__init__, "__wrapped__"):
        return  # vLLM has called already
    original = nixl_agent_config.__init__

    @functools.wraps(original)
    def without_progress_thread(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs | {"enable_prog_thread": False})

    nixl_agent_config.__init__ = without_progress_thread
