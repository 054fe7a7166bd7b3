"""How much a router tells of a request, for how long, and to whom; what is told is in
tests/unit/router_traces/stories.txt.
"""

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
from router_bench import FINGERPRINT, Memory
from router_loads import cache_changes, worker_load
from simulated import submits

from tandem import story_pages
from tandem.endings import Outcome
from tandem.errors import ConfigError
from tandem.free_ports import FreePorts
from tandem.message_limits import MAX_OUTPUTS
from tandem.story_book import MOST_OF_ONE_TRACE, StoryBook, log_line
from tandem.story_pages import MOST_LISTED
from tandem.timeline import LegTimes
from tandem_router import relay as relay_module
from tandem_router.config import RouterConfig
from tandem_router.core import actions, events
from tandem_router.core.rejections import MOST_NAMED
from tandem_router.core.sequences import MOST_MOMENTS, MOST_TOLD
from tandem_router.core.story import Ahead, LongerHolder, SequenceStory, Story, shortened
from tandem_router.core.values import Phase, Profile
from tandem_router.discovery.static import StaticDiscovery
from tandem_router.links import WorkerLink
from tandem_router.policies import Prefix
from tandem_router.relay import Relay
from tandem_router.server import running

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
OTHER = "0af7651916cd43dd8448eb211c80319c"
PROMPT = b"what nobody else may read"


def profile(phase: Phase, name: str = "w", **fields: Any) -> Profile:
    given = {"fingerprint": FINGERPRINT, "max_sequences": 4, "context_length": 100, **fields}
    return Profile(name=name, phase=phase, **given)


class Bench(Memory):
    """A core with so many workers of each phase."""

    def __init__(self, workers: int = 2, **bounds: Any) -> None:
        super().__init__(workers, workers, **bounds)

    def worker(self, phase: Phase, index: int = 0, **profile: Any) -> str:
        return super().worker(phase, index, **{"max_sequences": 4, **profile})

    def submit(self, first: int = 1, **fields: Any) -> list[actions.Action]:
        return super().submit(first, **{"trace_id": TRACE, "task": PROMPT, **fields})

    def open(self, trace_id: str = TRACE) -> list[Story]:
        return self.core.stories(trace_id, self.now)

    def ended(self) -> list[Story]:
        return [each.story for each in self.of_all(actions.RequestEnded)]


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
        prefill, decode = bench.started()[-2:]
        bench.end(prefill)
        bench.end(decode, outcome=Outcome.REGENERATE, overlay=b"o")
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
        bench.end(bench.started()[-2])
        bench.end(bench.started()[-1], outcome=Outcome.REGENERATE, overlay=b"o")
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
        bench.end(bench.started()[0])
        bench.end(bench.started()[1], outcome=Outcome.REGENERATE, overlay=b"o")
        del bench.all[: len(bench.all) - 2]
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
    for worker in ("prefill-0", "prefill-1"):
        bench.feed(worker_load(worker, 0, cache=cache_changes(anew=True, entered=())))
    bench.feed(worker_load("prefill-0", 0, cache=cache_changes(anew=False, entered=blocks)))
    bench.submit(1, prompt_tokens=700, max_tokens=8, prompt_blocks=blocks, trace_id=OTHER)
    bench.submit(2, prompt_tokens=650, max_tokens=8, prompt_blocks=blocks)
    bench.submit(3, prompt_tokens=640, max_tokens=8)
    last, second = (story.sequences[0].moments[1] for story in bench.open())
    assert second.prefill is not None
    assert (second.prefill.worker, second.prefill.cached) == ("prefill-1", 0)
    assert second.prefill.elsewhere == LongerHolder(
        "prefill-0", "prefill-0", 640, "no slot was free: 1 of 1 taken", 0.0
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
    for worker in ("prefill-0", "prefill-1")[: 1 if other else 2]:
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
        prefill, decode = bench.started()[-2:]
        slow = 5.0 if first == 3 else 1.0
        times = LegTimes(phase="decode", request_id=9, seconds=2 * slow, first=slow, tokens=11)
        bench.end(prefill)
        bench.end(decode, times=times)
    *_, story = bench.ended()
    closed = story.sequences[0].moments[-1]
    assert closed.times == times
    assert closed.usual == pytest.approx(1.0), "as before, not as this once"
    assert story.delay == pytest.approx(story.sequences[0].seconds - 1.0)


def test_a_worker_that_claims_more_time_than_has_passed_spoils_no_usual_time() -> None:
    bench = Bench(workers=1)
    for claimed in (1e300, 1.0):
        bench.submit(len(bench.started()) + 1)
        prefill, decode = bench.started()[-2:]
        times = LegTimes(phase="decode", request_id=9, seconds=claimed + 1, first=1.0, tokens=11)
        bench.end(prefill)
        bench.end(decode, times=times)
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
