"""What a router tells of a request: while it is open, after it has ended, and for how long."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sys
import urllib.error
import urllib.request
from typing import Any

import msgspec
import pytest
from router_loads import cache_changes, worker_load
from simulated import submits

from tandem import story_pages
from tandem.endings import Outcome
from tandem.errors import ConfigError, EngineError, WorkerLostError
from tandem.free_ports import FreePorts
from tandem.message_limits import MAX_OUTPUTS
from tandem.story_book import MOST_OF_ONE_TRACE, StoryBook, log_line
from tandem.story_pages import MOST_LISTED
from tandem.timeline import LegTimes
from tandem_router import relay as relay_module
from tandem_router.config import RouterConfig
from tandem_router.core import actions, events
from tandem_router.core.machine import Core
from tandem_router.core.rejections import MOST_NAMED
from tandem_router.core.sequences import MOST_MOMENTS, MOST_TOLD
from tandem_router.core.story import Ahead, Elsewhere, SequenceStory, Story, shortened
from tandem_router.core.values import Bounds, Fingerprint, Phase, Profile
from tandem_router.discovery.static import StaticDiscovery
from tandem_router.links import WorkerLink
from tandem_router.policies import LeastLoaded, Prefix
from tandem_router.relay import Relay
from tandem_router.server import running

FINGERPRINT = Fingerprint("tiny", "1", "sim", "1", "f32", 16, "f32", "nhd", 1, "sha", 1)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
OTHER = "0af7651916cd43dd8448eb211c80319c"
PROMPT = b"what nobody else may read"


def profile(phase: Phase, name: str = "w", **fields: Any) -> Profile:
    given = {"fingerprint": FINGERPRINT, "max_sequences": 4, "context_length": 100, **fields}
    return Profile(name=name, phase=phase, **given)


class Bench:
    """A core with so many workers of each phase."""

    def __init__(self, workers: int = 2, prefill_policy: Any = LeastLoaded, **bounds: Any) -> None:
        self.now = 100.0
        self.core = Core(
            bounds=Bounds(**bounds),
            prefill_policy=prefill_policy,
            decode_policy=LeastLoaded,
            new_room=itertools.count(1000).__next__,
        )
        self.done: list[Any] = []
        self.feed(events.FrontendUp(1))
        for phase, index in itertools.product(Phase, range(workers)):
            self.worker(phase, index)

    def worker(self, phase: Phase, index: int, **fields: Any) -> None:
        address = f"{phase}-{index}:1"
        described = profile(phase, f"{phase}-{index}", **fields)
        self.feed(events.WorkerUp(worker=address, listed_as=phase, profile=described))

    def feed(self, *batch: events.Event, after: float = 0.0) -> None:
        self.now += after
        self.done += self.core.handle(self.now, batch)

    def submit(self, first: int = 1, n: int = 1, trace_id: str = TRACE, **fields: Any) -> None:
        given = {"timeout_seconds": 60.0, "model": "tiny", "task": PROMPT, **fields}
        self.feed(submits.submit(first, n=n, trace_id=trace_id, **given))

    def legs(self) -> list[actions.StartLeg]:
        return [each for each in self.done if isinstance(each, actions.StartLeg)]

    def close(self, leg: actions.StartLeg, outcome: Outcome, **how: Any) -> None:
        self.feed(events.LegClosed(leg.worker, leg.leg, outcome, **how), after=1.0)

    def open(self, trace_id: str = TRACE) -> list[Story]:
        return self.core.stories(trace_id, self.now)

    def ended(self) -> list[Story]:
        return [each.story for each in self.done if isinstance(each, actions.RequestEnded)]


def told(story: Story, index: int = 0) -> list[tuple[float, str, str, str]]:
    return [(each.at, each.name, each.phase, each.code) for each in story.sequences[index].moments]


@pytest.mark.promise("S5-201")
def test_a_request_s_story_has_its_pair_its_candidates_its_verdict_its_times_and_its_end() -> None:
    bench = Bench()
    bench.submit(first=1, trace_id=OTHER)  # takes a slot of the first of each phase
    bench.submit(first=2)
    prefill, decode = bench.legs()[2:]
    bench.feed(events.LegVerdict(prefill.worker, prefill.leg, False), after=0.5)
    bench.feed(events.LegStarted(decode.worker, decode.leg), after=0.25)
    (story,) = bench.open()
    assert (story.outcome, story.seconds, story.sequences[0].stage) == ("", 0.75, "decoding")
    bench.close(prefill, Outcome.FINISHED)
    bench.close(decode, Outcome.FINISHED)
    assert bench.open() == []
    (story,) = bench.ended()
    assert (story.trace_id, story.outcome, story.seconds) == (TRACE, "finished", 2.75)
    assert (story.sequences[0].outcome, story.sequences[0].seconds) == ("finished", 2.75)
    assert told(story) == [
        (0.0, "queued", "", ""),
        (0.0, "pair_chosen", "", ""),
        (0.5, "verdict", "prefill", ""),
        (0.75, "started", "decode", ""),
        (1.75, "closed", "prefill", "finished"),
        (2.75, "closed", "decode", "finished"),
    ]
    choice = story.sequences[0].moments[1].decode
    assert choice is not None
    assert (choice.worker, choice.name, choice.cost) == ("decode-1:1", "decode-1", 0.0)
    assert choice.candidates == 2
    assert [(each.worker, each.cost) for each in choice.others] == [("decode-0:1", 0.25)]


@pytest.mark.promise("S5-201", "S5-204")
def test_a_retry_a_terminate_and_an_error_are_told() -> None:
    bench = Bench()
    bench.submit()
    prefill, decode = bench.legs()
    error = EngineError(f"the engine said {PROMPT.decode()}")
    bench.close(prefill, Outcome.FAILED, error=error, retryable=True)
    bench.close(decode, Outcome.CANCELLED)
    prefill, decode = bench.legs()[2:]
    bench.feed(events.LegVerdict(prefill.worker, prefill.leg, True, PROMPT.decode()))
    bench.close(decode, Outcome.FAILED, error=WorkerLostError(PROMPT.decode()))
    (story,) = bench.ended()
    assert [each[1:] for each in told(story)] == [
        ("queued", "", ""),
        ("pair_chosen", "", ""),
        ("closed", "prefill", "engine_error"),
        ("retry", "", "engine_error"),
        ("closed", "decode", "cancelled"),
        ("queued", "", ""),
        ("pair_chosen", "", ""),
        ("verdict", "prefill", "terminate"),
        ("closed", "decode", "worker_lost"),
    ]
    assert story.outcome == "worker_lost"
    everything = msgspec.json.encode(story).decode() + str(log_line(story))
    assert PROMPT.decode() not in everything, "not the prompt, nor what others said of it"


@pytest.mark.promise("S5-202")
def test_where_no_worker_will_do_there_is_one_entry_for_each_worker_and_reason() -> None:
    bench = Bench(workers=0)
    bench.worker(Phase.PREFILL, 0)
    bench.worker(Phase.PREFILL, 1, draining=True)
    bench.worker(Phase.DECODE, 0, fingerprint=FINGERPRINT._replace(page_size=32))
    bench.worker(Phase.DECODE, 1, fingerprint=FINGERPRINT._replace(dtype="f16"))
    bench.worker(Phase.DECODE, 2, fingerprint=FINGERPRINT._replace(page_size=32))
    bench.worker(Phase.DECODE, 3, max_sequences=0)
    bench.worker(Phase.DECODE, 4, fingerprint=FINGERPRINT._replace(model="another"))
    bench.worker(Phase.DECODE, 5, fingerprint=FINGERPRINT._replace(page_size=64))
    bench.submit()
    (story,) = bench.ended()
    assert story.outcome == "no_pair"
    assert story.rejected is not None
    assert [(each.worker, each.phase, each.reason) for each in story.rejected.workers] == [
        ("decode-0:1", "decode", "page_size is 32, but 16 on prefill worker prefill-0:1"),
        ("decode-1:1", "decode", "dtype is 'f16', but 'f32' on prefill worker prefill-0:1"),
        ("decode-2:1", "decode", "page_size is 32, but 16 on prefill worker prefill-0:1"),
        ("decode-3:1", "decode", "it takes no sequences: max_sequences is 0"),
        ("decode-5:1", "decode", "page_size is 64, but 16 on prefill worker prefill-0:1"),
        ("prefill-0:1", "prefill", "page_size is 16, but 32 on decode worker decode-0:1"),
        ("prefill-0:1", "prefill", "dtype is 'f32', but 'f16' on decode worker decode-1:1"),
        ("prefill-1:1", "prefill", "it is draining"),
    ]
    assert bench.core.refusals()["prefill-0:1"].startswith("page_size is 16")
    bench.worker(Phase.DECODE, 0)
    assert bench.core.refusals().keys() == {
        *(f"decode-{index}:1" for index in (1, 2, 3, 4, 5)),
        "prefill-1:1",
    }, "a change of the fleet is seen"


@pytest.mark.promise("S5-202")
def test_a_request_that_waits_tells_which_workers_are_full() -> None:
    bench = Bench(workers=1)
    bench.submit(n=5)
    (story,) = bench.open()
    assert [each.stage for each in story.sequences] == 4 * ["prefilling"] + ["queued"]
    assert story.rejected is not None
    assert [(each.worker, each.reason) for each in story.rejected.workers] == [
        ("decode-0:1", "no slot is free: 4 of 4 taken"),
        ("prefill-0:1", "no slot is free: 4 of 4 taken"),
    ]


def causes(bench: Bench) -> list[str]:
    """Why open requests waited, or wait, the last that came first."""
    return [story.sequences[0].moments[0].cause for story in bench.open()]


@pytest.mark.promise("S5-580")
def test_an_ended_request_still_tells_how_long_it_waited_and_why() -> None:
    bench = Bench(workers=0)
    bench.worker(Phase.PREFILL, 0, max_sequences=8)
    bench.worker(Phase.DECODE, 0, max_sequences=2)
    for first in (1, 2, 3):
        bench.submit(first=first, want_report=True)
    for leg in bench.legs():
        bench.close(leg, Outcome.FINISHED)
    for leg in bench.legs()[4:]:
        bench.close(leg, Outcome.FINISHED)
    cause = "no slot is free on decode, which has 2"
    waits = [each for each in bench.done if isinstance(each, actions.QueueWait)]
    assert [(each.sequence, each.seconds, each.cause) for each in waits] == [
        (1, 0.0, ""),
        (2, 0.0, ""),
        (3, 2.0, cause),
    ]
    story = bench.ended()[-1]
    assert [each.cause for each in story.sequences[0].moments][:2] == [cause, ""]
    queued = story.sequences[0].moments[0]
    assert queued.holders is not None
    assert queued.holders.tenants == {"": 2}
    assert (queued.holders.trace_id, queued.holders.seconds) == (TRACE, 0.0)
    assert queued.workers is not None
    assert [(each.worker, each.reason) for each in queued.workers.workers] == [
        ("decode-0:1", "no slot is free: 2 of 2 taken")
    ]


@pytest.mark.promise("S5-580")
def test_who_waits_just_after_a_worker_stopped_taking_work_is_told_of_that_worker() -> None:
    bench = Bench(workers=0)
    bench.worker(Phase.PREFILL, 0, max_sequences=8)
    for index in range(2):
        bench.worker(Phase.DECODE, index, max_sequences=1)
    for first in (1, 2, 3):
        bench.submit(first=first)
    bench.feed(events.WorkerDraining("decode-1:1", True), after=0.1)
    bench.submit(first=4, trace_id=OTHER)
    (story,) = bench.open(OTHER)
    workers = story.sequences[0].moments[0].workers
    assert workers is not None
    assert ("decode-1:1", "it is draining") in [
        (each.worker, each.reason) for each in workers.workers
    ]


@pytest.mark.promise("S5-580")
def test_who_was_served_at_once_and_who_wants_no_report_costs_nothing() -> None:
    bench = Bench(workers=1)
    bench.submit(n=5)
    assert not any(isinstance(each, actions.QueueWait) for each in bench.done)
    assert causes(bench) == [""]
    (story,) = bench.open()
    assert story.sequences[4].moments[0].cause == (
        "no slot is free on prefill, which has 4; no slot is free on decode, which has 4"
    )


@pytest.mark.promise("S5-580")
def test_each_reason_to_wait_is_told_as_what_it_is() -> None:
    bench = Bench(workers=0)
    bench.worker(Phase.PREFILL, 0, max_sequences=1, parks=True)
    bench.worker(Phase.PREFILL, 1, max_sequences=1)
    bench.worker(Phase.DECODE, 0)
    bench.submit(first=1, context_only=True)
    bench.submit(first=2, context_only=True)
    bench.submit(first=3)
    assert causes(bench) == [
        "others wait before it",
        "no slot is free on a prefill worker that parks KV",
        "",
    ]

    bench = Bench(workers=0)
    for phase, index in itertools.product(Phase, range(2)):
        bench.worker(phase, index, max_sequences=1)
    bench.submit(first=1)
    bench.submit(first=2)
    prefill, decode = bench.legs()[:2]
    error = WorkerLostError("gone")
    bench.close(prefill, Outcome.FAILED, error=error, retryable=True)
    bench.close(decode, Outcome.CANCELLED)
    (again,) = bench.open()[1].sequences
    assert again.moments[-1].cause == "only the pair that failed is free"

    bench.feed(events.WorkerDraining("decode-0:1", True), events.WorkerDraining("decode-1:1", True))
    bench.submit(first=3)
    assert causes(bench)[0] == "no decode worker that could run it takes work"


@pytest.mark.promise("S5-580")
def test_free_slots_of_workers_that_do_not_match_are_no_pair() -> None:
    bench = Bench(workers=0)
    for size, (free, full) in ((16, Phase), (32, reversed([*Phase]))):
        fingerprint = FINGERPRINT._replace(page_size=size)
        bench.worker(free, size, fingerprint=fingerprint, max_sequences=2)
        bench.worker(full, size, fingerprint=fingerprint, max_sequences=1)
    for first in (1, 2, 3):
        bench.submit(first=first)
    assert causes(bench) == ["free slots are on workers that do not match", "", ""]


def test_of_many_rejected_workers_the_first_are_named_and_the_others_counted() -> None:
    bench = Bench(workers=0)
    for index in range(MOST_NAMED + 3):
        bench.worker(Phase.DECODE, index)
    bench.submit()
    (story,) = bench.ended()
    assert story.rejected is not None
    assert (len(story.rejected.workers), story.rejected.more) == (MOST_NAMED, 3)
    assert {each.reason for each in story.rejected.workers} == {
        "no matching prefill worker takes work"
    }


@pytest.mark.promise("S5-202")
def test_a_worker_that_comes_up_has_one_line_for_each_reason() -> None:
    bench = Bench(workers=2)
    bench.worker(Phase.PREFILL, 2, fingerprint=FINGERPRINT._replace(page_size=32))
    bench.done.clear()
    bench.worker(Phase.DECODE, 2, fingerprint=FINGERPRINT._replace(dtype="f16"))
    rejected = [each for each in bench.done if isinstance(each, actions.PairRejected)]
    assert [(each.reason, each.pairs) for each in rejected] == [
        ("dtype is 'f16', but 'f32' on prefill worker prefill-0:1", 3),
    ]
    bench.done.clear()
    odd = FINGERPRINT._replace(page_size=32)
    bench.worker(Phase.DECODE, 3, fingerprint=odd, max_sequences=0)
    rejected = [each for each in bench.done if isinstance(each, actions.PairRejected)]
    assert [(each.reason, each.pairs) for each in rejected] == [
        ("it takes no sequences: max_sequences is 0", 1),
        ("page_size is 32, but 16 on prefill worker prefill-0:1", 2),
    ]
    assert bench.core.snapshot().counts.pairs_rejected == {
        "page_size": 4,
        "dtype": 3,
        "limits": 1,
    }


@pytest.mark.promise("S5-203")
def test_of_many_outputs_the_first_are_told_and_the_others_counted() -> None:
    bench = Bench(max_queue=MAX_OUTPUTS)
    bench.submit(n=MAX_OUTPUTS)
    (story,) = bench.open()
    assert len(story.sequences) == MOST_TOLD
    assert story.more_sequences == {"queued": MAX_OUTPUTS - MOST_TOLD}
    (request,) = bench.core.state.traces.last(TRACE)
    noted = [each.moments is not None for each in request.sequences]
    assert noted == MOST_TOLD * [True] + (MAX_OUTPUTS - MOST_TOLD) * [False]
    bench.feed(events.Cancel(1, 1))
    (story,) = bench.ended()
    assert story.more_sequences == {"cancelled": MAX_OUTPUTS - MOST_TOLD}
    assert len(msgspec.json.encode(story)) < 100_000


@pytest.mark.promise("S5-203")
def test_what_goes_round_for_long_has_a_bounded_story_that_still_tells_its_end() -> None:
    bench = Bench(max_regenerations=MOST_MOMENTS)
    bench.submit(timeout_seconds=10_000.0)
    for _ in range(MOST_MOMENTS):
        prefill, decode = bench.legs()[-2:]
        bench.close(prefill, Outcome.FINISHED)
        bench.close(decode, Outcome.REGENERATE, overlay=b"o")
    bench.feed(events.Cancel(1, 1))
    (story,) = bench.ended()
    assert len(story.sequences[0].moments) == MOST_MOMENTS
    assert story.sequences[0].outcome == "cancelled"


def test_the_prompts_of_one_client_s_request_are_told_together_the_latest_first() -> None:
    bench = Bench()
    for first in range(1, MOST_OF_ONE_TRACE + 3):
        bench.submit(first=first, max_tokens=first)
    last = MOST_OF_ONE_TRACE + 2
    assert [each.max_tokens for each in bench.open()] == list(range(last, 2, -1))
    bench.feed(events.Cancel(1, last))
    assert [each.max_tokens for each in bench.open()] == list(range(last - 1, 1, -1))
    bench.feed(events.FrontendDown(1))
    assert bench.open() == []
    assert len(bench.core.state.traces) == 0


# --- the book ---------------------------------------------------------------------------------


def story_of(trace_id: str, *, rejected: bool = False) -> Story:
    bench = Bench(workers=0 if rejected else 1)
    bench.submit(trace_id=trace_id)
    bench.feed(events.Cancel(1, 1))
    (story,) = bench.ended()
    return story


def traces(count: int) -> list[str]:
    return [f"{index:032x}" for index in range(1, count + 1)]


@pytest.mark.promise("S5-203")
def test_a_book_keeps_the_last_stories_of_a_number_and_of_so_many_bytes() -> None:
    stories = [story_of(each) for each in traces(6)]
    bytes_each = size(stories[0])
    for book in (StoryBook(Story, 6, 10**6), StoryBook(Story, 100, 2 * (3 * bytes_each + 1))):
        for story in stories:
            book.add(story, refused=False)
        assert [bool(book.of(each)) for each in traces(6)] == 3 * [False] + 3 * [True]
        assert book.held == (3, 3 * bytes_each)
    small = StoryBook(Story, 100, 2 * bytes_each - 2)
    small.add(stories[0], refused=False)
    assert small.held == (0, 0), "what has room nowhere pushes nothing out"


@pytest.mark.promise("S5-203")
def test_refused_requests_push_out_no_other_story() -> None:
    book = StoryBook(Story, 10, 10**6)
    book.add(story_of(TRACE), refused=False)
    for each in traces(50):
        book.add(story_of(each, rejected=True), refused=True)
    assert len(book.of(TRACE)) == 1
    assert book.held[0] == 6


def test_a_book_of_no_stories_keeps_none_and_none_has_no_trace_id() -> None:
    for book, trace_id in ((StoryBook(Story, 0, 10**6), TRACE), (StoryBook(Story, 9, 10**6), "")):
        book.add(story_of(trace_id), refused=False)
        book.add(story_of(trace_id), refused=True)
        assert book.held == (0, 0)


def test_one_trace_id_of_many_requests_is_told_in_part_and_forgotten_in_whole() -> None:
    times = itertools.count(1.0)
    book = StoryBook(Story, 2 * (MOST_OF_ONE_TRACE + 5), 10**6, clock=times.__next__)
    for _ in range(MOST_OF_ONE_TRACE + 9):
        book.add(story_of(TRACE), refused=False)
    found = book.of(TRACE)
    assert len(found) == MOST_OF_ONE_TRACE
    assert [ago for ago, _ in found] == sorted(ago for ago, _ in found)
    for each in traces(MOST_OF_ONE_TRACE + 5):
        book.add(story_of(each), refused=False)
    assert book.of(TRACE) == []


def size(story: Story) -> int:
    """What a book counts for it."""
    book = StoryBook(Story, 2, 10**6)
    book.add(story, refused=False)
    return book.held[1]


def deep_size(value: Any, seen: set[int]) -> int:
    """The memory of all that it holds, each object once."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    parts: list[Any] = []
    if isinstance(value, msgspec.Struct):
        parts = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, tuple):
        parts = [*value]
    elif isinstance(value, dict):
        parts = [*value, *value.values()]
    return sys.getsizeof(value) + sum(deep_size(each, seen) for each in parts)


def test_a_story_counts_at_least_what_it_takes() -> None:
    bench = Bench(workers=9, max_regenerations=3)
    bench.submit(tenant="t" * 64)
    bench.submit(first=10, n=64, trace_id=OTHER, tenant="t" * 64, timeout_seconds=10_000.0)
    for _ in range(3):
        bench.close(bench.legs()[-2], Outcome.FINISHED)
        bench.close(bench.legs()[-1], Outcome.REGENERATE, overlay=b"o")
    bench.feed(events.Cancel(1, 1), events.Cancel(1, 10))
    for story in bench.ended():
        book = StoryBook(Story, 2, 10**6)
        book.add(story, refused=False)
        (kept,) = book._ran.kept
        takes = deep_size((kept, book._ran._by_trace), set())
        assert takes <= size(story) < 2 * takes
        assert book.of(story.trace_id)[0][1] == story, "and is told as it was"


# --- as it is told ----------------------------------------------------------------------------


class Asked:
    """A router with an admin port, two workers that a test speaks for, and one frontend."""

    def __init__(self, relay: Relay, address: str) -> None:
        self.relay = relay
        self.address = address
        for phase in Phase:
            relay.worker_up(
                phase.value, WorkerLink(), listed_as=phase, profile=profile(phase, phase.value)
            )
        relay.handle(events.FrontendUp(77))

    def submit(self, first: int = 1, n: int = 1, trace_id: str = TRACE) -> None:
        self.relay.handle(
            submits.submit(
                first,
                frontend=77,
                n=n,
                model="tiny",
                timeout_seconds=60.0,
                task=PROMPT,
                trace_id=trace_id,
            )
        )

    async def get(self, path: str) -> tuple[int, str, bytes]:
        def ask() -> tuple[int, str, bytes]:
            try:
                with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
                    return answer.status, answer.headers["content-type"], answer.read()
            except urllib.error.HTTPError as error:
                return error.code, error.headers["content-type"], error.read()

        return await asyncio.to_thread(ask)


@pytest.fixture
def address(free: FreePorts) -> str:
    return free.address()


class Nobody:
    """A frontend that reads nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: ""


def asked_of(served: Any, address: str) -> Asked:
    served.relay._frontends[77] = Nobody()
    return Asked(served.relay, address)


@pytest.mark.promise("S5-201", "S5-204")
async def test_the_admin_port_tells_stories_of_open_and_of_ended_requests(address: str) -> None:
    config = RouterConfig(listen="127.0.0.1:0", metrics_listen=address, max_stories=2)
    nobody = StaticDiscovery(prefill=(), decode=())
    async with running(config, discovery=nobody, with_admin=True) as served:
        asked = asked_of(served, address)
        status, kind, body = await asked.get(f"/debug/requests/{TRACE}")
        assert (status, kind) == (404, "application/json")
        assert json.loads(body)["error"]["code"] == "unknown_trace_id"
        for wrong in ("", "x" * 32, TRACE.upper(), TRACE + "0", "%00", f"{TRACE}/.."):
            status, kind, body = await asked.get(f"/debug/requests/{wrong}")
            if "/" in wrong:
                assert status == 404
                continue
            assert (status, kind) == (400, "application/json"), wrong
            assert json.loads(body)["error"]["code"] == "invalid_trace_id"
        asked.submit()
        status, kind, body = await asked.get(f"/debug/requests/{TRACE}")
        answer = json.loads(body)
        assert (status, kind, answer["left_out"]) == (200, "application/json", 0)
        (only,) = answer["requests"]
        assert only["ended_seconds_ago"] is None
        assert only["story"]["sequences"][0]["stage"] == "prefilling"
        names = [each["name"] for each in only["story"]["sequences"][0]["moments"]]
        assert names == ["queued", "pair_chosen"]
        served.relay.handle(events.Cancel(77, 1))
        asked.submit(first=2)
        answer = json.loads((await asked.get(f"/debug/requests/{TRACE}?x"))[2])
        assert [each["ended_seconds_ago"] is None for each in answer["requests"]] == [True, False]
        assert [each["story"]["outcome"] for each in answer["requests"]] == ["", "cancelled"]
        assert PROMPT not in body
        served.relay.handle(events.Cancel(77, 2))
        assert served.relay.book.held[0] == 1, "max_stories is the setting"


async def test_an_answer_has_a_bound_and_tells_how_much_is_left_out(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RouterConfig(listen="127.0.0.1:0", metrics_listen=address)
    nobody = StaticDiscovery(prefill=(), decode=())
    async with running(config, discovery=nobody, with_admin=True) as served:
        asked = asked_of(served, address)
        for first in range(1, 5):
            asked.submit(first=first)
        whole = json.loads((await asked.get(f"/debug/requests/{TRACE}"))[2])
        assert (len(whole["requests"]), whole["left_out"]) == (4, 0)
        one = len(json.dumps(whole["requests"][-1], separators=(",", ":")))
        for bound, shown in ((int(2.5 * one), 2), (1, 1)):
            monkeypatch.setattr(story_pages, "MAX_ANSWER_BYTES", bound)
            answer = json.loads((await asked.get(f"/debug/requests/{TRACE}"))[2])
            assert (len(answer["requests"]), answer["left_out"]) == (shown, 4 - shown)


def logging_relay(*, log_requests: bool) -> Relay:
    bench = Bench()
    relay = Relay(bench.core, log_requests=log_requests, clock=lambda: 100.0)
    relay._frontends[1] = Nobody()  # type: ignore[assignment]
    return relay


def end_one(relay: Relay) -> None:
    submit = submits.submit(
        1,
        n=1,
        model="another",
        timeout_seconds=1.0,
        task=PROMPT,
        trace_id=TRACE,
    )
    relay.handle(submit)


@pytest.mark.promise("S5-201")
def test_one_line_tells_a_request_s_story_where_the_setting_asks_for_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    end_one(logging_relay(log_requests=True))
    (line,) = [each for each in caplog.records if each.message == "request ended"]
    assert (line.levelname, line.trace_id, line.outcome) == (  # type: ignore[attr-defined]
        "INFO",
        TRACE,
        "model_not_found",
    )
    story = msgspec.json.decode(line.story, type=Story)  # type: ignore[attr-defined]
    assert (story.trace_id, story.outcome) == (TRACE, "model_not_found")
    caplog.clear()
    monkeypatch.setattr(relay_module, "log_line", None)  # it would raise: nobody makes the line
    end_one(logging_relay(log_requests=False))
    assert caplog.records == []


def test_a_line_holds_the_last_moments_of_the_first_sequences_of_a_long_story() -> None:
    bench = Bench(workers=9, max_regenerations=30)
    bench.submit(n=30)
    for _ in range(20):
        bench.close(bench.legs()[0], Outcome.FINISHED)
        bench.close(bench.legs()[1], Outcome.REGENERATE, overlay=b"o")
        del bench.done[: len(bench.done) - 2]
    (story,) = bench.open()
    short = shortened(story)
    assert [each.output_index for each in short.sequences] == [0, 1, 2, 3]
    (first, *_), (whole, *_) = short.sequences, story.sequences
    assert first.moments == whole.moments[-24:] != whole.moments
    assert shortened(short) is short
    assert len(log_line(short)["story"]) < 32 * 1024  # type: ignore[arg-type]


@pytest.mark.promise("S5-715")
def test_a_story_tells_what_a_prompt_waited_for_and_who_had_more_of_it() -> None:
    bench = Bench(workers=0, prefill_policy=Prefix)
    bench.worker(Phase.PREFILL, 0, max_sequences=1, kv_endpoint="p:1", context_length=10_000)
    bench.worker(Phase.PREFILL, 1, max_sequences=2, kv_endpoint="p:2", context_length=10_000)
    bench.worker(Phase.DECODE, 0, max_sequences=8, context_length=10_000)
    blocks = tuple(range(1, 11))
    for worker in ("prefill-0:1", "prefill-1:1"):
        bench.feed(worker_load(worker, 0, cache=cache_changes(anew=True, entered=())))
    bench.feed(worker_load("prefill-0:1", 0, cache=cache_changes(anew=False, entered=blocks)))
    bench.submit(1, prompt_tokens=700, max_tokens=8, prompt_blocks=blocks, trace_id=OTHER)
    bench.submit(2, prompt_tokens=650, max_tokens=8, prompt_blocks=blocks)
    bench.submit(3, prompt_tokens=640, max_tokens=8)
    last, second = (story.sequences[0].moments[1] for story in bench.open())
    assert second.prefill is not None
    assert (second.prefill.worker, second.prefill.cached) == ("prefill-1:1", 0)
    assert second.prefill.elsewhere == Elsewhere(
        "prefill-0:1", "prefill-0", 640, "no slot was free: 1 of 1 taken", 0.0
    )
    assert second.ahead is None
    assert last.ahead == Ahead(tokens=650, prompts=1, largest=650, trace_id=TRACE)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"fingerprint": FINGERPRINT._replace(model="big")}, id="of another model"),
        pytest.param({}, id="with no more of it"),
    ],
)
def test_a_worker_that_could_not_have_done_better_is_not_told_of(other: dict[str, Any]) -> None:
    bench = Bench(workers=0, prefill_policy=Prefix)
    bench.worker(Phase.PREFILL, 0, kv_endpoint="p:1", context_length=10_000, **other)
    bench.worker(Phase.DECODE, 0, context_length=10_000, **other)
    bench.worker(Phase.PREFILL, 1, kv_endpoint="p:2", context_length=10_000)
    bench.worker(Phase.DECODE, 1, context_length=10_000)
    blocks = tuple(range(1, 11))
    for worker in ("prefill-0:1", "prefill-1:1")[: 1 if other else 2]:
        bench.feed(worker_load(worker, 0, cache=cache_changes(anew=False, entered=blocks)))
    bench.submit(prompt_tokens=640, max_tokens=8, prompt_blocks=blocks)
    (story,) = bench.open()
    chosen = story.sequences[0].moments[1].prefill
    assert chosen is not None
    assert chosen.elsewhere is None


@pytest.mark.promise("S5-715")
def test_a_closed_leg_s_times_are_told_beside_what_so_many_tokens_usually_took() -> None:
    bench = Bench(workers=1)
    for first in (1, 2, 3):
        bench.submit(first)
        prefill, decode = bench.legs()[-2:]
        slow = 5.0 if first == 3 else 1.0
        times = LegTimes(phase="decode", request_id=9, seconds=2 * slow, first=slow, tokens=11)
        bench.close(prefill, Outcome.FINISHED)
        bench.close(decode, Outcome.FINISHED, times=times)
    *_, story = bench.ended()
    closed = story.sequences[0].moments[-1]
    assert closed.times == times
    assert closed.usual == pytest.approx(1.0), "as before, not as this once"
    assert story.delay == pytest.approx(story.sequences[0].seconds - 1.0)


def test_a_worker_that_claims_more_time_than_has_passed_spoils_no_usual_time() -> None:
    bench = Bench(workers=1)
    for claimed in (1e300, 1.0):
        bench.submit(len(bench.legs()) + 1)
        prefill, decode = bench.legs()[-2:]
        times = LegTimes(phase="decode", request_id=9, seconds=claimed + 1, first=1.0, tokens=11)
        bench.close(prefill, Outcome.FINISHED)
        bench.close(decode, Outcome.FINISHED, times=times)
    *_, story = bench.ended()
    assert story.sequences[0].moments[-1].usual == pytest.approx(2.0), "since its legs began"


@pytest.mark.promise("S5-716")
async def test_the_admin_port_lists_the_last_requests_and_the_slowest(address: str) -> None:
    config = RouterConfig(listen="127.0.0.1:0", metrics_listen=address)
    nobody = StaticDiscovery(prefill=(), decode=())
    async with running(config, discovery=nobody, with_admin=True) as served:
        asked = asked_of(served, address)
        status, _, body = await asked.get("/debug/requests")
        assert (status, json.loads(body)) == (200, {"kept": 0, "recent": [], "slowest": []})
        ids = traces(MOST_LISTED + 2)
        stories = [msgspec.structs.replace(story_of(each), sequences=()) for each in ids]
        slow = SequenceStory(0, "ended", "finished", 9.0, ())
        stories[0] = msgspec.structs.replace(stories[0], sequences=(slow,))
        for each in stories:
            served.relay.book.add(each, refused=False)
        _, _, body = await asked.get("/debug/requests")
        told = json.loads(body)
        assert told["kept"] == MOST_LISTED + 2
        assert [each["trace_id"] for each in told["recent"]] == ids[: -MOST_LISTED - 1 : -1]
        assert told["slowest"][0] == {
            "trace_id": ids[0],
            "outcome": "cancelled",
            "delay": 9.0,
            "model": "tiny",
            "tenant": "",
            "seconds": stories[0].seconds,
            "ended_seconds_ago": told["slowest"][0]["ended_seconds_ago"],
        }
        assert len(told["slowest"]) == MOST_LISTED
        assert PROMPT not in body


@pytest.mark.parametrize("name", ["max_stories", "max_story_bytes"])
def test_settings_below_nothing_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 0"):
        RouterConfig(**{name: -1})
