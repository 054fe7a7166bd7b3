"""Thousands of simulated runs of the router's core, and proof that they would notice a broken one.

A failing seed is replayed with its trace by `python tests/simulation/replay.py SEED`.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from router_invariants import InvariantError
from router_world import World

from router.core import machine
from router.core.events import Submit
from router.core.fleet import Worker
from router.core.lifecycle import Lifecycle
from router.core.machine import Core
from router.core.sequences import Leg, Sequence, Stage
from router.core.state import State
from router.core.values import Outcome, Phase
from tandem.errors import QueueFullError, TandemError

SEEDS = 2_000
BLOCK = 250
SEEDS_TO_NOTICE = 300
REPLAY = Path(__file__).with_name("replay.py")


def _run(seed: int) -> Core:
    world = World(seed)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"replay it: python tests/simulation/replay.py {seed}")
        raise
    return world.core


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_every_rule_holds_after_every_event(first: int) -> None:
    for seed in range(first, first + BLOCK):
        _run(seed)


def test_the_seeds_reach_every_end_that_a_request_and_a_leg_can_have() -> None:
    requests: Counter[str] = Counter()
    legs: Counter[tuple[Phase, Outcome]] = Counter()
    retries = overdue = rejected = requeued = 0
    for seed in range(150):
        counts = _run(seed).state.counts
        requests.update(counts.requests)
        legs.update(counts.legs)
        retries += counts.retries
        overdue += counts.settle_overdue
        requeued += counts.requeued
        rejected += sum(counts.pairs_rejected.values())
    assert requests.keys() >= {
        "finished",
        "terminated",
        "cancelled",
        "deadline_exceeded",
        "worker_lost",
        "queue_full",
        "no_pair",
        "model_not_found",
        "context_length_exceeded",
        "kv_transfer_failed",
        "hook_failed",
    }
    assert legs.keys() == {(phase, outcome) for phase in Phase for outcome in Outcome} - {
        (Phase.PREFILL, Outcome.REGENERATE)
    }
    assert min(retries, overdue, rejected, requeued) > 5


def test_a_seed_replays_exactly() -> None:
    def trace() -> list[str]:
        lines: list[str] = []
        World(7, trace=lines.append).run()
        return lines

    first = trace()
    assert len(first) > 100
    assert trace() == first


def test_the_replay_command_prints_the_trace_and_the_verdict() -> None:
    shown = subprocess.run(
        [sys.executable, REPLAY, "7"], capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    assert "StartLeg" in "".join(shown)
    assert shown[-1] == "seed 7 holds"


# --- a core with one broken rule -------------------------------------------------------------


def _other_leg_is_not_cancelled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lifecycle, "_cancel_legs", lambda self, sequence, reason: None)


def _slot_is_released_at_the_cancel(patch: pytest.MonkeyPatch) -> None:
    cancel_legs = Lifecycle._cancel_legs

    def broken(self: Lifecycle, sequence: Sequence, reason: str) -> None:
        cancel_legs(self, sequence, reason)
        for leg in (sequence.prefill, sequence.decode):
            if leg is not None:
                leg.worker.legs.discard(leg.number)

    patch.setattr(Lifecycle, "_cancel_legs", broken)


def _slot_is_released_twice(patch: pytest.MonkeyPatch) -> None:
    forget = Lifecycle._forget

    def broken(self: Lifecycle, leg: Leg, outcome: Outcome) -> None:
        forget(self, leg, outcome)
        if leg.worker.legs:
            leg.worker.legs.pop()

    patch.setattr(Lifecycle, "_forget", broken)


def _slot_is_never_released(patch: pytest.MonkeyPatch) -> None:
    forget = Lifecycle._forget

    def broken(self: Lifecycle, leg: Leg, outcome: Outcome) -> None:
        forget(self, leg, outcome)
        if outcome is Outcome.CANCELLED:
            leg.worker.legs.add(leg.number)

    patch.setattr(Lifecycle, "_forget", broken)


def _deadline_is_missed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Core, "_expire", lambda self: None)


def _retry_does_not_wait_for_the_old_legs(patch: pytest.MonkeyPatch) -> None:
    def broken(self: Lifecycle, sequence: Sequence) -> None:
        if sequence.stage is Stage.RETRYING:
            sequence.stage = Stage.QUEUED
            self._state.waiting.add(sequence)
            self.may_start = True

    patch.setattr(Lifecycle, "_retry_when_settled", broken)


def _retry_after_the_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lifecycle, "started", lambda self, leg: None)


def _release_is_sent_twice(patch: pytest.MonkeyPatch) -> None:
    release = Lifecycle._release

    def broken(self: Lifecycle, sequence: Sequence) -> None:
        release(self, sequence)
        if sequence.decode is not None:
            sequence.decode.held = True

    patch.setattr(Lifecycle, "_release", broken)


def _sequence_ends_twice(patch: pytest.MonkeyPatch) -> None:
    end_request = Lifecycle.end_request

    def broken(self: Lifecycle, request: Any, **how: Any) -> None:
        for sequence in request.sequences:
            if sequence.stage is Stage.ENDED and request.open:
                self.end(sequence, **how)
        end_request(self, request, **how)

    patch.setattr(Lifecycle, "end_request", broken)


def _room_is_kept(patch: pytest.MonkeyPatch) -> None:
    forget = Lifecycle._forget

    def broken(self: Lifecycle, leg: Leg, outcome: Outcome) -> None:
        room = leg.sequence.room
        forget(self, leg, outcome)
        self._state.rooms.add(room)

    patch.setattr(Lifecycle, "_forget", broken)


def _queue_has_no_bound(patch: pytest.MonkeyPatch) -> None:
    refusal = machine.admission.refusal

    def broken(state: State, submit: Submit) -> TandemError | None:
        error = refusal(state, submit)
        return None if isinstance(error, QueueFullError) else error

    patch.setattr(machine.admission, "refusal", broken)


def _slots_of_other_routers_are_overlooked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Worker, "free", property(lambda worker: worker.capacity - len(worker.legs)))


def _worker_is_told_again_that_it_is_paired(patch: pytest.MonkeyPatch) -> None:
    fleet_changed = Core._fleet_changed

    def broken(self: Core) -> None:
        for worker in self.state.fleet.workers.values():
            worker.paired = False
        fleet_changed(self)

    patch.setattr(Core, "_fleet_changed", broken)


BROKEN_RULES: list[Callable[[pytest.MonkeyPatch], None]] = [
    _other_leg_is_not_cancelled,
    _slot_is_released_at_the_cancel,
    _slot_is_released_twice,
    _slot_is_never_released,
    _deadline_is_missed,
    _retry_does_not_wait_for_the_old_legs,
    _retry_after_the_start,
    _release_is_sent_twice,
    _sequence_ends_twice,
    _room_is_kept,
    _queue_has_no_bound,
    _slots_of_other_routers_are_overlooked,
    _worker_is_told_again_that_it_is_paired,
]


@pytest.mark.parametrize("break_rule", BROKEN_RULES, ids=lambda rule: rule.__name__.strip("_"))
def test_a_core_with_a_broken_rule_is_noticed(
    break_rule: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    for seed in range(SEEDS_TO_NOTICE):
        try:
            World(seed).run()
        except InvariantError:
            return
    pytest.fail(f"{SEEDS_TO_NOTICE} seeds did not notice it")
