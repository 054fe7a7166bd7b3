"""The passing of time: prompts are prefilled one after the other, running sequences step together.

Both wait on an event while there is nothing to do; an idle engine has no timer at all.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterable

from tandem.engine.base import Delta, Logprobs, PromptLogprobs
from tandem.engine.mailbox import Mailbox
from tandem.errors import TandemError
from tandem_sim.faults import CRASH_STATUS, Fault, Faults
from tandem_sim.model import SimModel, TokenLogprob
from tandem_sim.sequence import SequenceStage, SimSequence

_MAX_BEHIND_SECONDS = 0.05
"""A schedule that is later than this is not made up for: the machine was too slow, or asleep."""
_PROMPTS_A_TURN = 16
_LONG_PROMPT = 4096
"""Tokens."""
_SCORED_AT_ONCE = 256
"""Tokens of a prompt whose log-probabilities are computed in one turn of the loop."""


class Troubles:
    """The faults that hit computing, and the switches as they are set now."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self._active = faults.active()
        self._relieved = asyncio.Event()

    def set(self, faults: Faults) -> None:
        """Change the faults, which also ends a stall that lasts for ever."""
        self.faults = faults
        self._active = faults.active()
        self._relieved.set()

    def chosen(self, index: int) -> frozenset[Fault]:
        """The faults that hit request `index`, counted from 1."""
        seed = self.faults.seed
        return frozenset(
            fault
            for fault, selector in self._active
            if selector.hits(index, salt=f"{seed}:{fault.value}")
        )

    async def strike(self, sequences: Iterable[SimSequence]) -> None:
        """Stall, once for each sequence that shall."""
        for sequence in sequences:
            if Fault.STALL in sequence.faults:
                sequence.faults -= {Fault.STALL}
                await self._stall()
                return

    def slowness(self, sequences: Iterable[SimSequence]) -> float:
        """Seconds that this computation takes longer."""
        if any(Fault.SLOW in sequence.faults for sequence in sequences):
            return self.faults.slow_ms / 1000
        return 0.0

    def crash(self, sequences: Iterable[SimSequence], at: str) -> None:
        if self.faults.crash_at == at and any(Fault.CRASH in each.faults for each in sequences):
            os._exit(CRASH_STATUS)

    async def _stall(self) -> None:
        self._relieved.clear()
        try:
            async with asyncio.timeout(self.faults.stall_seconds or None):
                await self._relieved.wait()
        except TimeoutError:
            return


class RunnerPace:
    """When a runner last got on with its work."""

    def __init__(self) -> None:
        self._stepped: float | None = None

    def step(self) -> None:
        """The runner has made a step, or begins now after it had nothing to do."""
        self._stepped = time.monotonic()

    def rest(self) -> None:
        """The runner has nothing to do."""
        self._stepped = None

    @property
    def age(self) -> float:
        """Seconds since its last step; 0 while it rests."""
        return 0.0 if self._stepped is None else time.monotonic() - self._stepped


class PrefillRunner:
    """Prompts in the order they came, one at a time, as a GPU that is busy with each."""

    def __init__(
        self,
        model: SimModel,
        troubles: Troubles,
        *,
        computed: Callable[[SimSequence], None],
        failed: Callable[[SimSequence, TandemError], None],
    ) -> None:
        self._model = model
        self._troubles = troubles
        self._computed = computed
        self._failed = failed
        self._queue: deque[SimSequence] = deque()
        self._turn = 0
        self._ready = asyncio.Event()
        self.pace = RunnerPace()

    def add(self, sequence: SimSequence) -> None:
        self._queue.append(sequence)
        self._ready.set()

    @property
    def waiting(self) -> int:
        """Prompts that are not begun."""
        return sum(each.stage is SequenceStage.PREFILL for each in self._queue)

    async def run(self) -> None:
        while True:
            await self._ready.wait()
            self._ready.clear()
            clock = time.monotonic()
            while self._queue:
                self.pace.step()
                await self._give_way(len(self._queue[0].request.context))
                clock = await self._serve(self._queue.popleft(), clock)
            self.pace.rest()

    async def _serve(self, sequence: SimSequence, clock: float) -> float:
        if sequence.stage is SequenceStage.PREFILL:
            began = time.monotonic()
            sequence.times.queue = began - sequence.since
            clock = await self._take_time(sequence, clock)
            sequence.times.compute = time.monotonic() - began
        if sequence.stage is SequenceStage.PREFILL:  # it may have ended meanwhile
            await self._compute(sequence)
        return clock

    async def _give_way(self, tokens: int) -> None:
        """Prompts that take no time are computed some together, so that they are answered together,
        and the loop still turns. A long one is computed alone.
        """
        self._turn = (self._turn + 1) % _PROMPTS_A_TURN
        if self._turn == 0 or tokens > _LONG_PROMPT:
            await asyncio.sleep(0)

    async def _take_time(self, sequence: SimSequence, clock: float) -> float:
        """Wait until `clock` plus the prompt's time, and return that moment."""
        alone = (sequence,)
        self._troubles.crash(alone, "prefill")
        if Fault.STALL in sequence.faults:
            await self._troubles.strike(alone)
            clock = time.monotonic()
        options = self._model.options
        tokens = self._model.recall(sequence)
        took = (options.prefill_base_ms + options.prefill_ms_per_token * tokens) / 1000
        took += self._troubles.slowness(alone)
        return await _sleep_until(clock + took) if took else clock

    async def _compute(self, sequence: SimSequence) -> None:
        try:
            self._model.prefill(sequence)
        except TandemError as error:
            self._failed(sequence, error.with_traceback(None))
            return
        if sequence.request.sampling.HasField("prompt_logprobs"):
            await self._score(sequence)
        if sequence.stage is SequenceStage.PREFILL:  # it may have ended meanwhile
            self._computed(sequence)

    async def _score(self, sequence: SimSequence) -> None:
        """A part of the prompt at once: the loop turns between them."""
        token_ids = sequence.request.token_ids
        scores: list[tuple[float, list[TokenLogprob]]] = []
        for begin in range(1, len(token_ids), _SCORED_AT_ONCE):
            if sequence.stage is not SequenceStage.PREFILL:
                return
            end = min(begin + _SCORED_AT_ONCE, len(token_ids))
            scores += self._model.score(sequence, range(begin, end))
            await asyncio.sleep(0)
        sequence.prompt_logprobs = PromptLogprobs(
            token_ids, Logprobs([chosen for chosen, _ in scores], [top for _, top in scores])
        )


class DecodeRunner:
    """All running sequences step together, at times that do not drift."""

    def __init__(
        self,
        model: SimModel,
        troubles: Troubles,
        mailbox: Mailbox,
        *,
        ended: Callable[[list[SimSequence]], None],
    ) -> None:
        self._model = model
        self._troubles = troubles
        self._mailbox = mailbox
        self._ended = ended
        self._running: dict[int, SimSequence] = {}
        self._ready = asyncio.Event()
        self.pace = RunnerPace()

    def add(self, sequence: SimSequence) -> None:
        self._running[sequence.id] = sequence
        self._ready.set()

    def remove(self, sequence: SimSequence) -> None:
        self._running.pop(sequence.id, None)

    def __len__(self) -> int:
        return len(self._running)

    async def run(self) -> None:
        while True:
            await self._ready.wait()
            clock = time.monotonic()
            while self._running:
                self.pace.step()
                clock = await self._take_time(clock)
                await self._mailbox.drained()
                deltas = self._step()
                if deltas:
                    self._mailbox.put(deltas)
            self.pace.rest()
            self._ready.clear()

    async def _take_time(self, clock: float) -> float:
        options = self._model.options
        took = (options.step_ms + options.step_ms_per_sequence * len(self._running)) / 1000
        faulty = [each for each in self._running.values() if each.faults]
        if faulty:
            if any(Fault.STALL in each.faults for each in faulty):
                await self._troubles.strike(faulty)
                clock = time.monotonic()
            took += self._troubles.slowness(faulty)
            self._troubles.crash(faulty, "decode")
        return await _sleep_until(clock + took)

    def _step(self) -> list[Delta]:
        deltas, ended = self._model.step(self._running.values())
        if ended:
            for sequence in ended:
                del self._running[sequence.id]
            self._ended(ended)
        return deltas


async def _sleep_until(moment: float) -> float:
    """Sleep, at least for one turn of the loop. Returns the moment, or now if that is long past."""
    now = time.monotonic()
    await asyncio.sleep(max(0.0, moment - now))
    return moment if now - moment < _MAX_BEHIND_SECONDS else now
