"""Starting and stopping vLLM's engine process: the only module of the worker's own process that
imports vllm, and it does so when an engine starts.

All of it happens in one thread that lives as long as the engine: a start takes tens of seconds, and
the engine process asks the kernel to kill it when the *thread* that made it ends.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tandem.errors import InvalidRequestError, StartError

TESTED = "0.32."
_GRACE_SECONDS = 0.5
"""vLLM's own teardown takes longer than any grace, and nothing is left to be torn down in order."""
_STOP_SECONDS = 10.0
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

    def made(
        self,
        name: str,
        token_ids: Sequence[int],
        sampling: Mapping[str, Any],
        *,
        cache_salt: str | None = None,
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
            lora_request=None,
            cache_salt=cache_salt,
            data_parallel_rank=None,
            abort_immediately=abort_immediately,
        )

    async def drop(self, names: Sequence[str]) -> None:
        """End requests without an output, and wait until the scheduler has done so. Bounded."""
        await self.client.abort_requests_async(list(names))
        async with asyncio.timeout(_BARRIER_SECONDS):
            await self.client.call_utility_async("get_supported_tasks")  # answered in order


class EngineThread:
    """The thread that starts an engine, keeps its process alive, and stops it."""

    def __init__(self, arguments: Mapping[str, Any], *, seconds: float) -> None:
        """`arguments`: of AsyncEngineArgs. `seconds`: a start may take so long."""
        self._arguments = arguments
        self._seconds = seconds
        self._others = set(multiprocessing.active_children())
        self._started: Future[Launched] = Future()
        self._ended: Future[None] = Future()
        self._launching = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vllm-engine", daemon=True)

    async def start(self) -> Launched:
        """Load the model. Raises StartError; what vLLM printed before says more.

        Cancelled, or out of time, it leaves the start running until `stop`.
        """
        self._thread.start()
        started = asyncio.wrap_future(self._started)
        started.add_done_callback(_seen)
        await asyncio.wait([started], timeout=self._seconds)
        if not started.done():
            raise StartError(
                f"vLLM has not started in {self._seconds:g} s: raise engine option load_seconds "
                "where the model is still being loaded"
            )
        return started.result()

    async def stop(self) -> None:
        """End vLLM's process, also in the middle of a start. Bounded."""
        self._stop.set()
        if not self._launching.is_set():
            return  # still importing: the thread ends by itself, before it makes a process
        ended = asyncio.wrap_future(self._ended)
        deadline = asyncio.get_running_loop().time() + _STOP_SECONDS
        while not ended.done() and asyncio.get_running_loop().time() < deadline:
            if not self._started.done():
                self._kill()  # the start then fails
            await asyncio.wait([ended], timeout=0.1)

    def _run(self) -> None:
        launched = None
        try:
            launched = self._launch()
            self._started.set_result(launched)
            self._stop.wait()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the start has failed
            if not self._started.done():
                self._started.set_exception(_start_error(error))
        finally:
            if launched is not None:
                launched.client.shutdown(_GRACE_SECONDS)
            self._kill()
            self._ended.set_result(None)

    def _launch(self) -> Launched:
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.sampling_params import SamplingParams
        from vllm.v1.engine import EngineCoreRequest
        from vllm.v1.engine.core_client import EngineCoreClient
        from vllm.v1.executor import Executor

        if not vllm.__version__.startswith(TESTED):
            raise StartError(f"this kit is for vLLM {TESTED}x, and {vllm.__version__} is installed")
        state = random.getstate()
        config = AsyncEngineArgs(**self._arguments).create_engine_config()
        random.setstate(state)  # vLLM seeds this process too
        self._launching.set()
        if self._stop.is_set():
            raise StartError("vLLM was closed while it started")
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
        )

    def _kill(self) -> None:
        """Kill the children of this engine that are left."""
        for child in multiprocessing.active_children():
            if child not in self._others:
                child.kill()
                child.join(_STOP_SECONDS)


def _seen(started: asyncio.Future[Any]) -> None:
    """Look at what came of a start for which nobody may wait any more."""
    if not started.cancelled():
        started.exception()


def _start_error(error: BaseException) -> StartError:
    if isinstance(error, StartError):
        return error
    if isinstance(error, ModuleNotFoundError):
        message = (
            f"the vllm engine cannot be imported ({error}): `make vllm` in a checkout, else the "
            "packages that docs/engines/vllm.md names"
        )
    else:
        message = (
            f"vLLM did not start ({type(error).__name__}: {error}); the lines printed before say "
            "more"
        )
    wrapped = StartError(message)
    wrapped.__cause__ = error
    return wrapped
