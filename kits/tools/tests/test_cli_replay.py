"""The commands `tandem replay` and `tandem measure-times`: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tandem.cli import main
from tandem_tools import trace as traces
from tandem_tools.bench.figures import BenchSlo, Figures, TimedAnswer
from tandem_tools.trace_replay import times
from tandem_tools.trace_replay.results import ReplayResult, verdict
from tandem_tools.trace_replay.times import Curve

FLEET = """
prefill: {workers: 2, cache_tokens: 100000}
decode: {workers: 1}
times:
  prefill_ms: [[0, 1], [10000, 500]]
  step_ms: [[1, 10], [64, 20]]
  transfer_ms: [[0, 1], [10000, 20]]
"""
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET, encoding="utf-8")
    return str(path)


def replay(*flags: str) -> int:
    return main(["replay", *flags])


def test_every_fleet_is_tried_by_every_policy_and_shown_written_and_drawn(
    fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawing = tmp_path / "figures.svg"
    made = ("--generate", "chat", "--requests", "60", "--rate", "5", "--fleet", fleet)
    where = ("--json", "--plot", str(drawing))
    assert replay(*made, "--sweep", "--policy", "prefix", "round_robin", *where) == 0
    said = capsys.readouterr()
    shown, told = said.err, json.loads(said.out)
    assert shown.startswith("60 requests in ")
    tried = [(each["workers"], each["policy"]) for each in told]
    fleets = ("1:2", "2:1", "3 aggregated")
    assert tried == [(each, policy) for each in fleets for policy in ("prefix", "round_robin")]
    for each in told:
        assert each["requests"] == each["within_both"] == 60
        assert each["failed"] == {}
        assert set(each["ttft_seconds"]) == {"p50", "p90", "p99"}
        assert f"{each['workers']}" in shown
    assert "best: " in shown
    assert "whether to disaggregate makes no difference at this load" in shown
    root = ElementTree.fromstring(drawing.read_text(encoding="utf-8"))
    texts = {each.text for each in root.iter(f"{SVG}text")}
    titles = {"TTFT p90, s (logarithmic)", "hit rate, share of prompt tokens", "SLO 2"}
    assert {"tandem replay: chat", *titles, "prefix", "round_robin", *fleets} <= texts
    for said in ("60 requests in ", "prompt tokens", "speed 1 · seed 1", "SLO: TTFT 2 s", " UTC"):
        assert any(said in str(each) for each in texts), said
    bars = [each for each in root.iter(f"{SVG}rect") if each.get("width") != "100%"]
    assert len(bars) == 4 * len(told)
    places = [(each.get("x"), each.get("fill")) for each in bars[: len(told)]]
    assert len(set(places)) == len(dict(places)) == len(told)  # none hides another


def test_a_trace_that_was_made_can_be_written_and_gives_the_same(
    fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(tmp_path / "made.jsonl")
    asked = ("--fleet", fleet, "--policy", "prefix", "--speed", "2")
    assert replay("--generate", "shared", "--requests", "50", "--write-trace", trace, *asked) == 0
    first = capsys.readouterr().out
    assert replay(trace, *asked) == 0
    assert capsys.readouterr().out == first
    assert replay(trace, "--requests", "20", *asked) == 0
    assert capsys.readouterr().out.startswith("20 requests")
    assert len(traces.read(Path(trace))) == 50


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--workers", "2"), "write it P:D or P:D:A"),
        (("--workers", "2:0"), "workers of both, or of none"),
        (("--workers", "99999:1"), "99999:1:0: "),
        (("--policy", "gone"), "no policy of the router's"),
        (("--decode-policy", "gone"), "no policy of the router's"),
        (("--plot", "/gone/figures.svg"), "there is no folder /gone"),
        (("--fleet", "/gone/fleet.yaml"), "cannot read /gone/fleet.yaml"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    fleet: str, flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay("--generate", "mixed", "--requests", "5", "--fleet", fleet, *flags) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


def test_a_rate_is_for_made_traces_alone(
    fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(str(tmp_path / "trace"), "--rate", "3", "--fleet", fleet) == 2
    assert "changed by --speed" in capsys.readouterr().err


def test_the_sim_engines_settings_are_written_as_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "times.yaml"
    option = "--engine-option"
    asked = ["measure-times", option, "prefill_base_ms=5", option, "prefill_ms_per_token=0.5"]
    asked += [option, "step_ms=20", option, "step_ms_per_sequence=0.25"]
    assert main([*asked, "--to", str(path)]) == 0
    table = times.read(path)
    assert Curve(table.prefill_ms)(3000) == pytest.approx(1.505)
    assert Curve(table.step_ms)(16) == pytest.approx(0.024)
    assert main([*asked]) == 0
    assert capsys.readouterr().out == path.read_text(encoding="utf-8")
    assert main(["measure-times", option, "prefill=1"]) == 2
    assert "unknown option of the sim engine: 'prefill'" in capsys.readouterr().err


def test_long_prompts_can_be_shown_by_themselves_and_the_ways_are_told(
    fleet: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ("--generate", "mixed", "--requests", "200", "--rate", "5", "--fleet", fleet)
    asked = ("--workers", "1:1:1", "--policy", "prefix", "--long", "2000", "--json")
    assert replay(*made, *asked) == 0
    said = capsys.readouterr()
    shown = said.err
    assert "TTFT of short p50" in shown
    (told,) = json.loads(said.out)
    short, long = told["ttft_seconds_by_length"]
    assert short["p50"] < long["p50"]
    assert sum(each["count"] for each in told["ways"]) == 200
    assert {each["way"] for each in told["ways"]} == {"pair", "aggregated"}
    assert "1:1 + 1 aggregated by prefix: " in shown


# --- verdicts ----------------------------------------------------------------------------------


def result(fleet: str, met: int, *, aggregated: bool = False, ttft: float = 0.5) -> ReplayResult:
    slo = BenchSlo(ttft_seconds=1.0, itl_seconds=0.1)
    answers = [
        TimedAnswer(0.0, 10.0, output_tokens=2, ttft=ttft if place < met else 3.0, itl=0.05)
        for place in range(100)
    ]
    return ReplayResult(fleet, 3, aggregated, "prefix", 0.0, 0.0, Figures.of(answers, slo))


def test_the_verdict_is_by_the_share_of_requests_within_both_objectives() -> None:
    pairs, alone = result("2:1", 95), result("3 aggregated", 80, aggregated=True)
    assert list(verdict([result("1:2", 50), pairs, alone])) == [
        "best: 2:1 by prefix keeps 95.0% within both objectives",
        "disaggregate: 2:1 by prefix keeps 95.0% within both objectives, and 3 aggregated by "
        "prefix keeps 80.0% within both objectives",
    ]
    better = result("3 aggregated", 99, aggregated=True)
    assert list(verdict([pairs, better]))[1].startswith("do not disaggregate: 3 aggregated")


def test_of_equals_the_earlier_first_token_is_the_best_and_nothing_is_said_of_one_kind() -> None:
    slow, quick = result("1:2", 90, ttft=0.9), result("2:1", 90, ttft=0.3)
    assert [each[:9] for each in verdict([slow, quick])] == ["best: 2:1"]
    assert list(verdict([slow])) == []
