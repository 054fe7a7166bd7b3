"""Which router serves which decode worker, where several divide them."""

from __future__ import annotations

import logging
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest
from fake_fleet import FakeWorker, until
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from test_router_discovery_workers import Fleet, fleet

from tandem_router import debug, metrics
from tandem_router.config import RouterConfig
from tandem_router.core.values import Phase
from tandem_router.discovery import Listed, Share, make_share
from tandem_router.discovery.share import servers

ROUTERS = [f"10.0.1.{each}:7000" for each in range(1, 9)]
WORKERS = [f"10.{each // 250}.2.{each % 250}:7200" for each in range(2_000)]
MOST_UNEVEN = 1.2
"""Decode workers of a router, beside the mean: eight routers, 2,000 workers."""

names = st.lists(st.text("abcdef0123456789.:", min_size=1, max_size=12), unique=True, max_size=12)


# --- who serves a worker -----------------------------------------------------------------------


@pytest.mark.promise("S5-270")
@given(names, st.text(min_size=1), st.integers(1, 5), st.randoms(use_true_random=False))
def test_a_worker_has_as_many_routers_as_asked_for_in_whatever_order_they_are_listed(
    routers: list[str], worker: str, number: int, chance: random.Random
) -> None:
    serving = servers(worker, routers, number)
    assert len(set(serving)) == len(serving) == min(number, len(routers))
    assert set(serving) <= set(routers)
    shuffled = chance.sample(routers, len(routers))
    assert servers(worker, shuffled, number) == serving


def test_each_process_and_version_agrees() -> None:
    """The order must never change: routers of two versions divide the same workers."""
    order = servers("10.0.0.9:7200", ROUTERS, 8)
    assert [ROUTERS.index(each) + 1 for each in order] == [4, 5, 3, 6, 7, 8, 2, 1]


@pytest.mark.promise("S5-271")
@given(names.filter(bool), st.text(min_size=1), st.integers(1, 5), st.data())
def test_a_router_that_goes_moves_its_own_shares_alone(
    routers: list[str], worker: str, number: int, data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(routers))
    before = servers(worker, routers, number)
    after = servers(worker, [each for each in routers if each != gone], number)
    if gone in before:
        assert set(before) - {gone} <= set(after)
    else:
        assert after == before


@pytest.mark.promise("S5-270")
@pytest.mark.parametrize("number", [1, 2, 4])
def test_the_shares_are_nearly_even(number: int) -> None:
    count = Counter(each for worker in WORKERS for each in servers(worker, ROUTERS, number))
    mean = len(WORKERS) * number / len(ROUTERS)
    assert max(count.values()) < MOST_UNEVEN * mean
    assert min(count[each] for each in ROUTERS) > (2 - MOST_UNEVEN) * mean


def test_what_a_router_leaves_goes_to_all_others() -> None:
    left = [each for each in WORKERS if servers(each, ROUTERS, 1) == ROUTERS[:1]]
    heirs = Counter(servers(each, ROUTERS[1:], 1)[0] for each in left)
    assert len(heirs) == len(ROUTERS) - 1
    assert max(heirs.values()) < len(left) / 3


# --- the share of one router -------------------------------------------------------------------


def _share(own: str = ROUTERS[0], number: int = 2, at_least: int = 0) -> Share:
    return Share(own, decode_routers=number, decode_routers_from=at_least)


def _fleet(decode: int = 100, prefill: int = 10) -> dict[str, Phase]:
    return {
        **{f"10.9.9.{each}:7100": Phase.PREFILL for each in range(prefill)},
        **dict.fromkeys(WORKERS[:decode], Phase.DECODE),
    }


@pytest.mark.promise("S5-270")
def test_routers_serve_all_of_prefill_and_their_share_of_decode() -> None:
    workers = _fleet()
    shares = [_share(each).of(workers, frozenset(ROUTERS)) for each in ROUTERS]
    served = Counter(address for share in shares for address in share)
    assert {served[each] for each in workers if workers[each] is Phase.PREFILL} == {len(ROUTERS)}
    assert {served[each] for each in workers if workers[each] is Phase.DECODE} == {2}
    assert all(share[each] is workers[each] for share in shares for each in share)


@pytest.mark.promise("S5-272")
def test_a_small_fleet_is_served_by_all() -> None:
    share = _share(number=1, at_least=64)
    routers = frozenset(ROUTERS)
    assert share.of(_fleet(63), routers) == _fleet(63)
    assert len(share.of(_fleet(64), routers)) < len(_fleet(64))
    assert share.of(_fleet(63), routers) == _fleet(63), "also when it has become small again"


@pytest.mark.promise("S5-272")
def test_without_the_setting_a_router_serves_all() -> None:
    workers = _fleet(1000)
    assert make_share(RouterConfig()).of(workers, frozenset(ROUTERS)) == workers
    assert not make_share(RouterConfig()).routers


def test_the_settings_make_the_share() -> None:
    settings = RouterConfig(
        routers=tuple(ROUTERS), listen=ROUTERS[3], decode_routers=3, decode_routers_from=50
    )
    workers, routers = _fleet(50), frozenset(ROUTERS)
    expected = _share(ROUTERS[3], 3).of(workers, routers)
    assert make_share(settings).of(workers, routers) == expected
    assert make_share(settings).of(_fleet(49), routers) == _fleet(49)


@pytest.mark.promise("S5-273")
def test_a_router_that_is_not_listed_counts_itself_in() -> None:
    """One that starts serves what will be its share; one that nobody else is listed with, all."""
    listed = frozenset(ROUTERS[1:])
    assert _share().of(_fleet(), listed) == _share().of(_fleet(), frozenset(ROUTERS))
    assert _share(number=1).of(_fleet(), frozenset()) == _fleet()


@pytest.mark.promise("S5-273")
def test_routers_that_know_of_different_ones_serve_each_worker_as_one_of_them_says() -> None:
    """The last of the routers is new, and only some have heard. None that has not heard of it
    gives up anything; those that have, only what the new one serves.
    """
    workers = _fleet()
    old, new = frozenset(ROUTERS[:-1]), frozenset(ROUTERS)
    knowing = {each: index % 2 == 0 for index, each in enumerate(ROUTERS)}
    served = Counter(
        address
        for router, knows in knowing.items()
        for address in _share(router).of(workers, new if knows or router == ROUTERS[-1] else old)
    )
    assert {served[each] for each in WORKERS[:100]} == {2, 3}


def test_a_share_follows_the_routers_and_the_workers() -> None:
    """What is kept of an answer is true of the routers that it was given for."""
    one, chance = _share(), random.Random(7)
    for _ in range(50):
        routers = frozenset(chance.sample(ROUTERS, chance.randint(0, 8)))
        workers = dict(chance.sample(sorted(_fleet(60).items()), chance.randint(1, 60)))
        assert one.of(workers, routers) == _share().of(workers, routers)
        assert one.routers == routers | {ROUTERS[0]}


def test_nothing_is_hashed_again_that_has_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that comes costs one look, however many there are."""
    asked: list[str] = []

    def counting(worker: str, *rest: object) -> list[str]:
        asked.append(worker)
        return servers(worker, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("tandem_router.discovery.share.servers", counting)
    share, routers = _share(), frozenset(ROUTERS)
    share.of(_fleet(100), routers)
    assert len(asked) == 100
    share.of(_fleet(101), routers)
    assert asked[100:] == [WORKERS[100]]


def test_a_change_of_the_routers_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    share = _share()
    with caplog.at_level(logging.INFO):
        for routers in (ROUTERS, ROUTERS, ROUTERS[1:], ROUTERS[:2]):
            share.of(_fleet(), frozenset(routers))
    assert [each.__dict__["count"] for each in caplog.records] == [8, 2]


# --- a router that divides with another --------------------------------------------------------


MINE, OTHER = "10.0.1.1:0", "10.0.1.2:0"
SHARED: dict[str, Any] = {
    "discovery": "dns",  # in word: tests say what is listed
    "routers": ("routers:7000",),
    "advertise_host": "10.0.1.1",
    "decode_routers": 1,
}


async def _decode_of(router: str, f: Fleet, *others: FakeWorker) -> FakeWorker:
    """A decode worker that this router of the two would serve."""
    while True:
        made = await f.worker(Phase.DECODE)
        if servers(made.address, (MINE, OTHER), 1) == [router]:
            return made


@pytest.mark.promise("S5-274")
async def test_a_worker_that_another_router_takes_over_finishes_what_is_open() -> None:
    async with fleet(**SHARED, decode_routers_from=2) as f:
        moving = await _decode_of(OTHER, f)
        f.discovery.say(f.prefill, moving)
        call = f.generate()
        stream = await moving.stream()
        prefill = await f.prefill.stream()
        first, second = await prefill.start(), await stream.start()
        mine = await _decode_of(MINE, f)
        f.discovery.say(f.prefill, moving, mine, routers=(MINE, OTHER))
        await until(lambda: "this router's share" in f.status(moving).refused)
        reports = stream.reports
        await until(lambda: stream.reports > reports + 2)
        assert moving.live == [stream]
        other = f.generate()
        await (await mine.stream()).start()
        prefill.finish(first)
        stream.finish(second)
        await until(lambda: not moving.live)
        assert [answer async for answer in call], "it was served to its end"
        other.cancel()


@pytest.mark.promise("S5-274")
async def test_the_share_of_a_router_that_dies_is_taken_over() -> None:
    async with fleet(**SHARED, decode_routers_from=0) as f:
        orphan = await _decode_of(OTHER, f)
        f.discovery.say(f.prefill, orphan, routers=(MINE, OTHER))
        await until(lambda: f.router.workers.served()[Phase.DECODE] == 0)
        await until(lambda: not f.router.relay.ready)
        assert f.router.ready, "it lets requests wait"
        assert not orphan.streams
        f.discovery.say(f.prefill, orphan, routers=(MINE,))
        await until(lambda: f.router.relay.ready)
        assert len(orphan.streams) == 1


@pytest.mark.promise("S5-275")
async def test_a_router_says_what_its_share_is() -> None:
    async with fleet(**SHARED, decode_routers_from=0) as f:
        mine, others = await _decode_of(MINE, f), await _decode_of(OTHER, f)
        absent = Listed("127.0.0.1:1", Phase.PREFILL)
        f.discovery.say(f.prefill, mine, others, absent, routers=(MINE, OTHER))
        await until(lambda: f.router.workers.discovered()[Phase.DECODE] == 2)
        assert f.router.workers.served() == {Phase.PREFILL: 2, Phase.DECODE: 1}
        registry = metrics.new_registry(lambda: metrics.read(f.router.relay, f.router.workers))
        text = generate_latest(registry).decode()
        for series in (
            'discovered_workers{phase="decode"} 2.0',
            'served_workers{phase="decode"} 1.0',
            'served_workers{phase="prefill"} 2.0',
            "dividing_routers 2.0",
        ):
            assert f"tandem_router_{series}\n" in text
        await until(
            lambda: f.decode.address not in {each.address for each in f.router.workers.told()}
        )
        assert {each.address for each in f.router.workers.told()} == {
            f.prefill.address,
            mine.address,
            absent.address,
        }
        shown = debug.fleet(f.router.relay, f.router.workers).body
        assert b'"routers":["10.0.1.1:0","10.0.1.2:0"]' in shown
        assert b'"discovered":{"prefill":2,"decode":2},"served":{"prefill":2,"decode":1}' in shown


async def test_two_routers_that_both_serve_a_worker_do_not_overfill_it() -> None:
    """Each believes to be the only one: a worker's slots are counted by itself."""
    async with AsyncExitStack() as exits:
        f = await exits.enter_async_context(fleet(slots=1, **SHARED, decode_routers_from=0))
        other = await f.second_router(**SHARED | {"advertise_host": "10.0.1.2"})
        calls = [f.generate(), other.generate()]
        await until(lambda: f.decode.open_legs == 1)
        reports = [each.reports for each in f.decode.live]
        assert len(reports) == 2
        await until(
            lambda: all(a.reports > b + 2 for a, b in zip(f.decode.live, reports, strict=True))
        )
        assert f.decode.open_legs == 1
        for each in calls:
            each.cancel()
