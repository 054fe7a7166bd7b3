"""Starting and stopping vLLM's engine process: the only module of the worker's own process that
imports vllm, and it does so when an engine starts.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.engine.lora import LoraAdapter
from tandem.engine.thread import EngineThread
from tandem.errors import InvalidRequestError, StartError
from tandem_vllm.options import ModelRunner

_ASKED = {
    "EngineCoreRequest": ("abort_immediately", "cache_salt", "lora_request"),
    "AsyncMPClient": (
        "abort_requests_async",
        "add_request_async",
        "call_utility_async",
        "get_output_async",
        "shutdown",
    ),
    "LogitsContext": ("idx_mapping_np", "input_ids", "seq_lens_upper_bound_np"),
    "LogitsProcRequestState": ("all_token_ids", "prefill_len", "prompt_len"),
}
"""What Tandem uses of vLLM's classes, and not every release has: releases differ less than their
numbers do.
"""
_GRACE_SECONDS = 0.5
"""vLLM's own teardown takes longer than any grace, and nothing is left to be torn down in order."""
_BARRIER_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A running vLLM engine, as its thread hands it to the loop."""

    client: Any
    """AsyncMPClient."""
    version: str
    dtype: str
    kv_dtype: str
    page_size: int
    pages: int
    context_length: int
    vocabulary: int
    request: Any
    """EngineCoreRequest."""
    sampling: Any
    """SamplingParams."""
    adapters: Mapping[str, Any] = field(default_factory=dict)
    """LoRARequest of each adapter, by its name."""

    def made(
        self,
        name: str,
        token_ids: Sequence[int],
        sampling: Mapping[str, Any],
        *,
        cache_salt: str | None = None,
        lora_adapter: str = "",
        abort_immediately: bool = False,
    ) -> Any:
        """A request of vLLM's. Raises InvalidRequestError where vLLM refuses its parameters."""
        try:
            params = self.sampling(**sampling)
        except ValueError as error:
            raise InvalidRequestError(f"vLLM refuses the request: {error}") from error
        return self.request(
            request_id=name,
            prompt_token_ids=list(token_ids),
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=self.adapters[lora_adapter] if lora_adapter else None,
            cache_salt=cache_salt,
            data_parallel_rank=None,
            abort_immediately=abort_immediately,
        )

    async def drop(self, names: Sequence[str]) -> None:
        """End requests without an output, and wait until the scheduler has done so. Bounded."""
        await self.client.abort_requests_async(list(names))
        async with asyncio.timeout(_BARRIER_SECONDS):
            await self.client.call_utility_async("get_supported_tasks")  # answered in order


def check_release(version: str, *classes: Any) -> None:
    """Raises StartError where classes of vLLM lack what Tandem uses."""
    lacking = [
        f"{each.__name__}.{name}"
        for each in classes
        for name in _ASKED[each.__name__]
        if not hasattr(each, name) and name not in getattr(each, "__dataclass_fields__", ())
    ]
    if lacking:
        raise StartError(
            f"vLLM {version}, which is installed, lacks {', '.join(lacking)}: see the releases that"
            " docs/engines/vllm.md names"
        )


def _of_runner(runner: ModelRunner) -> list[Any]:
    """The classes whose fields a runner's processors read. Raises StartError where there are none:
    such a release runs V2 without processors.
    """
    if runner is ModelRunner.V1:
        return []
    try:
        from vllm.v1.worker.gpu.sample.logits_processor import interface
    except ImportError:
        raise StartError(
            "engine option model_runner: the vLLM that is installed has no processors for v2"
        ) from None
    return [interface.LogitsContext, interface.LogitsProcRequestState]


class VllmThread(EngineThread[Launched]):
    """See EngineThread."""

    name = "vLLM"
    needed = "`make vllm` in a checkout, else the packages that docs/engines/vllm.md names"

    def __init__(
        self,
        arguments: Mapping[str, Any],
        *,
        seconds: float,
        lora_adapters: Sequence[LoraAdapter] = (),
        runner: ModelRunner = ModelRunner.V1,
    ) -> None:
        """`arguments`: of AsyncEngineArgs. `seconds`: a start may take so long."""
        super().__init__(seconds)
        self._arguments = arguments
        self._lora_adapters = lora_adapters
        self._runner = runner

    def _close(self, launched: Launched) -> None:
        launched.client.shutdown(_GRACE_SECONDS)

    def _launch(self) -> Launched:
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import SamplingParams
        from vllm.v1.engine import EngineCoreRequest
        from vllm.v1.engine.core_client import AsyncMPClient, EngineCoreClient
        from vllm.v1.executor import Executor

        used = (EngineCoreRequest, AsyncMPClient, *_of_runner(self._runner))
        check_release(vllm.__version__, *used)
        state = random.getstate()
        config = AsyncEngineArgs(**self._arguments).create_engine_config()
        random.setstate(state)  # vLLM seeds this process too
        self._begin_launch()
        client: Any = EngineCoreClient.make_async_mp_client(
            config, Executor.get_class(config), log_stats=True
        )
        dtype = str(config.model_config.dtype).removeprefix("torch.")
        kv_dtype = str(config.cache_config.cache_dtype)
        return Launched(
            client=client,
            version=vllm.__version__,
            dtype=dtype,
            kv_dtype=dtype if kv_dtype == "auto" else kv_dtype,
            page_size=config.cache_config.block_size,
            pages=config.cache_config.num_gpu_blocks - 1,  # one of them is no request's
            context_length=config.model_config.max_model_len,
            vocabulary=config.model_config.get_vocab_size(),
            request=EngineCoreRequest,
            sampling=SamplingParams,
            adapters={
                each.name: LoRARequest(each.name, number, str(each.path))
                for number, each in enumerate(self._lora_adapters, 1)
            },
        )
