"""Which prefill workers hold which beginnings of prompts in their caches, as far as is known.

A worker's own reports are the truth. What was sent to it counts as held until they tell: it is
doubted once its leg is closed, and forgotten unless it is reported soon. Of a worker
that reports nothing, what was sent last is held, as much as its KV cache can.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandem.prefix_blocks import BLOCK_TOKENS, MOST_CHANGES, Blocks, unpacked
from tandem.v1 import worker_pb2
from tandem_router.policies.base import Prompt

if TYPE_CHECKING:
    from tandem_router.core.worker import Worker

BYTES_A_BLOCK = 270
"""What a block that one worker holds takes here at most; measured."""
DEFAULT_BYTES = 256 * 1024 * 1024
MOST_SESSIONS = 65_536
CONFIRM_SECONDS = 1.0
"""A report that comes so long after a leg's close has all that the leg brought. Engines tell of
their caches somewhat later than of the legs.
"""
_LOOKED_AT = 4
"""Holders of one length that are looked at, for each that is asked for."""


@dataclass(slots=True, eq=False)
class Holdings:
    """What one worker's cache holds."""

    blocks: dict[int, bool] = field(default_factory=dict)
    """Whether the worker has said so itself, by block. Those of one that reports nothing are in the
    order in which they were last sent.
    """
    tells: bool = False
    """Whether it says anything of its cache."""
    keeps: bool = True
    """False once the worker has said that it keeps no prefix cache."""
    doubts: deque[tuple[float, Blocks]] = field(default_factory=deque)
    """What the first report from some moment on must have, or else is forgotten."""


class HeldPrefixes:
    """What all workers hold, within a bound of bytes: what was sent or told longest ago is
    forgotten first, of pairs or of aggregated workers, whichever of the two hold more blocks.
    """

    def __init__(self, most_bytes: int = DEFAULT_BYTES) -> None:
        self._most = most_bytes // BYTES_A_BLOCK
        self._holders: dict[bool, OrderedDict[int, tuple[Worker, ...]]] = {
            aggregated: OrderedDict() for aggregated in (False, True)
        }
        """Workers by block, those of pairs and aggregated ones apart: a choice is of either."""
        self._sessions: OrderedDict[int, Worker] = OrderedDict()
        self.count = 0
        """Blocks that are held, once for each worker that holds them."""

    def cut(self, prompt: Prompt, *, aggregated: bool) -> Prompt:
        """The prompt with only the blocks that some worker holds: comparing a worker with the
        shortened prompt takes less time.
        """
        tokens, tenant, blocks, session, request = prompt
        blocks = blocks[: depth_in(blocks, self._holders[aggregated])]
        return Prompt(tokens, tenant, blocks, session, request)  # _replace takes thrice as long

    def holders(self, blocks: Blocks, most: int, *, aggregated: bool) -> Iterator[Sequence[Worker]]:
        """Workers that hold a beginning of a prompt: first the longest that any of them holds, then
        half of that, and so on. Workers of one length come together, and again with shorter ones.
        """
        holders = self._holders[aggregated]
        count = depth_in(blocks, holders)
        while count:
            yield holders[blocks[count - 1]][: -most * _LOOKED_AT - 1 : -1]
            count //= 2
            while count and blocks[count - 1] not in holders:
                count //= 2

    def depth(self, blocks: Blocks) -> int:
        """How many blocks of a prompt some worker holds, from the first on."""
        return max(depth_in(blocks, holders) for holders in self._holders.values())

    @property
    def sessions(self) -> int:
        """How many sessions' last workers are known."""
        return len(self._sessions)

    def forget_session(self, session: int) -> None:
        """A session is over: nothing follows that would go where its last prompt went."""
        self._sessions.pop(session, None)

    def last_of(self, session: int) -> Worker | None:
        """The worker that a session's last prompt was sent to. A request of several sequences is a
        session, too: the one of its number below 0.
        """
        return self._sessions.get(session)

    def send(self, worker: Worker, prompt: Prompt) -> Blocks:
        """A prompt is sent to a worker: soon it holds its blocks. Returns those that it was not
        known to hold, for `settle`.
        """
        holdings, fresh = worker.holdings, []
        if not holdings.keeps:
            return ()
        for session in (prompt.session, -prompt.request):
            if session:
                self._send_of(session, worker)
        blocks, tells = holdings.blocks, holdings.tells
        use = self._holders[worker.aggregated].move_to_end
        for each in reversed(prompt.blocks):  # all of them, however few are new: made short
            if each not in blocks:
                fresh.append(each)
                self._add(worker, each, told=False)
                continue
            use(each)  # others are forgotten first
            if not tells:
                blocks[each] = blocks.pop(each)
        if not holdings.tells and worker.kv_tokens_total:
            self._shrink(worker, worker.kv_tokens_total // BLOCK_TOKENS)
        return fresh

    def _send_of(self, session: int, worker: Worker) -> None:
        self._sessions[session] = worker
        self._sessions.move_to_end(session)
        if len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)

    def settle(self, worker: Worker, fresh: Blocks, now: float) -> None:
        """The leg that was to bring these has closed."""
        if fresh and worker.holdings.tells:
            worker.holdings.doubts.append((now + CONFIRM_SECONDS, fresh))

    def report(self, worker: Worker, changes: worker_pb2.CacheChanges, now: float) -> None:
        """A worker says what its cache holds."""
        holdings = worker.holdings
        holdings.keeps = not changes.keeps_none
        if changes.keeps_none:
            self.forget(worker)
        if changes.anew:
            for each in [block for block, told in holdings.blocks.items() if told]:
                self._remove(worker, each)
        for each in unpacked(changes.left, MOST_CHANGES):
            self._remove(worker, each)
        for each in unpacked(changes.entered, MOST_CHANGES):
            self._add(worker, each, told=True)
        holdings.tells = True
        while holdings.doubts and holdings.doubts[0][0] <= now:
            for each in holdings.doubts.popleft()[1]:
                if holdings.blocks.get(each) is False:
                    self._remove(worker, each)

    def forget(self, worker: Worker) -> None:
        """A worker is gone, or holds nothing."""
        for each in list(worker.holdings.blocks):
            self._remove(worker, each)
        worker.holdings.doubts.clear()

    def _add(self, worker: Worker, block: int, *, told: bool) -> None:
        held = worker.holdings.blocks
        if block in held:
            held[block] = held[block] or told
            return
        held[block] = told
        holders = self._holders[worker.aggregated]
        holders[block] = (*holders.get(block, ()), worker)
        self.count += 1
        while self.count > self._most:
            fullest = max(self._holders.values(), key=len)
            oldest = next(iter(fullest))
            for each in fullest[oldest]:
                self._remove(each, oldest)

    def _remove(self, worker: Worker, block: int) -> None:
        if worker.holdings.blocks.pop(block, None) is None:
            return
        holders = self._holders[worker.aggregated]
        left = tuple([each for each in holders[block] if each is not worker])
        if left:
            holders[block] = left
        else:
            del holders[block]
        self.count -= 1

    def _shrink(self, worker: Worker, most: int) -> None:
        held = worker.holdings.blocks
        while len(held) > most:
            self._remove(worker, next(iter(held)))


def depth_in(blocks: Blocks, held: Container[int]) -> int:
    """How many blocks of a prompt are held, from the first on. Caches let go of a prompt's end
    before its beginning, so a search by halves finds it; where that is not so, maybe fewer.
    """
    if not blocks or blocks[0] not in held:
        return 0
    if blocks[-1] in held:
        return len(blocks)
    low, high = 1, len(blocks)
    while high - low > 1:
        middle = (low + high) // 2
        if blocks[middle - 1] in held:
            low = middle
        else:
            high = middle
    return low
