"""What readings of a fleet come to, and how `tandem top` draws it on screens of any size."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from tandem.cli.client import ApiError
from tandem_tools.top import frame, scrapes
from tandem_tools.top.figures import FleetFigures, FleetHistory, WorkerFigures, quantile
from tandem_tools.top.frame import ORDERS, FleetView
from tandem_tools.top.readings import FleetReading, RouterReading, WorkerSeen
from tandem_tools.top.scrapes import EngineReading, FrontendReading

RECORDED = Path(__file__).parent / "recorded_fleet"
"""Of a sim stack of 12 clients, twice, 5 s apart: answers of metrics ports, lines left out."""
HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m[red]a[/] \u202eb\r\n"
"""What a terminal would obey, and markup of rich."""
SIZES = [(44, 12), (80, 24), (200, 50)]


def worker(address: str, **fields: Any) -> WorkerSeen:
    given = {
        "address": address,
        "name": f"worker-{address}",
        "phase": "decode",
        "connected": True,
        "refused": "",
        "silent_seconds": 0.0,
        "faults": 0,
        "open_legs": 1,
        "other_legs": 0,
        "slots": 8,
        "overdue_legs": 0,
        "standing": "whole",
        "failed_legs": 0,
        "ended_legs": 0,
    }
    return WorkerSeen(**(given | fields))


def router(*workers: WorkerSeen, **fields: Any) -> RouterReading:
    given = {
        "queue_length": 0,
        "queue_limit": 1024,
        "open_sequences": 0,
        "frontends": 1,
        "ready_pairs": 1,
        "draining": False,
        "requests": {},
        "retries": 0,
        "workers": list(workers),
    }
    return RouterReading(**(given | fields))


def figures_of(now: FleetReading, before: FleetReading | None = None) -> FleetFigures:
    return FleetHistory(before or now).take(now)


def of_routers(*routers: RouterReading) -> FleetFigures:
    return figures_of(FleetReading(1.0, {f"r:{place}": each for place, each in enumerate(routers)}))


def recorded(number: int, at: float) -> FleetReading:
    def text(name: str) -> str:
        return (RECORDED / f"{name}.{number}.prom").read_text()

    names = ("prefill_worker-0", "decode_worker-0", "decode_worker-1")
    told = json.loads((RECORDED / f"router.{number}.json").read_text())
    return FleetReading(
        at,
        {"127.0.0.1:7001": msgspec.convert(told, RouterReading)},
        {f"127.0.0.1:{name}": scrapes.engines(text(name)) for name in names},
        {"127.0.0.1:8001": scrapes.frontend(text("frontend"))},
    )


def of_recorded() -> FleetFigures:
    names = {f"127.0.0.1:{path.name[:-7]}": path.name[:-7] for path in RECORDED.glob("*.1.prom")}
    return FleetHistory(recorded(1, 0.0), names).take(recorded(2, 5.0))


def drawn(
    figures: FleetFigures, width: int, height: int, view: FleetView | None = None, **more: Any
) -> list[str]:
    """The lines of a screen, without colours."""
    view = view or FleetView(address="http://127.0.0.1:8000", interval=1.0)
    view.remember(figures)
    stream = io.StringIO()
    options = {"color_system": None, "markup": False, "emoji": False, "highlight": False} | more
    console = Console(
        file=stream, force_terminal=True, legacy_windows=False, width=width, height=height,
        **options,
    )  # fmt: skip
    console.print(frame.screen(figures, view, console))
    return stream.getvalue().splitlines()


# --- figures -------------------------------------------------------------------------------------


@pytest.mark.promise("S5-748")
def test_recorded_answers_come_to_latencies_goodput_and_speeds() -> None:
    figures = of_recorded()
    traffic = figures.traffic
    assert traffic is not None
    before, now = (
        scrapes.frontend((RECORDED / f"frontend.{each}.prom").read_text()) for each in (1, 2)
    )
    assert figures.models == ["tandem-tiny"]
    assert figures.versions == ["0.1.0"]
    assert now.requests > before.requests > 0
    assert traffic.requests_per_second == pytest.approx((now.requests - before.requests) / 5)
    assert traffic.tokens_per_second == pytest.approx((now.tokens - before.tokens) / 5)
    assert traffic.goodput_share == pytest.approx(
        (now.met - before.met) / (now.compared - before.compared)
    )
    assert traffic.slo == {"ttft": 2.0, "itl": 0.1}
    assert 0 < traffic.ttft["p50"] <= traffic.ttft["p90"] <= traffic.ttft["p99"] < 5
    by_name = {each.name: each for each in figures.workers}
    assert set(by_name) == {
        "prefill_worker-0", "prefill_worker-1", "decode_worker-0", "decode_worker-1",
    }  # fmt: skip
    decode = by_name["decode_worker-0"]
    assert decode.tokens_per_second
    assert decode.kv_used_ratio is not None
    assert by_name["prefill_worker-1"].kv_used_ratio is None, "its metrics port was not asked"


def test_a_quantile_lies_between_bounds_in_proportion() -> None:
    buckets = {0.1: 50.0, 0.2: 100.0, 1.0: 100.0, math.inf: 100.0}
    assert quantile(buckets, 0.5) == pytest.approx(0.1)
    assert quantile(buckets, 0.75) == pytest.approx(0.15)
    assert quantile({0.1: 0.0, math.inf: 4.0}, 0.5) == 0.1, "beyond the last bound"
    assert quantile({0.1: 0.0, math.inf: 0.0}, 0.5) is None
    assert quantile({}, 0.5) is None


def frontend(requests: float, **fields: Any) -> FrontendReading:
    return FrontendReading(requests=requests, **fields)


def grown(then: Any, now: FrontendReading) -> Any:
    before = FleetReading(0.0, frontends={"f:1": then})
    return figures_of(FleetReading(2.0, frontends={"f:1": now}), before).traffic


def test_a_frontend_that_started_again_counts_from_zero() -> None:
    told = grown(
        frontend(900, tokens=9000, ttft={1.0: 900.0, math.inf: 900.0}),
        frontend(6, tokens=40, met=4, compared=5, errors={"no_workers": 2.0},
                 ttft={1.0: 6.0, math.inf: 6.0}),
    )  # fmt: skip
    assert told.requests_per_second == 3.0
    assert told.tokens_per_second == 20.0
    assert told.goodput_share == 0.8
    assert told.errors == {"no_workers": 2.0}
    assert told.ttft["p50"] == pytest.approx(0.5)


def test_a_frontend_that_did_not_answer_before_is_not_counted_since_its_start() -> None:
    told = grown(ApiError("away"), frontend(6000, tokens=60_000))
    assert told.requests_per_second == 0.0
    assert told.tokens_per_second == 0.0


def test_a_frontend_that_misses_one_reading_is_counted_on() -> None:
    history = FleetHistory(FleetReading(0.0, frontends={"f:1": ApiError("away")}))
    history.take(FleetReading(2.0, frontends={"f:1": frontend(100)}))
    history.take(FleetReading(4.0, frontends={"f:1": ApiError("away")}))
    told = history.take(FleetReading(6.0, frontends={"f:1": frontend(120)})).traffic
    assert told is not None
    assert told.requests_per_second == 5.0, "20 in the 4 s since its first answer"


def test_latencies_are_those_of_the_last_minute() -> None:
    def reading(second: int, slow: float) -> FleetReading:
        buckets = {0.1: float(second), 10.0: second + slow, math.inf: second + slow}
        return FleetReading(float(second), frontends={"f:1": frontend(second, ttft=buckets)})

    history = FleetHistory(reading(0, 0))
    for second in range(1, 200):
        figures = history.take(reading(second, slow=min(second, 50)))
        assert figures.window_seconds <= 62
        assert figures.traffic is not None
        slow_ones_are_in = second - figures.window_seconds < 50
        assert (figures.traffic.ttft["p99"] > 0.1) == slow_ones_are_in, second


def test_a_router_has_its_queue_and_what_ended_since_the_last_frame() -> None:
    then = router(requests={"finished": 10, "queue_full": 1, "cancelled": 4})
    now = router(
        queue_length=7,
        open_sequences=3,
        ready_pairs=4,
        retries=2,
        draining=True,
        requests={"finished": 14, "queue_full": 3, "cancelled": 8},
    )
    (told,) = figures_of(FleetReading(10.0, {"r:1": now}), FleetReading(8.0, {"r:1": then})).routers
    assert (told.queue_length, told.queue_limit, told.open_sequences) == (7, 1024, 3)
    assert (told.ends_per_second, told.errors_per_second, told.retries) == (5.0, 1.0, 2)
    assert told.draining


def test_workers_in_trouble_come_first_and_say_what_it_is() -> None:
    one = router(
        worker("a:1"),
        worker("b:1", silent_seconds=7.5),
        worker("c:1", connected=False, refused="it sent nothing for 10 seconds", slots=0),
        worker("d:1", refused="it is draining", overdue_legs=2, faults=1),
        worker("e:1", standing="probation", failed_legs=3, ended_legs=4),
        worker("f:1", refused="3 of its last 4 legs failed", standing="ejected"),
    )
    other = router(worker("a:1", open_legs=2, other_legs=1), worker("d:1", overdue_legs=1))
    figures = of_routers(one, other)
    assert {each.address: (each.state, each.reason) for each in figures.workers} == {
        "a:1": ("ok", ""),
        "b:1": ("silent", "silent for 7.5 s"),
        "c:1": ("away", "not connected: it sent nothing for 10 seconds"),
        "d:1": ("refused", "it is draining; 3 legs overdue; 1 faults"),
        "e:1": ("probation", "on probation: 3 of the last 4 legs failed"),
        "f:1": ("ejected", "3 of its last 4 legs failed"),
    }
    assert {each.address: each.legs for each in figures.workers}["a:1"] == 3
    shown = [line.split()[0] for line in drawn(figures, 120, 30) if line.startswith("worker-")]
    assert shown == [f"worker-{each}:1" for each in "bcdefa"]


def engines(*tokens: float, seconds: float = 2.0, **fields: Any) -> list[WorkerFigures]:
    def reading(count: float, **more: Any) -> dict[str, EngineReading]:
        return {"decode": EngineReading(open_legs=2, tokens=count, **more)}

    names = [f"e{index}:1" for index in range(len(tokens))]
    before = FleetReading(10.0 - seconds, {}, {each: reading(0.0) for each in names})
    now = {name: reading(count, **fields) for name, count in zip(names, tokens, strict=True)}
    return list(figures_of(FleetReading(10.0, {}, now), before).workers)


def test_a_worker_whose_sequences_get_half_of_what_is_usual_is_slow() -> None:
    found = engines(400, 400, 400, 150)
    assert [each.tokens_per_second for each in found] == [200, 200, 200, 75]
    assert [each.state for each in found] == ["?", "?", "?", "slow"]
    assert found[3].reason == "37.5 tokens/s for a sequence, where 100 is usual"
    assert engines(150)[0].state != "slow", "nothing is usual of one alone"
    assert all(each.state != "slow" for each in engines(0, 0))


def test_the_hit_rate_is_that_since_the_last_frame_or_since_the_start() -> None:
    (found,) = engines(1, prompt_tokens=200, cached_tokens=50, kv_used_ratio=0.5)
    assert (found.hit_rate, found.kv_used_ratio) == (0.25, 0.5)
    (found,) = engines(1)
    assert (found.hit_rate, found.kv_used_ratio) == (None, None)
    then = FleetReading(0.0, {}, {"e:1": {"prefill": EngineReading(prompt_tokens=100.0)}})
    now = {"e:1": {"prefill": EngineReading(prompt_tokens=150.0, cached_tokens=50.0)}}
    (found,) = figures_of(FleetReading(5.0, {}, now), then).workers
    assert found.hit_rate == 1.0
    assert found.tokens_per_second == 10.0, "of prefill, prompt tokens"


@pytest.mark.promise("S5-749")
def test_a_worker_has_what_its_own_metrics_port_says_by_name_else_by_host_and_phase() -> None:
    reading = {"decode": EngineReading(open_legs=1, kv_used_ratio=0.5)}
    both = {"prefill": EngineReading(kv_used_ratio=0.1), "decode": EngineReading(kv_used_ratio=0.9)}
    seen = router(
        worker("10.0.0.1:7200"),
        worker("10.0.0.2:7200#prefill", phase="prefill", name="both"),
        worker("10.0.0.2:7200#decode", name="both"),
        worker("127.0.0.1:5001", name="decode_worker-0"),
        worker("127.0.0.1:5002", name="decode_worker-1"),
    )
    told = {
        "10.0.0.1:7201": reading,
        "10.0.0.2:7201": both,
        "127.0.0.1:6001": {"decode": EngineReading(kv_used_ratio=0.3)},
        "127.0.0.1:6002": ApiError("nobody answers"),
        "10.9.9.9:7201": reading,
    }
    names = {"127.0.0.1:6001": "decode_worker-1", "127.0.0.1:6002": "decode_worker-0"}
    now = FleetReading(1.0, {"r:1": seen}, told)
    figures = FleetHistory(now, names).take(now)
    found = [(each.name, each.phase, each.kv_used_ratio, each.state) for each in figures.workers]
    assert found == [
        ("worker-10.0.0.1:7200", "decode", 0.5, "ok"),
        ("both", "prefill", 0.1, "ok"),
        ("both", "decode", 0.9, "ok"),
        ("decode_worker-0", "decode", None, "ok"),
        ("decode_worker-1", "decode", 0.3, "ok"),
        ("10.9.9.9:7201", "decode", 0.5, "?"),
    ]  # fmt: skip
    assert figures.workers[3].reason == "metrics: nobody answers"


@pytest.mark.promise("S5-749")
def test_ports_of_one_host_are_not_mixed_up() -> None:
    """Two decode workers and the metrics port of one: whose it is, nobody says."""
    seen = router(worker("127.0.0.1:5001"), worker("127.0.0.1:5002"))
    told = {"127.0.0.1:6001": {"decode": EngineReading(kv_used_ratio=0.3)}}
    figures = figures_of(FleetReading(1.0, {"r:1": seen}, told))
    assert [each.kv_used_ratio for each in figures.workers] == [None, None, 0.3]
    assert figures.workers[2].name == "127.0.0.1:6001"


def test_what_is_no_number_is_as_what_is_not_there() -> None:
    text = (
        'tandem_worker_open_legs{phase="decode"} 2\n'
        'tandem_worker_kv_used_ratio{phase="decode"} NaN\n'
        'tandem_worker_tokens_total{phase="decode"} +Inf\n'
        "tandem_worker_waiting_legs 7\n"
    )
    assert scrapes.engines(text) == {"decode": EngineReading(open_legs=2.0)}
    told = scrapes.frontend(
        'tandem_frontend_requests_total{fault="none"} 3\n'
        'tandem_frontend_ttft_seconds_bucket{le="1"} NaN\n'
        'tandem_frontend_slo_seconds{objective="ttft"} NaN\n'
    )
    assert told == FrontendReading(requests=3.0)


@pytest.mark.promise("S5-749")
def test_each_phase_of_a_worker_has_its_own_figures_and_token_processes_are_summed() -> None:
    text = (
        'tandem_worker_tokens_total{phase="prefill"} 5\n'
        'tandem_worker_tokens_total{phase="decode",token_process="0"} 30\n'
        'tandem_worker_tokens_total{phase="decode",token_process="1"} 12\n'
        'tandem_worker_kv_used_ratio{phase="decode"} 0.5\n'
    )
    assert scrapes.engines(text) == {
        "prefill": EngineReading(tokens=5.0),
        "decode": EngineReading(tokens=42.0, kv_used_ratio=0.5),
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        'tandem_worker_open_legs{phase="decode" 2\n',
        "tandem_frontend_requests_total many\n",
        'tandem_frontend_requests_total 1\ntandem_frontend_ttft_seconds_bucket{le="x"} 1\n',
    ],
)
def test_what_is_no_exposition_is_refused(text: str) -> None:
    for read in (scrapes.engines, scrapes.frontend):
        with pytest.raises(ApiError):
            read(text)


# --- screens -------------------------------------------------------------------------------------


def fleet_of(count: int) -> FleetFigures:
    troubled = {"silent_seconds": 9.0}
    seen = [
        worker(f"10.0.{n // 250}.{n % 250}:7200", name=f"decode-{n:03}",
               open_legs=n % 9, **(troubled if n == count - 1 else {}))
        for n in range(count)
    ]  # fmt: skip
    return of_routers(router(*seen))


@pytest.mark.promise("S5-748")
@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("count", [0, 1, 200])
def test_a_screen_is_as_large_as_the_terminal(count: int, width: int, height: int) -> None:
    for figures in (fleet_of(count), of_recorded()):
        lines = drawn(figures, width, height)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert lines[0].startswith("tandem top  ")
        assert "q quit" in lines[-1] or width < 60
    if count:
        assert f"of {count}" in drawn(fleet_of(count), width, height)[-1]
        assert any(
            f"decode-{count - 1:03}" in each for each in drawn(fleet_of(count), width, height)
        )
    if count == 200:
        rows = [each for each in drawn(fleet_of(count), width, height) if "decode-" in each]
        assert len(rows) >= height - 14, "most of the screen is for workers"
        assert "silent for 9" in rows[0] or width < 80


@pytest.mark.promise("S5-748")
@pytest.mark.parametrize("height", range(1, 16))
def test_a_low_screen_keeps_its_head_and_some_workers(height: int) -> None:
    lines = drawn(of_recorded(), 80, height)
    assert lines[0].startswith("tandem top")
    assert any("decode_worker-0" in each for each in lines)
    assert len(lines) <= max(height, 5)


def test_a_screen_says_time_interval_version_address_model_and_latencies() -> None:
    text = "\n".join(drawn(of_recorded(), 200, 50))
    head = text.splitlines()[0]
    for part in ("every 1 s", "v0.1.0", "http://127.0.0.1:8000", "tandem-tiny"):
        assert part in head
    for part in ("TTFT", "ITL", "p50", "p99", "SLO 2 s", "SLO 100 ms", "goodput", "errors 0.0/s"):
        assert part in text


@pytest.mark.promise("S5-750")
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_what_a_component_says_is_no_command_to_a_terminal_and_no_markup(
    width: int, height: int
) -> None:
    seen = worker("a:1" + HOSTILE, name=HOSTILE, refused=HOSTILE, phase=HOSTILE)
    told = FrontendReading(
        version=HOSTILE, models=frozenset([HOSTILE]), requests=2.0, errors={HOSTILE: 2.0}
    )
    then = FrontendReading()
    now = FleetReading(
        2.0,
        {"r:1": router(seen), "r:2": ApiError(HOSTILE)},
        {"e:1": ApiError(HOSTILE), "e:2": {HOSTILE: EngineReading()}},
        {"f:1": told, "f:2": ApiError(HOSTILE)},
    )
    figures = figures_of(now, FleetReading(1.0, frontends={"f:1": then}))
    lines = drawn(figures, width, height, color_system=None)
    text = "\n".join(lines)
    assert all(each.isprintable() for each in lines)
    assert "[red]a[/]" in text, "shown literally"
    assert len(lines) <= height
    assert all(each.isprintable() for each in msgspec.json.encode(figures).decode()), (
        "a line of JSON is none either"
    )


def test_a_wide_name_is_cut_at_the_edge_and_takes_no_second_line() -> None:
    figures = of_routers(router(worker("a:1", name="名" * 300, refused="x" * 900)))
    for width, height in SIZES:
        lines = drawn(figures, width, height)
        assert sum("名" in each for each in lines) == 1
        assert max(map(len, lines)) <= width


def test_a_router_that_does_not_answer_is_named_and_the_others_are_shown() -> None:
    now = FleetReading(
        1.0, {"r:1": ApiError("nobody answers at r:1"), "r:2": router(worker("a:1"))}
    )
    lines = drawn(figures_of(now), 80, 24)
    assert "r:1: no answer: nobody answers at r:1" in lines[1]
    assert any(each.startswith("r:2") for each in lines)
    alone = drawn(figures_of(FleetReading(1.0, {"r:1": ApiError("gone")})), 80, 24)
    assert any("no router answers" in each for each in alone)


def test_many_routers_leave_room_for_workers() -> None:
    figures = of_routers(*(router(worker("a:1"), queue_length=n) for n in range(30)))
    lines = drawn(figures, 80, 24)
    assert "29/1024" in next(each for each in lines if each.startswith("r:")), "fullest queue first"
    assert any("and 22 more" in each for each in lines)
    assert any("worker-a:1" in each for each in lines)


# --- keys ----------------------------------------------------------------------------------------


def names_in(lines: list[str]) -> list[str]:
    return [each.split()[0] for each in lines if each.startswith("decode-")]


def test_keys_sort_and_reverse() -> None:
    figures, view = fleet_of(60), FleetView(address="a", interval=1.0)
    seen = {}
    for order in ORDERS:
        seen[order.name] = names_in(drawn(figures, 100, 30, view))
        view.press("s", 60)
    assert view.order == 0
    assert seen["state"][0] == "decode-059", "the one in trouble"
    assert seen["name"][:2] == ["decode-000", "decode-001"]
    assert seen["slots"][0] == "decode-008", "8 of 8 slots are taken"
    for key in "sr":
        view.press(key, 60)
    assert names_in(drawn(figures, 100, 30, view))[0] == "decode-059"


def test_keys_scroll_to_both_ends_and_not_beyond() -> None:
    figures, view = fleet_of(200), FleetView(address="a", interval=1.0, order=1)
    first = names_in(drawn(figures, 80, 24, view))
    for key, top in (
        ("down", "decode-001"),
        ("up", "decode-000"),
        ("up", "decode-000"),
        ("page down", f"decode-{len(first):03}"),
        ("page up", "decode-000"),
        ("x", "decode-000"),
    ):
        view.press(key, 200)
        assert names_in(drawn(figures, 80, 24, view))[0] == top, key
    view.press("end", 200)
    assert names_in(drawn(figures, 80, 24, view))[-1] == "decode-199"
    view.press("page down", 200)
    assert names_in(drawn(figures, 80, 24, view))[-1] == "decode-199"
    assert names_in(drawn(figures, 80, 120, view))[-1] == "decode-199", "a larger screen is filled"
    assert len(names_in(drawn(figures, 80, 120, view))) > 100
    shrunk = names_in(drawn(fleet_of(3), 80, 24, view))
    assert shrunk == ["decode-000", "decode-001", "decode-002"]
    view.press("home", 200)
    assert names_in(drawn(figures, 80, 24, view))[0] == "decode-000"


def test_a_pause_is_said() -> None:
    view = FleetView(address="a", interval=1.0)
    view.press("p", 1)
    assert drawn(fleet_of(1), 80, 24, view)[-1].startswith("PAUSED")
    view.press(" ", 1)
    assert not view.paused


def test_a_sparkline_is_as_high_as_its_share_and_no_longer_than_its_room() -> None:
    assert frame.sparkline([0, 4, 8], 10) == "▁▅█"
    assert frame.sparkline([0, 4, 8], 2) == "▅█"
    assert frame.sparkline([0, 0], 10) == "▁▁"
    assert frame.sparkline([], 10) == ""
