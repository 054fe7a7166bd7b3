"""Aggregated workers in the router's core, alone and beside pairs, and which way sequences go."""

from __future__ import annotations

from typing import Any

import pytest
from test_router_core import FINGERPRINT, Bench

from tandem.endings import Outcome
from tandem.errors import EngineError, KvTransferError
from tandem.wire import faces
from tandem_router.core import actions, events
from tandem_router.core.pace import Pace
from tandem_router.core.values import Disaggregate, Phase, Profile, Reason, Way
from tandem_router.core.ways import MEASURE_SECONDS, Option, choose

WHOLE = FINGERPRINT._replace(aggregated=True)


class Fleet(Bench):
    """A bench that also has aggregated workers, and sequences that go on by themselves."""

    def __init__(
        self, prefill: int = 0, decode: int = 0, whole: int = 0, *, slots: int = 4, **bounds: Any
    ) -> None:
        super().__init__(0, 0, **bounds)
        self.slots = slots
        for index in range(prefill):
            self.worker(Phase.PREFILL, index, max_sequences=slots, context_length=10_000)
        for index in range(decode):
            self.worker(Phase.DECODE, index, max_sequences=slots, context_length=10_000)
        for index in range(whole):
            self.whole(index)

    def whole(self, index: int = 0, *phases: Phase, **profile: Any) -> str:
        """An aggregated worker connects, or some phases of it. Returns its address."""
        address = f"whole-{index}"
        for phase in phases or tuple(Phase):
            given = {"fingerprint": WHOLE, "max_sequences": self.slots, "instance": address}
            described = Profile(
                **{"name": address, "phase": phase, "context_length": 10_000, **given, **profile}
            )
            key = faces.key(address, phase.value)
            self.feed(events.WorkerUp(worker=key, listed_as=phase, profile=described))
        return address

    def down(self, index: int = 0, *phases: Phase, **how: Any) -> None:
        for phase in phases or tuple(Phase):
            key = faces.key(f"whole-{index}", phase.value)
            self.feed(events.WorkerDown(key, "gone", **how))

    def setting(self, disaggregate: Disaggregate) -> None:
        self.core.state.fleet._disaggregate = disaggregate

    def ready_pairs(self) -> int:
        return self.core.snapshot().ready_pairs

    def ways(self) -> dict[tuple[str, str], int]:
        counted = self.core.state.counts.ways
        return {(way.value, reason.value): count for (way, reason), count in counted.items()}

    def run(self, number: int, *, prompt: int = 10, seconds: float = 0.0, ends: bool = True) -> str:
        """One sequence whose first token comes after so long, or after a millisecond a token and a
        hand-over of 50. Returns where its legs were.
        """
        self.submit(number, prompt_tokens=prompt, max_tokens=1)
        prefill, decode = self.legs()
        seconds = seconds or prompt * 0.001 + (0.0 if faces.is_one(decode.worker) else 0.05)
        self.feed(events.LegStarted(decode.worker, decode.leg), after=seconds)
        self.close(prefill)
        if ends:
            self.close(decode)
        assert faces.address(prefill.worker) == faces.address(decode.worker) or not any(
            map(faces.is_one, (prefill.worker, decode.worker))
        )
        return faces.address(prefill.worker)

    def learn(self, *, pair: float, whole: float, first: int = 1000) -> None:
        """Both ways are measured: prompts of 10 and 1000 tokens, with so many seconds a token, and
        a hand-over of 0.05 seconds.
        """
        for number, way in enumerate(("always", "never"), start=first):
            self.setting("always" if way == "always" else "never")
            each, more = (pair, 0.05) if way == "always" else (whole, 0.0)
            for index, prompt in enumerate((10, 1000)):
                self.run(10 * number + index, prompt=prompt, seconds=prompt * each + more)
        self.setting("auto")
        self.core.state.counts.ways.clear()


# --- alone ---------------------------------------------------------------------------------------


@pytest.mark.promise("S5-330")
def test_an_aggregated_worker_alone_serves_its_model_at_once() -> None:
    fleet = Fleet(whole=1)
    assert fleet.ready_pairs() == 1
    told = {each.worker for each in fleet.of(actions.WorkerPaired)}
    assert told == {"whole-0#prefill", "whole-0#decode"}, "it proves nothing: no KV moves"
    assert fleet.run(1) == "whole-0"
    assert fleet.ways() == {("aggregated", "only"): 1}
    assert fleet.at_rest()


def test_neither_phase_of_it_is_paired_with_any_other_worker() -> None:
    fleet = Fleet(prefill=1)
    fleet.whole(0, Phase.DECODE)
    fleet.whole(1, Phase.PREFILL)
    assert fleet.ready_pairs() == 0
    assert not fleet.core.state.counts.pairs_rejected, "they are not meant for each other"
    refusals = fleet.core.refusals()
    assert refusals["whole-0#decode"] == "its prefill phase takes no work"
    assert refusals["prefill-0"] == "no matching decode worker takes work"
    fleet.submit()
    assert fleet.ends() == [(1, "no_pair")]


def test_a_slot_is_free_when_both_phases_have_one() -> None:
    fleet = Fleet(whole=1, slots=1)
    fleet.submit(1)
    prefill, decode = fleet.legs()
    fleet.submit(2)
    fleet.close(prefill)
    assert not fleet.of(actions.StartLeg), "decode's slot is taken"
    fleet.close(decode)
    assert len(fleet.of(actions.StartLeg)) == 2


@pytest.mark.parametrize("phase", list(Phase))
def test_what_takes_one_phase_takes_the_other_too(phase: Phase) -> None:
    fleet = Fleet(whole=1)
    key = faces.key("whole-0", phase.value)
    for change, back in (
        (events.WorkerDraining(key, True), events.WorkerDraining(key, False)),
        (events.WorkerLoad(key, 0, step_age=11.0), events.WorkerLoad(key, 0, step_age=0.0)),
    ):
        fleet.feed(change)
        assert fleet.ready_pairs() == 0
        fleet.feed(back)
        assert fleet.ready_pairs() == 1
    fleet.feed(events.WorkerLoad(key, fleet.slots))
    assert fleet.ready_pairs() == 1
    assert sum(fleet.core.free_slots().values()) == 0
    fleet.feed(events.WorkerLoad(key, 0))
    fleet.down(0, phase)
    assert fleet.ready_pairs() == 0
    fleet.submit(1)
    assert not fleet.of(actions.StartLeg), "the other phase has a free slot, and is alone"


def test_a_retry_waits_for_another_worker_while_the_one_that_failed_is_free() -> None:
    fleet = Fleet(whole=2, slots=1)
    fleet.submit(1)
    failing = fleet.legs()
    fleet.submit(2)
    others = fleet.legs()
    failed = EngineError("it failed")
    fleet.close(failing[0], Outcome.FAILED, error=failed, retryable=True)
    fleet.close(failing[1], Outcome.CANCELLED)
    assert not fleet.of(actions.StartLeg)
    for leg in others:
        fleet.close(leg)
    assert [leg.worker for leg in fleet.legs()] == [leg.worker for leg in others]


def test_an_aggregated_fleet_is_scaled_to_nothing_and_back() -> None:
    fleet = Fleet(whole=1, expected_models=frozenset(["tiny"]), pair_wait_seconds=20.0)
    fleet.down()
    fleet.feed(events.Tick(), after=3600.0)
    fleet.submit(1)
    assert not fleet.ends()
    fleet.whole(1)
    assert [faces.address(leg.worker) for leg in fleet.legs()] == ["whole-1"] * 2


@pytest.mark.promise("S5-330")
def test_a_sequence_is_tried_again_on_another_and_never_on_the_same() -> None:
    fleet = Fleet(whole=2)
    fleet.submit(1)
    prefill, decode = fleet.legs()
    failed = EngineError("it failed")
    fleet.close(prefill, Outcome.FAILED, error=failed, retryable=True)
    fleet.close(decode, Outcome.CANCELLED)
    again = {faces.address(leg.worker) for leg in fleet.legs()}
    assert again == {"whole-1"} != {faces.address(prefill.worker)}
    alone = Fleet(whole=1)
    alone.submit(1)
    prefill, decode = alone.legs()
    alone.close(prefill, Outcome.FAILED, error=failed, retryable=True)
    assert alone.ends() == [(1, "engine_error")]
    alone.close(decode, Outcome.CANCELLED)
    assert alone.at_rest()


def test_the_death_of_one_process_counts_once() -> None:
    fleet = Fleet(whole=3)
    for number in (1, 2, 3, 4):
        fleet.submit(number, trace_id=f"{number}")
    on_first = {
        leg.sequence.request.submit.trace_id
        for leg in fleet.core.state.legs.values()
        if faces.address(leg.worker.key) == "whole-0"
    }
    assert len(on_first) == 2
    fleet.down(0)
    deaths = {
        leg.sequence.request.submit.trace_id: leg.sequence.request.deaths
        for leg in fleet.core.state.legs.values()
    }
    assert {each for each, number in deaths.items() if number} == on_first
    assert {deaths[each] for each in on_first} == {1}, "each phase's stream told of it"


@pytest.mark.parametrize("first", list(Phase))
def test_what_one_phase_had_begun_may_have_ended_both(first: Phase) -> None:
    """Prefill had its leg, and decode's was still on its way when the process died."""
    fleet = Fleet(whole=2)
    fleet.submit(1)
    _, decode = fleet.legs()
    whole, ends = int(faces.address(decode.worker)[-1]), []
    unsent = {Phase.PREFILL: frozenset[int](), Phase.DECODE: frozenset([decode.leg])}
    for phase in (first, *(each for each in Phase if each is not first)):
        fleet.down(whole, phase, unsent=unsent[phase])
        ends += fleet.ends()
    assert ends == [(1, "worker_lost")], "it was alone there"


def test_what_neither_phase_had_begun_is_no_suspect() -> None:
    fleet = Fleet(whole=2)
    fleet.submit(1)
    prefill, decode = fleet.legs()
    whole = int(faces.address(decode.worker)[-1])
    unsent = {Phase.PREFILL: frozenset([prefill.leg]), Phase.DECODE: frozenset([decode.leg])}
    for phase in (Phase.PREFILL, Phase.DECODE):
        fleet.down(whole, phase, unsent=unsent[phase])
    assert {faces.address(leg.worker) for leg in fleet.legs()} == {f"whole-{1 - whole}"}


def test_a_phase_that_gave_up_its_leg_brings_no_canary() -> None:
    fleet = Fleet(whole=2)
    fleet.submit(1)
    _, decode = fleet.legs()
    lost = KvTransferError("the other phase was cancelled")
    fleet.close(decode, Outcome.FAILED, error=lost, retryable=True)
    fleet.feed(events.Tick(), after=30.0)
    assert not [each for each in fleet.of(actions.StartLeg) if each.command.canary]


def test_several_are_filled_alike() -> None:
    fleet = Fleet(whole=3)
    found = [fleet.run(number, ends=False) for number in range(1, 7)]
    assert sorted(found) == ["whole-0", "whole-0", "whole-1", "whole-1", "whole-2", "whole-2"]


# --- beside pairs --------------------------------------------------------------------------------


@pytest.mark.promise("S5-331")
def test_short_prompts_go_to_an_aggregated_worker_and_long_ones_to_a_pair() -> None:
    fleet = Fleet(1, 1, 1)
    fleet.learn(pair=0.001, whole=0.001)
    fleet.run(1, ends=False)  # somebody is decoded there
    assert fleet.run(2, prompt=20) == "whole-0"
    assert fleet.run(3, prompt=2000) == "prefill-0"
    assert fleet.ways() == {("aggregated", "earliest"): 2, ("pair", "earliest"): 1}


@pytest.mark.promise("S5-331")
def test_a_queue_sends_the_next_prompt_the_other_way() -> None:
    fleet = Fleet(1, 1, 1)
    fleet.learn(pair=0.001, whole=0.001)
    fleet.submit(1, prompt_tokens=1000)
    assert faces.address(fleet.legs()[0].worker) == "whole-0"
    assert fleet.run(2, prompt=20) == "prefill-0"


@pytest.mark.promise("S5-331")
def test_what_was_chosen_and_why_is_told() -> None:
    fleet = Fleet(1, 1, 1)
    fleet.learn(pair=0.001, whole=0.001)
    fleet.submit(1, prompt_tokens=20, trace_id="t")
    (story,) = fleet.core.stories("t", fleet.now)
    way = next(each.way for each in story.sequences[0].moments if each.way)
    assert (way.name, way.reason) == ("aggregated", "earliest")
    assert way.aggregated_seconds == pytest.approx(0.02, rel=0.05)
    assert way.pair_seconds == pytest.approx(0.07, rel=0.05)


@pytest.mark.parametrize(("setting", "first", "way"), [("always", "prefill-0", "pair")])
def test_the_setting_prefers_a_way_and_bars_none(
    setting: Disaggregate, first: str, way: str
) -> None:
    fleet = Fleet(1, 1, 1, slots=1)
    fleet.setting(setting)
    assert fleet.run(1, ends=False) == first
    assert fleet.run(2, ends=False) == "whole-0", "its way is full"
    assert fleet.ways() == {(way, "setting"): 1, ("aggregated", "only"): 1}


def test_a_way_that_nobody_has_measured_lately_is_measured_with_a_common_prompt() -> None:
    fleet = Fleet(1, 1, 1)
    fleet.learn(pair=0.001, whole=0.01)
    assert fleet.run(1, prompt=20) == "prefill-0"
    fleet.feed(events.Tick(), after=MEASURE_SECONDS)
    fleet.run(2, prompt=20)
    fleet.run(3, prompt=20)
    assert fleet.run(4, prompt=20) == "prefill-0"
    assert fleet.ways()["aggregated", "measure"] == 1
    assert fleet.run(5, prompt=5000) == "prefill-0"
    fleet.feed(events.Tick(), after=MEASURE_SECONDS)
    assert [fleet.run(number, prompt=5000) for number in (6, 7)] == ["prefill-0"] * 2


def test_an_unmeasured_way_is_tried_once_until_it_is_measured() -> None:
    fleet = Fleet(1, 1, 1)
    started = []
    for number in (1, 2, 3):
        fleet.submit(number, prompt_tokens=10)
        started.append(faces.address(fleet.legs()[0].worker))
    assert started == ["prefill-0", "whole-0", "prefill-0"]
    assert fleet.ways() == {
        ("pair", "measure"): 1,
        ("aggregated", "measure"): 1,
        ("pair", "unmeasured"): 1,
    }


def test_a_sequence_that_failed_one_way_goes_the_other() -> None:
    fleet = Fleet(1, 1, 1)
    fleet.learn(pair=0.001, whole=0.001)
    for prompt, number in ((20, 1), (5000, 2)):
        fleet.submit(number, prompt_tokens=prompt)
        prefill, decode = fleet.legs()
        failed = EngineError("it failed")
        fleet.close(prefill, Outcome.FAILED, error=failed, retryable=True)
        fleet.close(decode, Outcome.CANCELLED)
        again = fleet.legs()[0].worker
        assert faces.is_one(again) is not faces.is_one(prefill.worker)


def test_workers_with_overdue_legs_come_last_whichever_way_they_are() -> None:
    fleet = Fleet(1, 1, 1)
    fleet.learn(pair=0.001, whole=0.001)
    fleet.submit(1, prompt_tokens=20)
    assert faces.is_one(fleet.legs()[0].worker)
    fleet.feed(events.Cancel(1, 1))
    fleet.feed(events.Tick(), after=11.0)
    assert fleet.run(2, prompt=20) == "prefill-0"
    assert fleet.ways()["pair", "sound"] == 1


# --- what is measured ----------------------------------------------------------------------------


def pace(*samples: tuple[int, float]) -> Pace:
    made = Pace()
    for tokens, seconds in samples:
        made.note(1.0, tokens, seconds)
    return made


def test_a_pace_is_a_line_through_what_was_measured() -> None:
    least, each = pace((10, 0.06), (100, 0.15), (1000, 1.05)).line()
    assert (least, each) == (pytest.approx(0.05), pytest.approx(0.001))
    assert pace((100, 0.2)).line() == (0.0, pytest.approx(0.002)), "one sample: by the token"
    assert pace((100, 0.2), (100, 0.4)).line() == (0.0, pytest.approx(0.003, rel=0.01))
    assert pace((10, 0.4), (1000, 0.2)).line()[1] == 0.0, "more tokens never take less"
    assert pace((0, 0.4)).line() == (0.4, 0.0)
    assert pace((10, 0.0), (1000, 1.98)).line()[0] == 0.0
    assert pace().line() == (0.0, 0.0)


def test_a_pace_follows_what_changes() -> None:
    made = pace(*[(10, 0.01), (1000, 1.0)] * 50)
    for _ in range(300):
        made.note(2.0, 10, 0.02)
        made.note(2.0, 1000, 2.0)
    assert made.line()[1] == pytest.approx(0.002, rel=0.01)


def option(way: Way, *, waiting: int = 0, tokens: int = 100, running: int = 0) -> Option:
    measured = pace((10, 0.01), (1000, 1.0))
    return Option(way=way, pace=measured, waiting=waiting, tokens=tokens, running=running)


def test_a_prompt_counts_for_each_that_it_holds_up() -> None:
    assert option(Way.AGGREGATED, waiting=50, running=3).seconds() == pytest.approx(0.45)
    assert option(Way.PAIR, waiting=50).seconds() == pytest.approx(0.15)
    pair, whole = option(Way.PAIR, waiting=299), option(Way.AGGREGATED, running=3)
    assert choose(pair, whole, "auto", 1.0).way is Way.PAIR
    pair = option(Way.PAIR, waiting=301)
    way, reason, told = choose(pair, whole, "auto", 1.0)
    assert (way, reason) == (told.name, told.reason) == (Way.AGGREGATED, Reason.EARLIEST)


def test_what_short_prompts_take_by_a_pair_says_nothing_of_long_ones() -> None:
    short = pace((5, 0.1), (5, 0.1))
    pair = option(Way.PAIR, tokens=3000)._replace(pace=short)
    whole = option(Way.AGGREGATED, tokens=3000)
    assert choose(pair, whole, "auto", 1.0).reason is Reason.UNMEASURED
    assert choose(pair._replace(tokens=10), whole, "auto", 1.0).reason is Reason.EARLIEST
    waits = pair._replace(tokens=10, waiting=2990)
    assert choose(waits, whole, "auto", 1.0).reason is Reason.UNMEASURED
    short.note(1.0, 3000, 0.4)
    assert choose(pair, whole, "auto", 1.0).reason is Reason.EARLIEST


# --- an engine that dies --------------------------------------------------------------------------


def _engine_dies(fleet: Fleet, *legs: actions.StartLeg) -> list[actions.Action]:
    """The worker says so by these legs; what is cancelled for that is closed."""
    done: list[actions.Action] = []
    for leg in legs:
        died = EngineError("it died")
        done += fleet.close(leg, Outcome.FAILED, error=died, retryable=True, worker_died=True)
    for each in [each for each in done if isinstance(each, actions.CancelLeg)]:
        if each.leg not in {leg.leg for leg in legs}:
            done += fleet.feed(events.LegClosed(each.worker, each.leg, Outcome.CANCELLED))
    return done


@pytest.mark.promise("S6-142")
@pytest.mark.parametrize("teller", [0, 1], ids=["prefill", "decode"])
def test_an_engine_that_was_alone_with_a_request_is_the_last_that_it_ends(teller: int) -> None:
    fleet = Fleet(whole=3, max_retries=9)
    fleet.submit(1)
    fleet.done = _engine_dies(fleet, fleet.legs()[teller])
    assert fleet.ends() == [(1, "engine_error")]
    assert fleet.of(actions.StartLeg) == []


@pytest.mark.promise("S6-142")
@pytest.mark.parametrize("teller", [0, 1], ids=["prefill", "decode"])
@pytest.mark.parametrize("first", Phase)
def test_the_death_of_both_phases_is_counted_once(teller: int, first: Phase) -> None:
    """Two requests that were together may each risk one engine more."""
    fleet = Fleet(whole=1, max_retries=9)
    started = []
    for number in (1, 2):
        fleet.submit(number, trace_id=f"{number}")
        started.append(fleet.legs()[teller])
    fleet.whole(1)
    fleet.whole(2)
    done = _engine_dies(fleet, *started)
    for phase in (first, *(each for each in Phase if each is not first)):
        fleet.down(0, phase, died=True)
        done += fleet.done
    fleet.done = done
    assert fleet.ends() == []
    assert len(fleet.of(actions.WorkerDied)) == 1
    assert len(fleet.of(actions.StartLeg)) == 4
