"""What chance decides while a world runs: how long things take, and what breaks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from simulated.exceptions import EXCEPTIONS
from simulated.loop import VirtualLoop
from simulated.script import TOKENS_A_STEP
from tandem.engine.base import Role
from tandem.wire.prompt_chunks import ChunkRoom, chunk_bytes

EngineFault = Literal["refuse", "drain", "full", "fail", "cancel", ""]


MOST_PAUSE = 3.1
"""Seconds for which a process may stand still."""


@dataclass(slots=True)
class Dice:
    """One source of chance for a world, so that its seed alone decides."""

    random: random.Random
    loop: VirtualLoop
    faulty: bool
    engine_faults: float
    """The share of an engine's requests that it fails."""
    faults_end: float
    """Nothing breaks later, so that all must come to rest."""

    rooms: random.Random
    """Says how many chunks of prompts each process keeps: a source of its own, as these change
    nothing else.
    """

    trace: Callable[[str], None] | None = None
    """Gets a line for each thing worth telling."""

    excused: Counter[str] = field(default_factory=Counter)
    """Broken rules that exceptions.py lets pass, by the exception's name."""
    spoilt: set[int] = field(default_factory=set)
    """Requests whose output a broken worker spoilt."""
    misled: set[int] = field(default_factory=set)
    """Those to which it gave rows of others, which nobody can see before a number is wrong."""
    deceived: set[int] = field(default_factory=set)
    """Those to which it gave rows and took rows away, so that all numbers may be right in the end:
    whoever makes the output can lie about it.
    """

    quirks: dict[str, str] = field(default_factory=dict)
    """Of workers, by address."""

    garbled: float = 0.0
    """The share of frames that workers spoil."""
    garbles: float = 0.0
    """The share that a worker spoils which is known for it."""
    late_failures: float = 0.0
    """The share of prefill's hand-overs that fail once decode has the KV."""
    breaks_off: float = 0.0
    """The share of an output's steps at which an engine breaks it off."""
    slow_cancels: float = 0.0
    """The share of cancels that an engine takes seconds for."""
    failed_starts: float = 0.0
    """The share of legs that a router cannot say the start of."""

    def fault(self, text: str, excuse: str = "") -> None:
        """A rule is broken. `excuse`: the exception that it would be."""
        if excuse in EXCEPTIONS:
            self.excused[excuse] += 1
            return
        self.loop.faults.append(f"at {self.loop.time():.4f}: {text}")

    @property
    def breaks(self) -> bool:
        return self.faulty and self.loop.time() < self.faults_end

    def chunk_room(self) -> ChunkRoom:
        """For a process that reads prompts: none, so few that they are forgotten, or many."""
        return ChunkRoom(self.rooms.choice((0, 1, 3, 8, 1000)) * chunk_bytes())

    def odds(self, share: float) -> bool:
        """For a fault."""
        return self.breaks and self.random.random() < share

    def think_seconds(self, role: Role) -> float:
        """What an engine takes for a request's prompt, or to fetch its KV."""
        longest = self.random.choice((0.002, 0.02, 0.2) if role is Role.PREFILL else (0.002, 0.02))
        return self.random.random() * longest

    def settle_seconds(self) -> float:
        """What prefill takes until it knows that decode has fetched: decode may be far by then."""
        return self.random.random() * self.random.choice((0.002, 0.02, 0.2, 1.0))

    def step_seconds(self) -> float:
        return self.random.choice((0.01, 0.03, 0.1))

    def tokens_a_step(self) -> int:
        return self.random.choice((1, 1, 1, 2, TOKENS_A_STEP))

    def cancel_seconds(self) -> float:
        """Until an engine lets go of what was cancelled."""
        if self.odds(self.slow_cancels):
            return self.random.choice((3.0, 3.0, 30.0))
        return self.random.choice((0.0, 0.01, 0.1))

    def judge_seconds(self, *, late: bool) -> float:
        return self.random.choice((0.0, 0.001, 0.05, 0.3)) if late else 0.0

    def engine_fault(self, role: Role) -> EngineFault:
        if not self.odds(self.engine_faults):
            return ""
        faults: tuple[EngineFault, ...] = ("refuse", "drain", "full", "fail", "fail", "cancel")
        return self.random.choice(faults)

    def fails_late(self) -> bool:
        """Prefill, of a request that decode has the KV of."""
        return bool(self.late_failures) and self.odds(self.late_failures)

    def engine_breaks_off(self, position: int) -> bool:
        return self.odds(self.breaks_off)

    def later(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        self.loop.later(seconds, call, *args)
