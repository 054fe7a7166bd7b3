"""SGLang behind the engine protocol, in either phase or with both in one process.

SGLang's tokenizer manager runs in the worker's event loop, its schedulers in child processes. Each
request has a task that waits for its end; tokens before that are taken as they come (outputs.py).
Whatever has arrived when the consumer of `steps` comes back is one step, so a slow consumer gets
fewer and larger ones.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from tandem.engine.base import (
    Delta,
    EngineDescription,
    EngineFigures,
    EngineRequest,
    EngineSettings,
    RankLoad,
    Role,
    Step,
    waiting,
)
from tandem.engine.sglang import describe, requests, validation
from tandem.engine.sglang.data_ranks import DataRanks
from tandem.engine.sglang.launch import EngineThread, Launched
from tandem.engine.sglang.load import read as read_load
from tandem.engine.sglang.outputs import RunningRows
from tandem.engine.sglang.request_stream import RequestStream
from tandem.engine.sglang.setup import Setup
from tandem.engine.sglang.validation import EngineBounds
from tandem.errors import EngineError, StartError
from tandem.v1 import worker_pb2

log = logging.getLogger(__name__)


class SglangEngine:
    """See tandem.engine.base.Engine.

    SIGTERM and SIGINT stay the worker's: none of SGLang's handlers is ever installed. SIGQUIT, by
    which SGLang's processes report that one of them died, is the engine's while it runs and ends
    `steps` with EngineError, within about a second.
    """

    def __init__(self, role: Role, settings: EngineSettings) -> None:
        """This is the leader of `settings.nodes`.

        Raises ConfigError for options that are unknown or impossible, StartError for logits
        processors that could not run.
        """
        self._role = role
        self._settings = settings
        self._setup = Setup(role, settings)
        self._endpoint: tuple[str, int] | None = None
        self._data_ranks = DataRanks(self._setup.parallel.data, role)
        self._streams: dict[str, RequestStream] = {}
        """By SGLang's names."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending: list[Delta] = []
        self._arrived = asyncio.Event()
        self._failure: EngineError | None = None
        self._closed = False
        self._thread: EngineThread | None = None
        self._launched: Launched | None = None
        self._bounds: EngineBounds | None = None
        self._states: Any = None
        self._stepped = 0.0
        """When the last deltas came."""
        self._retractions = 0
        """Those of requests that have ended."""

    async def start(self) -> EngineDescription:
        """Takes tens of seconds, while the loop runs on. Raises StartError, saying what to do."""
        self._endpoint = self._setup.endpoint()
        self._thread, self._states = self._setup.thread(
            bootstrap_port=self._endpoint[1] if self._endpoint else 0
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGQUIT, self._on_report, self._thread)
        if self._setup.cache is not None:
            self._own(self._setup.cache.follow())
        try:
            self._launched = await self._thread.start()
            self._bounds = describe.bounds(
                self._launched, role=self._role, seeded=self._setup.seeded
            )
            description = describe.description(
                self._launched,
                self._bounds,
                model_path=self._settings.model_path,
                model_name=self._settings.model_name,
                max_sequences=self._settings.max_sequences,
                kv_endpoint=requests.format_endpoint(*self._endpoint) if self._endpoint else "",
                prefixes=self._setup.prefix_log(),
                ranks=self._setup.kv_ranks,
                stages=self._setup.prefill_stages,
                lora_adapters=self._settings.lora_adapters,
            )
            self._run_manager(self._launched.manager)
            await self._warm_up(self._launched, self._bounds)
        except StartError:
            await self.close()
            raise
        self._launched.freeze_schedulers()
        if not self._ranks():
            log.warning("SGLang's schedulers do not say their load: it is estimated")
        return description

    async def _warm_up(self, launched: Launched, bounds: EngineBounds) -> None:
        """Raises StartError, also where SGLang fails meanwhile."""
        warming = self._own(self._setup.warm_up(launched, bounds))
        failed = asyncio.get_running_loop().create_task(self._arrived.wait())
        try:
            await asyncio.wait({warming, failed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            failed.cancel()
        if not warming.done():
            raise StartError(str(self._failure))
        warming.result()

    def submit(self, request: EngineRequest) -> None:
        assert self._launched is not None, "submit before start"
        assert self._bounds is not None
        validation.check(request, self._bounds)
        steering = self._setup.processors.steering(request.logits, request.embedding_bias)
        fields = requests.fields(
            request,
            role=self._role,
            endpoint=self._endpoint,
            processor=self._launched.processor,
            steering=steering,
            rank=self._data_ranks.take(request),
        )
        stream = RequestStream(
            request,
            role=self._role,
            manager=self._launched.manager,
            sglang_request=self._launched.new_request(**fields),
            emit=self._emit,
        )
        self._streams[fields["rid"]] = stream
        self._own(stream.run())

    def cancel(self, request_id: int) -> None:
        stream = self._streams.get(requests.rid(request_id))
        if stream is not None:
            stream.cancel()

    async def steps(self) -> AsyncIterator[Step]:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            if self._pending:
                # Not bounded by a length: it holds at most what open requests may still generate.
                step, self._pending = self._pending, []
                self._stepped = time.monotonic()
                yield step
            if self._failure is not None:
                raise self._failure
            if self._closed:
                return

    def load(self) -> worker_pb2.Load:
        """What its schedulers said, or without that what follows from what was submitted and came
        back. A step of decode shows by its tokens; prefill's do not show before a prompt is done,
        so it does not tell their age.
        """
        streams = self._streams.values()
        tokenless = sum(stream.generated == 0 for stream in streams)
        load = worker_pb2.Load(open_legs=len(streams))
        if ranks := self._ranks():
            load.waiting_legs = min(waiting(self._role, ranks), len(streams))
            load.kv_tokens_used = sum(rank.kv_tokens_used for rank in ranks)
            load.kv_tokens_total = sum(rank.kv_tokens_total for rank in ranks)
        else:
            load.waiting_legs = tokenless
            load.kv_tokens_used = sum(each.prompt_length + each.generated for each in streams)
            load.kv_tokens_total = self._launched.capacity if self._launched else 0
        if self._role is not Role.PREFILL:
            runs = tokenless < len(streams)
            load.step_age_ms = round((time.monotonic() - self._stepped) * 1000) if runs else 0
        return load

    def figures(self) -> EngineFigures:
        """The logits states are those in the scheduler's memory."""
        return EngineFigures(
            logits_states=0 if self._states is None else sum(self._states),
            retractions=self._retractions + sum(e.retractions for e in self._streams.values()),
            ranks=self._ranks(),
        )

    def _ranks(self) -> tuple[RankLoad, ...]:
        return () if self._launched is None else read_load(self._launched.manager)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._arrived.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._launched is not None and self._settings.nodes.count > 1:
            await self._launched.dismiss_schedulers()
        if self._thread is not None:
            await self._thread.stop()
            asyncio.get_running_loop().remove_signal_handler(signal.SIGQUIT)

    def _run_manager(self, manager: Any) -> None:
        """Instead of SGLang's auto_create_handle_loop, which takes SIGTERM and SIGQUIT for itself
        and kills the process tree on either."""
        manager.event_loop = asyncio.get_running_loop()
        dispatcher = manager._result_dispatcher
        dispatcher += type(dispatcher)([(RunningRows, self._take)])
        self._own(self._handle(manager))

    async def _handle(self, manager: Any) -> None:
        try:
            await manager.handle_loop()
        except Exception as error:  # noqa: BLE001 - of SGLang: without this loop nothing arrives
            self._die(f"its receiving loop raised {type(error).__name__}: {error}")

    def _on_report(self, thread: EngineThread) -> None:
        self._die("one of its processes ended")
        thread.give_up()

    def _die(self, reason: str) -> None:
        self._failure = EngineError(f"SGLang failed: {reason}; what it printed before says more")
        self._arrived.set()

    def _take(self, rows: RunningRows) -> None:
        """Requests that have ended here meanwhile are passed over."""
        columns = zip(
            rows.rids,
            rows.token_ids,
            rows.cached_tokens,
            rows.retractions,
            rows.hand_overs,
            strict=True,
        )
        for rid, token_ids, cached_tokens, retractions, hand_over in columns:
            if (stream := self._streams.get(rid)) is not None:
                stream.take(
                    token_ids,
                    cached_tokens=cached_tokens,
                    retractions=retractions,
                    hand_over=hand_over,
                )

    def _emit(self, delta: Delta) -> None:
        if delta.end is not None:
            stream = self._streams.pop(requests.rid(delta.request_id))
            self._retractions += stream.retractions
            self._data_ranks.leave(delta.request_id)
        self._pending.append(delta)
        self._arrived.set()

    def _own(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
