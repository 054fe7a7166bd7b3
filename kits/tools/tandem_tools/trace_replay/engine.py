"""An engine's time: steps, each of which computes a part of a prompt, and one token more for every
sequence that runs.

Prefill has prompts alone, decode has sequences alone, and a worker that does both makes those that
run wait while it computes a prompt. Steps between which nothing changes are taken together, so that
what a request costs does not grow with its tokens.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from typing import Any

from tandem_tools.trace_replay.agenda import Agenda
from tandem_tools.trace_replay.legs import ReplayedLeg
from tandem_tools.trace_replay.times import Curve, Times


def _nothing(leg: ReplayedLeg) -> Any:
    raise AssertionError("the engine model got no work of that kind")


class ReplayedEngine:
    """One prompt at a time, first come, first served, and all sequences at once."""

    def __init__(self, agenda: Agenda, times: Times, *, chunk_tokens: float = math.inf) -> None:
        """`chunk_tokens`: the most of a prompt that a step computes."""
        self.uncached: Callable[[ReplayedLeg], int] = _nothing
        """Asked as a prompt is begun: how many of its tokens are to be computed."""
        self.computed: Callable[[ReplayedLeg], None] = _nothing
        """Told that a prompt is done, and its first token."""
        self.generated: Callable[[ReplayedLeg], None] = _nothing
        """Told that a sequence's last token is done."""
        self._agenda = agenda
        self._prefill_seconds = Curve(times.prefill_ms)
        self._step_seconds = Curve(times.step_ms)
        self._chunk_tokens = chunk_tokens
        self._prompts: deque[ReplayedLeg] = deque()
        self._prompt: ReplayedLeg | None = None
        """The prompt that is being computed."""
        self._tokens = self._tokens_left = 0
        """How many of it are computed in all, and how many are not begun."""
        self._running: dict[ReplayedLeg, int] = {}
        """Sequences, by the number of the step that makes their last token."""
        self._ends: list[tuple[int, int, ReplayedLeg]] = []
        """A heap of those steps; dropped sequences stay in the heap."""
        self._order = itertools.count()
        self._joining: list[tuple[ReplayedLeg, int]] = []
        """Sequences that run from the next step on, and how many tokens each is to get."""
        self._steps = 0
        """Steps done."""
        self._began = 0.0
        """When the steps began that are under way."""
        self._took = 0.0
        """Seconds that each planned step takes."""
        self._planned = 0
        """How many of them are taken together."""
        self._plan = 0
        """The number of the turn that is noted in the agenda; earlier ones count for nothing."""
        self._busy = False

    def compute(self, leg: ReplayedLeg) -> None:
        """Compute its prompt, when those before it are done."""
        self._prompts.append(leg)
        self._wake()

    def generate(self, leg: ReplayedLeg, tokens: int) -> None:
        """Let a sequence run from the next step on, for so many tokens, 1 at least."""
        self._joining.append((leg, tokens))
        self._wake()

    def drop(self, leg: ReplayedLeg) -> None:
        """Forget a leg. The prompt that is being computed takes its time all the same."""
        if leg in self._prompts:
            self._prompts.remove(leg)
        elif leg in self._running:
            del self._running[leg]
            self._wake()
        else:
            self._joining = [each for each in self._joining if each[0] is not leg]

    def _wake(self) -> None:
        """Something else is to be done, from the end of this step on."""
        if not self._busy:
            self._busy = True
            self._begin()
        elif self._prompt is None:
            done = math.floor((self._agenda.now - self._began) / self._took)
            self._plan_turn(min(self._planned, done + 1))

    def _plan_turn(self, steps: int) -> None:
        """Plan the next turn: after `steps` of the planned steps."""
        self._plan += 1
        self._planned = steps
        moment = max(self._agenda.now, self._began + steps * self._took)
        self._agenda.at(moment, self._turn, self._plan)

    def _turn(self, plan: int) -> None:
        """Take in what these steps have done, and begin the next."""
        if plan != self._plan:
            return
        self._steps += self._planned
        self._end_sequences()
        if self._prompt is not None and not self._tokens_left:
            done, self._prompt = self._prompt, None
            self.computed(done)
        self._begin()

    def _end_sequences(self) -> None:
        ends = self._ends
        while ends and ends[0][0] <= self._steps:
            last, _, leg = heapq.heappop(ends)
            if self._running.get(leg) == last:
                del self._running[leg]
                self.generated(leg)

    def _begin(self) -> None:
        """The next step, or as many as are alike."""
        self._began = self._agenda.now
        for leg, tokens in self._joining:
            self._running[leg] = last = self._steps + tokens
            heapq.heappush(self._ends, (last, next(self._order), leg))
        self._joining.clear()
        if self._prompt is None and self._prompts:
            self._prompt = self._prompts.popleft()
            self._tokens = self._tokens_left = self.uncached(self._prompt)
        running = len(self._running)
        seconds = self._step_seconds(running) if running else 0.0
        if self._prompt is not None:
            self._took = seconds + self._chunk_seconds()
            self._plan_turn(1)
        elif running:
            self._took = seconds
            self._plan_turn(max(1, self._ends[0][0] - self._steps))
        else:
            self._busy = False
            self._plan += 1

    def _chunk_seconds(self) -> float:
        """How long the next part of the prompt takes, which is begun now."""
        part = min(self._tokens_left, self._chunk_tokens)
        self._tokens_left -= int(part)
        return self._prefill_seconds(self._tokens) * part / self._tokens
