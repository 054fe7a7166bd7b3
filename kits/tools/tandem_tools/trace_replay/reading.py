"""Frontends in virtual time: prompts wait for a process that reads them, and what an earlier prompt
began with is not read again.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tandem.prefix_blocks import BLOCK_TOKENS
from tandem_tools.trace_replay.agenda import Agenda
from tandem_tools.trace_replay.fleet import Frontends
from tandem_tools.trace_replay.legs import ReplayedRequest
from tandem_tools.trace_replay.prefix_cache import ReplayedPrefixCache

SMALL_TOKENS = 4096
"""Prompts up to this are read on the frontend's event loop, and wait for no process."""
MOST_WAITING = 64
"""Prompts that wait for each process; one more is refused."""
STORED_BYTES = 5
"""What the store of earlier prompts takes for a token: its id, its part of a block's number and of
a segment's name."""


@dataclass(slots=True)
class Readings:
    """What all reading came to."""

    prompt_tokens: int = 0
    known_tokens: int = 0
    cpu_seconds: float = 0.0
    waits: list[float] = field(default_factory=list)
    """Seconds that each prompt waited for a process."""

    @property
    def known_rate(self) -> float:
        """The share of prompt tokens that were not read again."""
        return self.known_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class ReplayedReading:
    """The frontends of a fleet."""

    def __init__(self, agenda: Agenda, frontends: Frontends) -> None:
        self.read = Readings()
        self._agenda = agenda
        self._frontends = frontends
        stores = 1 if frontends.sticky else frontends.workers
        blocks = frontends.workers * frontends.store_mb * 2**20 // STORED_BYTES // BLOCK_TOKENS
        self._stores = [ReplayedPrefixCache(blocks // stores) for _ in range(stores)]
        self._lines = [_Line(frontends.processes) for _ in range(frontends.workers)]

    def take(self, request: ReplayedRequest, done: Callable[[], object]) -> bool:
        """Read a prompt; `done` is called once a router may have it. False: it is refused."""
        frontend = random.randrange(len(self._lines))
        store = self._stores[frontend % len(self._stores)]
        begin = partial(self._begin, request, store, done, self._agenda.now)
        if request.prompt_tokens <= SMALL_TOKENS:
            begin(lambda: None)
            return True
        return self._lines[frontend].ask(begin)

    def _begin(
        self,
        request: ReplayedRequest,
        store: ReplayedPrefixCache,
        done: Callable[[], object],
        came: float,
        leave: Callable[[], object],
    ) -> None:
        """`leave` is called once the process is free again."""
        known = min(store.match(request.blocks) * BLOCK_TOKENS, request.prompt_tokens)
        fresh, costs = request.prompt_tokens - known, self._frontends
        seconds = (fresh * costs.fresh_ms + known * costs.known_ms) / 1e6
        self.read.prompt_tokens += request.prompt_tokens
        self.read.known_tokens += known
        self.read.cpu_seconds += seconds
        self.read.waits.append(self._agenda.now - came)
        self._agenda.after(seconds, self._end, request.blocks, store, (done, leave))

    def _end(
        self,
        blocks: Sequence[int],
        store: ReplayedPrefixCache,
        told: Sequence[Callable[[], object]],
    ) -> None:
        store.add(blocks)
        for each in told:
            each()


class _Line:
    """Who waits for one frontend's processes."""

    def __init__(self, processes: int) -> None:
        self._free = processes
        self._most = MOST_WAITING * processes
        self._waiting: deque[Callable[[Callable[[], object]], object]] = deque()

    def ask(self, begin: Callable[[Callable[[], object]], object]) -> bool:
        """Call `begin` with what gives the process back, once one is free. False: too many wait."""
        if not self._free and len(self._waiting) >= self._most:
            return False
        self._waiting.append(begin)
        self._go_on()
        return True

    def _go_on(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._waiting.popleft()(self._leave)

    def _leave(self) -> None:
        self._free += 1
        self._go_on()
