"""One request's life in SGLang: its stream is read, its time bounded, and it ends exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from tandem.engine.base import Delta, Ending, EngineRequest, PromptLogprobs, Role
from tandem.errors import EngineError
from tandem_sglang import chunks, requests
from tandem_sglang.chunks import HAND_OVER_KEY, Ended
from tandem_sglang.outputs import HandOver

ABORT_AGAIN_SECONDS = 0.25
"""An abort can miss a request that moves from one queue of the scheduler to the next."""
ABANDON_SECONDS = 5.0
"""When SGLang does not answer aborts for so long, the request ends without it."""


class RequestStream:
    """A submitted request. `run` is its task; all of it happens in the worker's loop."""

    def __init__(
        self,
        request: EngineRequest,
        *,
        role: Role,
        manager: Any,
        sglang_request: Any,
        emit: Callable[[Delta], None],
    ) -> None:
        self._request = request  # its forms count as in use for as long
        self._role = role
        self._manager = manager
        self._sglang_request = sglang_request
        self._emit = emit
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cause: Ended | None = None  # we asked for the end, and this is it
        self._abandon_at = 0.0
        self._scores_prompt = requests.scores_prompt(request, role)
        self.prompt_length = len(request.token_ids) + len(request.made)
        self.generated = 0
        self.retractions = 0
        """How often it was taken out of the batch, as far as its output has told."""

    async def run(self) -> None:
        """Emits the request's deltas, the last one with its end, unless the task is cancelled from
        outside: then the engine closes, and nothing more is emitted."""
        self._task = asyncio.current_task()
        expiry = asyncio.get_running_loop().call_later(self._request.timeout_seconds, self._expire)
        try:
            ended = self._cause is None and await self._read()
        except asyncio.CancelledError:
            if self._cause is None:
                raise
            ended = False
        except Exception as error:  # noqa: BLE001 - whatever SGLang raises ends this request alone
            if not isinstance(error, EngineError):
                error = EngineError(f"SGLang raised {type(error).__name__}: {error}")
            self._cause = self._cause or Ended(Ending.FAILED, error, True)
            ended = False
        finally:
            expiry.cancel()
            if self._timer is not None:
                self._timer.cancel()
        if not ended:
            lost = Ended(
                Ending.FAILED, EngineError("SGLang ended the stream without a reason"), True
            )
            self._finish(self._cause or lost)

    def cancel(self) -> None:
        """Ends it with CANCELLED: within a fraction of a second, or one step of the scheduler where
        that takes longer, in whatever state it is."""
        self._stop(Ended(Ending.CANCELLED))

    def take(
        self,
        token_ids: Sequence[int],
        cached_tokens: int,
        retractions: int,
        hand_over: HandOver,
    ) -> Delta | None:
        """What a row of RunningRows brings; None: the request is being ended. To be told before
        anything that has come later.
        """
        self.retractions = retractions
        if self._cause is not None:
            return None
        self.generated += len(token_ids)
        kv = chunks.hand_over_of(hand_over) if hand_over else None
        return Delta(self._request.request_id, token_ids, kv=kv, cached_tokens=cached_tokens)

    async def _read(self) -> bool:
        """True when a delta with an end was emitted."""
        stream = self._manager.generate_request(self._sglang_request, None)
        async with aclosing(stream):  # a generator left open keeps its request running
            async for chunk in stream:
                if await self._take(chunk["output_ids"], chunk["meta_info"]):
                    return True
        return False

    async def _take(self, token_ids: list[int], meta_info: Mapping[str, Any]) -> bool:
        end = chunks.end_of(meta_info)
        self.retractions = meta_info.get("num_retractions", self.retractions)
        prompt = None
        if self._scores_prompt and token_ids and (end is None or end.error is None):
            self._scores_prompt = False
            prompt = await self._prompt(meta_info)
        if self._cause is not None:
            if end is not None:
                self._finish(self._cause)
            return end is not None
        if end is not None and end.error is not None:
            self._finish(end)
            return True
        self.generated += len(token_ids)
        self._emit(
            Delta(
                self._request.request_id,
                token_ids,
                end=None if end is None else end.ending,
                logprobs=chunks.logprobs_of(meta_info, len(token_ids), self._request.sampling),
                kv=chunks.hand_over_of(meta_info.get(HAND_OVER_KEY)),
                cached_tokens=meta_info.get("cached_tokens", 0),
                prompt_logprobs=prompt,
            )
        )
        return end is not None

    async def _prompt(self, meta_info: Mapping[str, Any]) -> PromptLogprobs:
        """Read in a thread: of a long prompt there is much."""
        request = self._request
        return await asyncio.to_thread(
            chunks.prompt_logprobs_of,
            meta_info,
            request.token_ids,
            request.sampling.prompt_logprobs,
        )

    def _finish(self, end: Ended) -> None:
        retryable = end.retryable and self.generated == 0
        self._emit(
            Delta(
                self._request.request_id, (), end=end.ending, error=end.error, retryable=retryable
            )
        )

    def _expire(self) -> None:
        started = self.generated > 0
        error = chunks.deadline(self._role, started=started, seconds=self._request.timeout_seconds)
        self._stop(Ended(Ending.FAILED, error, retryable=not started))

    def _stop(self, cause: Ended) -> None:
        if self._cause is not None:
            return
        self._cause = cause
        self._abandon_at = asyncio.get_running_loop().time() + ABANDON_SECONDS
        if self._task is not None:
            self._abort()

    def _abort(self) -> None:
        assert self._task is not None
        loop = asyncio.get_running_loop()
        state = self._manager.rid_to_state.get(self._sglang_request.rid)
        if state is None or not state.dispatched or loop.time() >= self._abandon_at:
            self._task.cancel()  # the scheduler has not seen it, has ended it, or does not answer
            return
        state.abort_sent = False
        self._manager.abort_request(self._sglang_request.rid)
        self._timer = loop.call_later(ABORT_AGAIN_SECONDS, self._abort)
