"""Which way sequences go where pairs and aggregated workers have been measured; more of aggregated
workers is in tests/unit/router_traces/ways.txt.
"""

from __future__ import annotations

import pytest
from router_bench import FINGERPRINT, Bench

from tandem.endings import Outcome
from tandem.errors import EngineError
from tandem.wire import faces
from tandem_router.core import events
from tandem_router.core.pace import Pace
from tandem_router.core.values import Disaggregate, Phase, Reason, Way
from tandem_router.core.ways import MEASURE_SECONDS, Option, choose

WHOLE = FINGERPRINT._replace(aggregated=True)


class Fleet(Bench):
    """A pair and an aggregated worker, and sequences that go on by themselves."""

    def __init__(self) -> None:
        super().__init__(0, 0)
        places = {"prefill-0": FINGERPRINT, "decode-0": FINGERPRINT}
        places |= {"whole-0#prefill": WHOLE, "whole-0#decode": WHOLE}
        for key, mark in places.items():
            given = {"instance": "whole-0"} if mark is WHOLE else {}
            phase = Phase.PREFILL if "prefill" in key else Phase.DECODE
            profile = {"fingerprint": mark, "max_sequences": 4, "context_length": 10_000}
            self.connect(key, phase, **profile, **given)

    def setting(self, disaggregate: Disaggregate) -> None:
        self.core.state.fleet._disaggregate = disaggregate

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


# --- beside pairs --------------------------------------------------------------------------------


@pytest.mark.promise("S5-331")
def test_short_prompts_go_to_an_aggregated_worker_and_long_ones_to_a_pair() -> None:
    fleet = Fleet()
    fleet.learn(pair=0.001, whole=0.001)
    fleet.run(1, ends=False)  # somebody is decoded there
    assert fleet.run(2, prompt=20) == "whole-0"
    assert fleet.run(3, prompt=2000) == "prefill-0"
    assert fleet.ways() == {("aggregated", "earliest"): 2, ("pair", "earliest"): 1}


@pytest.mark.promise("S5-331")
def test_a_queue_sends_the_next_prompt_the_other_way() -> None:
    fleet = Fleet()
    fleet.learn(pair=0.001, whole=0.001)
    fleet.submit(1, prompt_tokens=1000)
    assert faces.address(fleet.legs()[0].worker) == "whole-0"
    assert fleet.run(2, prompt=20) == "prefill-0"


@pytest.mark.promise("S5-331")
def test_what_was_chosen_and_why_is_told() -> None:
    fleet = Fleet()
    fleet.learn(pair=0.001, whole=0.001)
    fleet.submit(1, prompt_tokens=20, trace_id="t")
    (story,) = fleet.core.stories("t", fleet.now)
    way = next(each.way for each in story.sequences[0].moments if each.way)
    assert (way.name, way.reason) == ("aggregated", "earliest")
    assert way.aggregated_seconds == pytest.approx(0.02, rel=0.05)
    assert way.pair_seconds == pytest.approx(0.07, rel=0.05)


def test_a_way_that_nobody_has_measured_lately_is_measured_with_a_common_prompt() -> None:
    fleet = Fleet()
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


def test_a_sequence_that_failed_one_way_goes_the_other() -> None:
    fleet = Fleet()
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
    fleet = Fleet()
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
