"""The requests that one process has in an SGLang engine, and what comes of them.

SGLang's tokenizer manager runs in the process's event loop, its schedulers elsewhere. Each request
has a task that waits for its end; tokens before that are handed on as they come (outputs.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tandem.engine.base import Delta, EngineRequest, RankLoad, Role, Step, waiting
from tandem.engine.mailbox import Mailbox
from tandem.errors import EngineError
from tandem.tasks import Tasks
from tandem.v1 import worker_pb2
from tandem_sglang import requests, validation
from tandem_sglang.launch import Launched
from tandem_sglang.outputs import RunningRows
from tandem_sglang.processors import Processors
from tandem_sglang.request_stream import RequestStream
from tandem_sglang.units import OUTPUTS
from tandem_sglang.validation import EngineBounds

if TYPE_CHECKING:
    from tandem_sglang.inbox import Inbox


class Traffic:
    """The part of tandem.engine.base.Engine that is about requests: they are submitted, followed
    and ended. With the tasks that this takes. Lives on the event loop.
    """

    def __init__(self, role: Role, processors: Processors, data_ranks: int, sharers: int) -> None:
        """`sharers`: processes that have requests in the same engine."""
        self._role = role
        self._processors = processors
        self._data_ranks = DataRanks(data_ranks, role)
        self._sharers = sharers
        self._begins = requests.FIRST
        self._endpoint: tuple[str, int] | None = None
        self._launched: Launched | None = None
        self._bounds: EngineBounds | None = None
        self._inbox: Inbox | None = None
        self._streams: dict[str, RequestStream] = {}
        """By SGLang's names."""
        self.tasks = Tasks()
        self._mailbox = Mailbox()
        self._stepped = 0.0
        """When the last deltas came."""
        self._retractions = 0
        """Retractions of ended requests."""

    def begin(
        self,
        launched: Launched,
        bounds: EngineBounds,
        *,
        endpoint: tuple[str, int] | None = None,
        begins: str = requests.FIRST,
    ) -> None:
        """The engine runs: receive from it, instead of SGLang's auto_create_handle_loop, which
        takes SIGTERM and SIGQUIT for itself and kills the process tree on either.

        `endpoint`: where a PREFILL engine begins hand-overs. `begins`: how names of requests do.
        """
        from tandem_sglang.inbox import Inbox  # needs what comes with SGLang

        self._launched, self._bounds = launched, bounds
        self._endpoint, self._begins = endpoint, begins
        manager = launched.manager
        manager.event_loop = asyncio.get_running_loop()
        if not launched.lacks(OUTPUTS):
            self._inbox = Inbox(manager.recv_from_detokenizer, self._take)
            manager.recv_from_detokenizer = self._inbox
        self.tasks.start(self._handle(manager))

    def submit(self, request: EngineRequest) -> None:
        """Raises RequestError, as an Engine does."""
        assert self._launched is not None, "submit before start"
        assert self._bounds is not None
        validation.check(request, self._bounds)
        fields = requests.fields(
            request,
            role=self._role,
            endpoint=self._endpoint,
            processor=self._launched.processor,
            steering=self._processors.steering(
                request.logits,
                request.embedding_bias,
                max_tokens=request.sampling.max_tokens,
            ),
            rank=self._data_ranks.take(request),
            begins=self._begins,
        )
        stream = RequestStream(
            request,
            role=self._role,
            manager=self._launched.manager,
            sglang_request=self._launched.messages.GenerateReqInput(**fields),
            emit=self._emit,
        )
        self._streams[fields["rid"]] = stream
        self.tasks.start(stream.run())

    def cancel(self, request_id: int) -> None:
        stream = self._streams.get(requests.rid(request_id, self._begins))
        if stream is not None:
            stream.cancel()

    async def hand_on(self, take: Callable[[Step], object]) -> None:
        """Until `close`. Raises EngineError after `die`, and what `take` raises."""
        await self._mailbox.hand_on(take)

    def load(self) -> worker_pb2.Load:
        """What its schedulers said, of which this process has a share, or without that what follows
        from what was submitted and came back. A step of decode shows by its tokens; prefill's do
        not show before a prompt is done, so it does not tell their age.
        """
        streams = self._streams.values()
        tokenless = sum(stream.generated == 0 for stream in streams)
        load = worker_pb2.Load(open_legs=len(streams))
        if ranks := self.ranks():
            # Rounded up: one that waits is seen by all, and none of them says more than it has.
            everybody = -(-waiting(self._role, ranks) // self._sharers)
            load.waiting_legs = min(everybody, len(streams))
            load.kv_tokens_used = sum(rank.kv_tokens_used for rank in ranks) // self._sharers
            load.kv_tokens_total = sum(rank.kv_tokens_total for rank in ranks) // self._sharers
        else:
            load.waiting_legs = tokenless
            load.kv_tokens_used = sum(each.prompt_length + each.generated for each in streams)
            capacity = self._launched.capacity if self._launched else 0
            load.kv_tokens_total = capacity // self._sharers
        if self._role is not Role.PREFILL:
            runs = tokenless < len(streams)
            load.step_age_ms = round((time.monotonic() - self._stepped) * 1000) if runs else 0
        return load

    def ranks(self) -> tuple[RankLoad, ...]:
        """What the schedulers said of themselves, of all processes' requests together."""
        return () if self._launched is None else read_load(self._launched.manager)

    @property
    def retractions(self) -> int:
        """How often requests of this process were taken out of the batch."""
        return self._retractions + sum(each.retractions for each in self._streams.values())

    def die(self, reason: str) -> None:
        """Nothing comes any more: whoever hands on is told why."""
        self._mailbox.fail(
            EngineError(f"SGLang failed: {reason}; the lines printed before say more")
        )

    async def close(self) -> None:
        """End all tasks, and `hand_on`."""
        self._mailbox.close()
        await self.tasks.close()
        if self._inbox is not None:
            self._inbox.ignore()

    async def _handle(self, manager: Any) -> None:
        try:
            await manager.handle_loop()
        except Exception as error:  # noqa: BLE001 - of SGLang: without this loop nothing arrives
            self.die(f"its receiving loop raised {type(error).__name__}: {error}")

    def _take(self, rows: RunningRows) -> None:
        """Requests that have ended here meanwhile are passed over."""
        step = []
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
                delta = stream.take(token_ids, cached_tokens, retractions, hand_over)
                if delta is not None:
                    step.append(delta)
        self._stepped = time.monotonic()
        self._mailbox.give(step)

    def _emit(self, delta: Delta) -> None:
        if delta.end is not None:
            stream = self._streams.pop(requests.rid(delta.request_id, self._begins))
            self._retractions += stream.retractions
            self._data_ranks.leave(delta.request_id)
        self._stepped = time.monotonic()
        self._mailbox.put([delta])


class DataRanks:
    """A rank keeps a request's KV, so it has all of the request."""

    def __init__(self, count: int, role: Role) -> None:
        self._role = role
        self._open = [0] * count
        self._of: dict[int, int] = {}

    def take(self, request: EngineRequest) -> int | None:
        """The rank that `request` goes to: in prefill its room says so, because decode goes by the
        room too, and elsewhere the one with the fewest. None: there is one alone.
        """
        if len(self._open) == 1:
            return None
        if self._role is Role.PREFILL:
            rank = request.room % len(self._open)
        else:
            rank = self._open.index(min(self._open))
        self._open[rank] += 1
        self._of[request.request_id] = rank
        return rank

    def leave(self, request_id: int) -> None:
        """The request of that number has ended."""
        if (rank := self._of.pop(request_id, None)) is not None:
            self._open[rank] -= 1


_USAGE_ROUNDING = 0.0001
"""SGLang rounds `token_usage` to four digits."""


def read_load(manager: Any) -> tuple[RankLoad, ...]:
    """What each rank last said of its load, by SGLang's TokenizerManager; empty: none has said
    anything. The first scheduler of each data-parallel rank writes a snapshot into shared memory
    after each prefill step, after each 15 steps of decode, every 50 ms while nothing can be
    computed, and once there is nothing to do. To read it sends nothing and asks nobody.
    """
    snapshots = manager.load_snapshot_reader.read_all()
    return tuple(_rank(each) for each in snapshots if each.timestamp)


def _rank(snapshot: Any) -> RankLoad:
    phase, drafted = snapshot.disaggregation, snapshot.speculative
    return RankLoad(
        rank=snapshot.dp_rank,
        running=snapshot.num_running_reqs,
        queued=snapshot.queues.waiting + snapshot.queues.grammar,
        preallocating=phase.prefill_bootstrap_queue_reqs + phase.decode_prealloc_queue_reqs,
        transferring=phase.prefill_inflight_queue_reqs + phase.decode_transfer_queue_reqs,
        retracted=phase.decode_retracted_queue_reqs,
        kv_tokens_used=_used(snapshot),
        kv_tokens_total=snapshot.max_total_num_tokens,
        accept_length=None if drafted is None else drafted.accept_length,
    )


def _used(snapshot: Any) -> int:
    """Where a model has two pools, such as one for a sliding window, SGLang says the tokens of
    either, and the share of the fuller one: that is the one to fill first.
    """
    used: int = snapshot.num_used_tokens
    total, share = snapshot.max_total_num_tokens, float(snapshot.token_usage)
    rounded = abs(used - share * total) <= _USAGE_ROUNDING * total
    return used if rounded else round(share * total)
