"""When routers are told what a worker carries: each second, and earlier where much has changed."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

import pytest
from worker_harness import Bench, taken

from tandem.engine.prefix_log import PrefixLog
from tandem.prefix_blocks import pack, unpacked
from tandem.text.tokenizer import Tokenizer
from tandem.worker.link import RouterLink
from tandem.worker.reports import EARLY_TOKENS, LINGER_SECONDS, Reports


class Told:
    """A worker's reports in a time that tests set."""

    def __init__(
        self, *, slots: int = 256, early: float = 10.0, log: PrefixLog | None = None
    ) -> None:
        self.now = 100.0
        self.at: list[float] = []
        self._due: list[tuple[float, Callable[[], object]]] = []
        self.reports = Reports(
            lambda: self.at.append(round(self.now - 100, 3)),
            slots=slots,
            early_a_second=early,
            prefixes=log,
            clock=lambda: self.now,
            later=self._later,
        )

    def _later(self, seconds: float, call: Callable[[], object]) -> None:
        assert seconds >= 0
        heapq.heappush(self._due, (self.now + seconds, call))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self._due and self._due[0][0] <= until:
            self.now, call = heapq.heappop(self._due)
            call()
        self.now = until


def test_much_that_begins_is_told_at_once_and_little_is_not() -> None:
    told = Told()
    told.reports.began(1, EARLY_TOKENS - 1)
    told.wait(0.5)
    assert told.at == []
    told.reports.began(2, 1)
    told.wait(0.0)
    assert told.at == [0.5]


def test_what_ends_counts_as_what_begins() -> None:
    told = Told()
    told.reports.began(1, EARLY_TOKENS // 2)
    told.reports.ended(1, EARLY_TOKENS // 2)
    told.wait(0.0)
    assert told.at == [0.0]


@pytest.mark.parametrize(("slots", "legs"), [(256, 16), (32, 2), (4, 1), (1, 1)])
def test_many_legs_are_told_whatever_their_prompts(slots: int, legs: int) -> None:
    told = Told(slots=slots)
    for leg in range(legs - 1):
        told.reports.began(leg, 1)
    told.wait(0.0)
    assert told.at == []
    told.reports.began(legs, 1)
    told.wait(0.0)
    assert told.at == [0.0]


@pytest.mark.promise("S5-401")
def test_there_are_no_more_early_ones_than_are_allowed() -> None:
    told = Told(early=4.0)
    for leg in range(95):
        told.reports.began(leg, EARLY_TOKENS)
        told.wait(0.01)
    assert told.at == [0.0, 0.25, 0.5, 0.75]
    told.wait(1.0)
    assert told.at == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_none_are_early_where_none_are_allowed() -> None:
    told = Told(early=0.0)
    for leg in range(100):
        told.reports.began(leg, EARLY_TOKENS)
    told.wait(10.0)
    assert told.at == []


def test_what_a_regular_one_has_told_is_no_reason_for_another() -> None:
    told = Told()
    told.reports.tell()
    told.reports.began(1, EARLY_TOKENS)
    told.wait(0.05)
    told.reports.tell()
    told.wait(1.0)
    assert told.at == [0.0, 0.05]


@pytest.mark.promise("S5-401")
def test_blocks_that_a_leg_brings_are_told_from_its_start_until_after_its_end() -> None:
    log = PrefixLog()
    told = Told(log=log)
    told.reports.began(1, 10, [1, 2])
    assert {*log.coming} == {1, 2}
    told.reports.ended(1, 10)
    told.wait(LINGER_SECONDS / 2)
    told.reports.tell()
    assert {*log.coming} == {1, 2}, "the engine may not have said yet that it has them"
    told.wait(LINGER_SECONDS / 2)
    assert {*log.coming} == {1, 2}, "they go with a report"
    told.reports.tell()
    assert not log.coming


def test_a_leg_that_brings_nothing_leaves_nothing() -> None:
    log = PrefixLog()
    told = Told(log=log)
    told.reports.began(1, 10)
    told.reports.ended(1, 10)
    told.wait(LINGER_SECONDS)
    told.reports.tell()
    assert (log.changes, log.coming) == (0, {})
    silent = Told()
    silent.reports.began(1, 10, [1, 2])
    silent.reports.ended(1, 10)
    silent.wait(LINGER_SECONDS)
    silent.reports.tell()
    assert silent.at == [LINGER_SECONDS]


# --- in a worker ---


def cache(link: RouterLink) -> tuple[list[int], list[int]]:
    frame = taken(link)
    assert frame is not None
    return [*unpacked(frame.load.cache.entered)], [*unpacked(frame.load.cache.left)]


@pytest.mark.promise("S5-401")
def test_every_router_is_told_of_a_prompt_that_one_of_them_has_sent(tokenizer: Tokenizer) -> None:
    log = PrefixLog()
    bench = Bench(tokenizer, phase="prefill", prefixes=log)
    other = bench.connect()
    assert cache(other) == ([], [])
    first = bench.start(1, new_blocks=pack([4, 5]))
    bench.shell.report_load()
    assert cache(other) == ([4, 5], [])
    bench.cancel(1, "cancelled")
    bench.settle()
    assert bench.leg(first) is None
    bench.now += LINGER_SECONDS
    bench.shell.report_load()
    assert sorted(cache(other)[1]) == [4, 5]


def test_a_prompt_that_is_refused_is_told_to_nobody(tokenizer: Tokenizer) -> None:
    log = PrefixLog()
    bench = Bench(tokenizer, phase="prefill", prefixes=log)
    assert not bench.start(1, new_blocks=pack([4, 5]), task={"model": "another"})
    assert (log.changes, log.coming) == (0, {})


@pytest.mark.promise("S5-401")
async def test_a_worker_reports_early_to_every_router(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, phase="prefill", prefixes=PrefixLog(), early_reports=10.0)
    other = bench.connect()
    for link in (bench.link, other):
        link.take()
    for leg in range(1, 3):
        bench.start(leg)
    await asyncio.sleep(0.01)
    frame = taken(other)
    assert frame is not None
    assert frame.load.open_legs == 2
