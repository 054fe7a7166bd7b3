"""The worker's core on its own: its drawing, and what holds whatever happens in whatever order."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from tandem.byte_budget import ByteBudget
from tandem.engine.base import Delta, Ending, EngineRequest
from tandem.errors import EngineError, HookError, TandemError, WorkerError
from tandem.hooks.deferred import Ruling, Work
from tandem.hooks.piece import Piece
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.core import leg
from tandem.worker.core.leg import NEXT, Leg, LegStage, Start
from tandem.worker.core.machine import WorkerCore
from tandem.worker.core.output import SequenceOutput
from tandem_decode_worker.rules import DecodeRules
from tandem_prefill_worker.rules import PrefillRules

CLOSED = "closed"


def test_the_drawing_shows_every_state_and_the_table_leaves_none_out() -> None:
    drawn = set(re.findall(r"\b[A-Z]{4,}\b", leg.__doc__ or "")) - {"NEXT"}
    assert drawn == {stage.name for stage in LegStage}
    assert NEXT.keys() == set(LegStage)
    reached = {LegStage.WAITING}
    while grown := {after for stage in reached for after in NEXT[stage]} - reached:
        reached |= grown
    assert reached == set(LegStage)
    assert [stage for stage in LegStage if not NEXT[stage]] == [LegStage.CLOSED]


class World:
    """One core, and what must hold of every effect that it asks for."""

    def __init__(self, seed: int, *, phase: str, hooked: bool, memory: int = 10**9) -> None:
        self.draw = random.Random(seed)
        self.budget = ByteBudget(memory)
        self.reads = 1.0
        """How often a router reads what is there for it."""
        self.hooked = hooked
        rules = DecodeRules() if phase == "decode" else PrefillRules()
        self.core = WorkerCore(
            self, rules=rules, worker="w", max_legs=6, hooked=hooked, budget=self.budget
        )
        self.now = 0.0
        self.in_engine: set[int] = set()
        self.asked_to_cancel: set[int] = set()
        self.judging: dict[int, list[Work]] = {}
        self.links: dict[int, dict[int, int]] = {}
        """The open legs of each link, by the router's number: their request_id."""
        self.held: set[int] = set()
        self.begun: dict[int, tuple[int, int]] = {}
        self.numbers = 0
        self.last_link = 0
        self.rows: Counter[int] = Counter()
        self.brought: Counter[int] = Counter()
        self.finished: set[int] = set()
        self.refused: Counter[str] = Counter()
        self.given_up: set[int] = set()
        self.last_error: Counter[str] = Counter()
        self.closed: Counter[int] = Counter()

    def tell(self, *batch: Callable[[], None]) -> None:
        for effect in self.core.handle(self.now, batch):
            effect()
        assert 0 <= self.budget.held <= self.budget.limit
        for open_leg in self.core.legs:
            stage, number = open_leg.stage, open_leg.request_id
            if stage not in (LegStage.WAITING, LegStage.RUNNING) and open_leg.engine_holds:
                assert number in self.asked_to_cancel, f"{stage}, and the engine was not told"
            if stage in (LegStage.SILENCED, LegStage.LEAVING):
                assert not open_leg.held
            if stage is LegStage.HELD:
                assert open_leg.held, "it waits for a release that came"

    # --- what the core asks for ------------------------------------------------------------------

    def begin(
        self, request: EngineRequest, task: Any, command: worker_pb2.StartLeg, *_: object
    ) -> None:
        number = request.request_id
        if self.draw.random() < 0.1:
            self.core_refuses(number, command)
            return
        self.in_engine.add(number)
        self.judging[number] = []

    def cancel_engine(self, request_id: int) -> None:
        assert request_id in self.in_engine, "cancelled what the engine holds no more"
        assert request_id not in self.asked_to_cancel, "cancelled twice"
        self.asked_to_cancel.add(request_id)

    def judge_by_hooks(self, works: Sequence[Work]) -> None:
        assert self.hooked
        for work in works:
            self.judging[work.request_id].append(work)

    def wait_turn(self, request_id: int) -> None:
        raise AssertionError("nothing is replayed")

    def ask_classifiers(self, request_id: int, *_: object) -> None:
        raise AssertionError("there are no classifiers")

    def stop_judging(self, request_id: int) -> None:
        assert self.judging.pop(request_id, None) is not None, "told twice that it is over"

    def send(self, link: int) -> None:
        if self.draw.random() < self.reads:
            self.take(link)

    def give_up(self, link: int, reason: str) -> None:
        self.given_up.add(link)

    def count_transfer(self, kv: object, trace_id: str) -> None:
        pass

    def leg_closed(self, leg: Leg, at: float) -> None:
        self.closed[leg.request_id] += 1
        assert leg.request_id not in self.in_engine, "closed, and the engine holds it"
        if self.hooked:
            assert leg.request_id not in self.judging, "closed, and hooks still judge"

    def leg_refused(self, link: int, command: object, error: TandemError, at: float) -> None:
        self.refused[error.code] += 1

    def core_refuses(self, number: int, command: worker_pb2.StartLeg) -> None:
        self.links[self.begun[number][0]].pop(command.leg, None)
        not_begun = partial(self.core.not_begun, number, command, EngineError("full"))
        for effect in self.core.handle(self.now, [not_begun]):
            assert effect.func in (self.send, self.leg_refused)
            if effect.func == self.send:
                self.take(*effect.args)

    def take(self, link: int) -> None:
        drafts, said = self.core.outgoing(link).take()
        for draft in drafts.values():
            for sequence in draft.sequences:
                assert sequence not in self.finished, "a row after the finish"
                assert sequence not in self.held, "a held row that nobody released"
                self.rows[sequence] += 1
                assert self.rows[sequence] <= self.brought[sequence], "a row that never came"
            for finish in draft.rest.finish:
                assert finish.sequence not in self.finished, "two finishes"
                assert finish.sequence not in self.held
                self.finished.add(finish.sequence)
        for event in said:
            if event.HasField(CLOSED):
                self.last_error[event.closed.error.message] += 1
                self.links[link].pop(event.leg, None)

    # --- what may happen -------------------------------------------------------------------------

    def link_up(self) -> None:
        self.last_link += 1
        self.links[self.last_link] = {}
        self.tell(partial(self.core.link_up, self.last_link))

    def link_down(self) -> None:
        if self.links:
            link = self.draw.choice(list(self.links))
            self.tell(partial(self.core.link_down, link))
            del self.links[link]

    def start(self) -> None:
        if not self.links:
            return
        link = self.draw.choice(list(self.links))
        first = self.numbers + 1
        for index in range(self.draw.choice((1, 1, 2, 3))):
            self.numbers += 1
            number = self.numbers
            command = worker_pb2.StartLeg(
                leg=number,
                destination=1,
                sequence=first + index,
                output_index=index,
                timeout_ms=self.draw.choice((2_000, 60_000)),
                hold_output=self.draw.random() < 0.3,
            )
            if command.hold_output:
                self.held.add(command.sequence)
            request = EngineRequest(
                request_id=number, token_ids=[1], sampling=common_pb2.SamplingParams()
            )
            self.links[link][number] = number
            self.begun[number] = (link, number)
            wanted = Start(
                link=link,
                command=command,
                task=common_pb2.Task(want_text=True),
                request=request,
                output=SequenceOutput(detokenizer=None),
                own_bytes=self.draw.randrange(100),
            )
            self.tell(partial(self.core.start, wanted))

    def step(self) -> None:
        deltas = []
        for number in sorted(self.in_engine):
            if self.draw.random() < 0.3:
                continue
            deltas.append(self.delta(number))
        self.tell(partial(self.core.stepped, deltas))

    def delta(self, number: int) -> Delta:
        if number in self.asked_to_cancel and self.draw.random() < 0.6:
            end: Ending | None = Ending.CANCELLED
        else:
            end = self.draw.choice((None,) * 8 + tuple(Ending))
        if end is not None:
            self.in_engine.discard(number)
        if end is Ending.CANCELLED or end is Ending.FAILED:
            return Delta(number, (), end, retryable=True)
        self.brought[number] += 1
        return Delta(number, (5,), end)

    def rule(self) -> None:
        rulings = []
        for number in list(self.judging):
            if number in self.judging and self.draw.random() < 0.6:
                works, self.judging[number] = self.judging[number], []
                rulings += [self.ruling(work) for work in works]
        self.tell(partial(self.core.ruled, rulings))

    def ruling(self, work: Work) -> Ruling:
        what = self.draw.random()
        if what < 0.05:
            return Ruling(work.request_id, None, work.final, error=HookError("x"))
        if what < 0.12:
            return Ruling(work.request_id, None, work.final, reason="guard")
        piece: Piece | None = work.piece if what < 0.8 else None
        return Ruling(work.request_id, piece, work.final)

    def release(self) -> None:
        if self.held:
            sequence = self.draw.choice(sorted(self.held))
            self.held.discard(sequence)
            self.tell(partial(self.core.release, self.begun[sequence][0], sequence))

    def cancel(self) -> None:
        if self.begun:
            link, number = self.draw.choice(list(self.begun.values()))
            self.tell(partial(self.core.cancel, link, number, "client"))

    def several(self) -> None:
        """Two things in one call."""
        if self.begun:
            link, number = self.draw.choice(list(self.begun.values()))
            self.held.discard(number)
            release = partial(self.core.release, link, number)
            self.tell(release, partial(self.core.cancel, link, number, "client"))

    def tick(self) -> None:
        self.tell(self.core.tick)
        for open_leg in self.core.legs:
            assert open_leg.stage is LegStage.LEAVING or open_leg.deadline > self.now

    def judge_failed(self) -> None:
        if self.begun:
            number = self.draw.choice(list(self.begun))
            self.tell(partial(self.core.judge_failed, number, HookError("x")))

    def live(self, turns: int) -> None:
        weighted = [self.step] * 6 + [self.rule] * 4 + [self.start] * 3 + [self.release] * 2
        rare = [self.cancel, self.several, self.tick, self.judge_failed, self.link_up]
        for _ in range(turns):
            self.now += self.draw.random()
            self.draw.choice(weighted + rare + [self.link_down] * (self.draw.random() < 0.3))()

    def end(self) -> None:
        """Everything that is owed comes, and nothing new."""
        if self.draw.random() < 0.5:
            self.in_engine.clear()
            self.tell(partial(self.core.engine_gone, EngineError("died")))
        else:
            self.tell(partial(self.core.abandon, WorkerError("shut down")))
            cancelled = [Delta(n, (), Ending.CANCELLED) for n in sorted(self.drained())]
            self.tell(partial(self.core.stepped, cancelled))

    def drained(self) -> set[int]:
        left, self.in_engine = self.in_engine, set()
        return left


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("hooked", [False, True])
def test_whatever_happens_every_leg_closes_once_and_nothing_stays(phase: str, hooked: bool) -> None:
    seen: set[LegStage] = set()
    for seed in range(150):
        world = World(seed, phase=phase, hooked=hooked)
        world.link_up()
        for _ in range(12):
            world.live(6)
            seen |= {open_leg.stage for open_leg in world.core.legs}
        world.end()
        assert len(world.core) == 0
        assert world.judging == {} or not hooked
        assert max(world.closed.values(), default=1) == 1
        assert all(open_legs == {} for open_legs in world.links.values())
        assert world.core._state.groups == world.core._state.numbers == {}
        for link in list(world.links):
            world.tell(partial(world.core.link_down, link))
        assert world.budget.held == 0
    expected = {LegStage.WAITING, LegStage.LEAVING}
    if phase == "decode":
        expected |= {LegStage.RUNNING, LegStage.HELD}
        expected |= {LegStage.RULING, LegStage.SILENCED} if hooked else set()
    assert expected <= seen


@pytest.mark.promise("S6-187", "S6-189")
@pytest.mark.parametrize("hooked", [False, True])
def test_with_hardly_any_memory_every_leg_closes_once_and_all_of_it_comes_back(
    hooked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.worker.core.machine.FRAME_BYTES", 30)
    monkeypatch.setattr("tandem.worker.core.shows.FRAME_BYTES", 30)
    refused: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    given_up = 0
    for seed in range(150):
        # Either every row waits in its leg's parcel, or in what is for its router.
        monkeypatch.setattr("tandem.worker.core.leg.MAX_ROW_BYTES", 30 if seed % 2 else 10_000)
        world = World(seed, phase="decode", hooked=hooked, memory=300)
        world.reads = 0.2
        world.link_up()
        for _ in range(12):
            world.live(6)
        world.end()
        assert len(world.core) == 0
        assert max(world.closed.values(), default=1) == 1
        for link in list(world.links):
            world.tell(partial(world.core.link_down, link))
        assert world.budget.held == 0
        refused += world.refused
        ended += world.last_error
        given_up += len(world.given_up)
    assert refused["queue_full"]
    assert ended["this worker has no memory for more of the output"]
    assert given_up


def test_a_state_that_the_drawing_does_not_lead_to_is_refused() -> None:
    world = World(1, phase="decode", hooked=False)
    world.link_up()
    world.start()
    any_leg: Any = next(iter(world.core.legs))
    any_leg.stage = LegStage.LEAVING
    with pytest.raises(AssertionError, match=r"leaving to running"):
        world.core._ends.move(any_leg, LegStage.RUNNING)
