"""`tandem bench`, with a program in AIPerf's place that writes records which AIPerf 0.13.0 wrote.
tests/e2e/test_bench.py runs AIPerf itself.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from local_servers import serving

from tandem.cli import main
from tandem.cli.console import Console
from tandem_tools.bench import aiperf, plot
from tandem_tools.bench.aiperf import BenchTarget, RecordFile, configuration
from tandem_tools.bench.figures import BenchSlo, Figures, TimedAnswer, percentiles
from tandem_tools.bench.load import PROMPTS, BenchLoad
from tandem_tools.trace import TracedRequest, read

KEY = "a-key-{{with}}-braces"
REFUSED = {"error": {"message": "too long", "code": "context_length_exceeded"}}
STANDS_FOR_AIPERF = """
import json, os, signal, sys, time
from pathlib import Path

asked = json.loads(Path(sys.argv[3]).read_text())["benchmark"]
orders = json.loads((Path(__file__).parent / "orders.json").read_text())
cache = Path(os.environ["HF_HUB_CACHE"])
seen = {
    "argv": sys.argv[1:],
    "asked": asked,
    "environment": {name: os.environ[name] for name in ("TANDEM_BENCH_KEY", "HF_HUB_OFFLINE")},
    "tokenizer": [str(each.resolve()) for each in cache.glob("*/snapshots/*")],
    "trace": [Path(each["path"]).read_text() for each in asked["datasets"] if "path" in each],
}
(Path(__file__).parent / "seen.json").write_text(json.dumps(seen))
interrupted = []
signal.signal(signal.SIGINT, lambda *_: interrupted.append(True))
records = Path(asked["artifacts"]["dir"], "profile_export.jsonl")
for record in orders["records"]:
    with records.open("a") as file:
        file.write(json.dumps(record) + "\\n")
while orders["waits"] and not interrupted:
    time.sleep(0.01)
for record in orders["at_the_end"]:
    with records.open("a") as file:
        file.write(json.dumps(record) + "\\n")
print(orders["says"])
sys.exit(orders["status"])
"""


def record(
    at: float = 0.0, *, ttft: float = 20.0, itl: float | None = 10.0, tokens: int = 32
) -> dict[str, Any]:
    """A request that took 0.5 s. `at` is in seconds, the others in ms, as AIPerf writes them."""
    values = {"time_to_first_token": ttft, "output_sequence_length": tokens}
    values |= {} if itl is None else {"inter_token_latency": itl}
    return {"metadata": span(at), "metrics": {name: {"value": it} for name, it in values.items()}}


def failed(at: float = 0.0, **error: Any) -> dict[str, Any]:
    return {"metadata": span(at), "metrics": {}, "error": error}


def span(at: float) -> dict[str, int]:
    began = 1_795_481_382_000_000_000 + round(at * 1e9)
    return {"request_start_ns": began, "request_end_ns": began + 500_000_000}


class Tool:
    """What stands for AIPerf: what it is to do, and what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "aiperf"
        program = folder / "stands_for_aiperf.py"
        program.write_text(STANDS_FOR_AIPERF, encoding="utf-8")
        # A line of `#!` cannot name an interpreter whose path has a space.
        command = shlex.join([sys.executable, str(program)])
        self.path.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        self.path.chmod(0o755)
        self.does([record()])

    def does(
        self,
        records: list[dict[str, Any]],
        *,
        status: int = 0,
        says: str = "",
        waits: bool = False,
        at_the_end: tuple[dict[str, Any], ...] = (),
    ) -> None:
        """`waits`: after its records, for an interrupt."""
        orders = {"records": records, "status": status, "says": says, "waits": waits}
        orders["at_the_end"] = at_the_end
        self.path.with_name("orders.json").write_text(json.dumps(orders), encoding="utf-8")

    @property
    def started(self) -> bool:
        return self.path.with_name("seen.json").exists()

    @property
    def seen(self) -> dict[str, Any]:
        seen: dict[str, Any] = json.loads(self.path.with_name("seen.json").read_bytes())
        return seen


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    found = Tool(tmp_path)
    monkeypatch.setattr(aiperf, "program", lambda: str(found.path))
    return found


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.headers.get("authorization", "") in ("", f"Bearer {KEY}")
        served = {"data": [{"id": "tandem-tiny"}, {"id": "other"}]}
        body = served if known else {"error": {"message": "The API key is wrong"}}
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}"


def rows(text: str) -> dict[str, str]:
    """The table's lines by their names."""
    found = (line.strip().partition("  ") for line in text.splitlines())
    return {name: value.strip() for name, _, value in found if value}


@pytest.mark.promise("S6-360")
def test_records_become_a_table_and_a_file_of_figures(
    tool: Tool, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tool.does(
        [
            record(0.0, ttft=10.0, itl=5.0),
            record(1.0, ttft=30.0, itl=200.0),
            failed(1.2, code=400, message=json.dumps(REFUSED)),
            failed(1.3, type="ClientConnectorError", message="refused"),
            failed(1.4, code=503, message='{"error": {"code": "\\u001b[2Jx"}}'),
            record(1.5, ttft=20.0, itl=None, tokens=1),
        ]
    )
    assert main(["bench", "--url", url, "--json"]) == 0
    said = capsys.readouterr()
    shown = rows(said.err)
    assert shown["requests"] == "6 in 2.0 s"
    assert shown["failed"] == (
        "3 (400 context_length_exceeded: 1, 503: 1, ClientConnectorError: 1)"
    )
    assert shown["output"] == "32.5 tokens/s"
    assert shown["TTFT"] == "p50 20.0 ms, p90 28.0 ms, p99 29.8 ms"
    assert shown["goodput"] == "1.00 requests/s within TTFT 2 s and ITL 0.1 s"
    assert shown["within both"] == "2 of 6 (33.3%)"
    told = json.loads(said.out)
    assert told["load"] == {
        "kind": "concurrency",
        "value": 16,
        "requests": 200,
        "seconds": None,
        "prompt_tokens": 512,
        "output_tokens": 128,
    }
    assert told["failed"]["400 context_length_exceeded"] == 1
    assert told["ttft_seconds"]["p50"] == pytest.approx(0.020)
    assert told["goodput_requests_per_second"] == 1.0


@pytest.mark.promise("S6-360")
def test_goodput_counts_whole_answers_that_met_both_objectives_exactly() -> None:
    slo = BenchSlo(ttft_seconds=2.0, itl_seconds=0.1)

    def answer(**fields: Any) -> TimedAnswer:
        return TimedAnswer(**{"began": 0.0, "ended": 4.0, "ttft": 2.0, "itl": 0.1, **fields})

    met = [answer(), answer(itl=None)]
    missed = [
        answer(ttft=2.0000001),
        answer(itl=0.1000001),
        answer(ttft=None, itl=None),
        answer(failure="503"),
    ]
    figures = Figures.of([*met, *missed], slo)
    assert (figures.met, figures.requests) == (2, 6)
    assert figures.told()["goodput_requests_per_second"] == 0.5


def test_percentiles_lie_between_neighbours_in_proportion() -> None:
    assert percentiles([1.0, 2.0, 3.0]) == pytest.approx({"p50": 2.0, "p90": 2.8, "p99": 2.98})
    assert percentiles([4.0]) == {"p50": 4.0, "p90": 4.0, "p99": 4.0}
    assert percentiles([]) == {}


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    records = RecordFile(path)
    assert records.fresh() == []
    whole = json.dumps(record()) + "\n"
    path.write_text(whole + whole[:30], encoding="utf-8")
    assert len(records.fresh()) == 1
    assert records.fresh() == []
    path.write_text(whole + whole + whole, encoding="utf-8")
    assert len(records.fresh()) == 2


@pytest.mark.parametrize(
    ("load", "dataset", "phase"),
    [
        (
            BenchLoad(concurrency=4, requests=20, prompt_tokens=64, output_tokens=32),
            {"entries": 20, "prompts": {"isl": {"mean": 64}, "osl": {"mean": 32}}},
            {"type": "concurrency", "concurrency": 4, "requests": 20},
        ),
        (
            BenchLoad(rate=2.5, seconds=30.0, prompt_tokens=64, output_tokens=32),
            {"entries": PROMPTS, "prompts": {"isl": {"mean": 64}, "osl": {"mean": 32}}},
            {"type": "poisson", "rate": 2.5, "duration": 30.0, "grace_period": 9.0},
        ),
        (
            BenchLoad(concurrency=4, requests=7, seconds=3.0, prompt_tokens=6, output_tokens=3),
            {"entries": PROMPTS, "prompts": {"isl": {"mean": 6}, "osl": {"mean": 3}}},
            {
                "type": "concurrency",
                "concurrency": 4,
                "requests": 7,
                "duration": 3.0,
                "grace_period": 9.0,
            },
        ),
    ],
)
def test_aiperf_is_asked_for_the_load(
    load: BenchLoad, dataset: dict[str, Any], phase: dict[str, Any], tmp_path: Path
) -> None:
    target = BenchTarget("http://here:1", "tiny", tmp_path, api_key="", timeout_seconds=9.0)
    asked = configuration(target, load, tmp_path)["benchmark"]
    assert asked["datasets"] == [{"name": "main", "type": "synthetic", **dataset}]
    assert asked["phases"] == [{"name": "profiling", **phase}]
    assert asked["models"] == ["tiny"]
    assert asked["endpoint"] == {
        "urls": ["http://here:1"],
        "type": "chat",
        "streaming": True,
        "timeout": 9.0,
        "use_server_token_count": True,
        "extra": {"ignore_eos": True},
    }


@pytest.mark.promise("S6-361")
def test_the_key_is_in_no_argument_and_no_file(
    tool: Tool, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", f"{KEY},another")
    assert main(["bench", "--url", url, "--api-key-env", "A_KEY", "--model", "tandem-tiny"]) == 0
    seen = tool.seen
    assert seen["environment"] == {"TANDEM_BENCH_KEY": KEY, "HF_HUB_OFFLINE": "1"}
    assert KEY not in json.dumps([seen["argv"], seen["asked"]])
    assert seen["asked"]["endpoint"]["headers"] == {
        "Authorization": "{% raw %}Bearer ${TANDEM_BENCH_KEY}{% endraw %}"
    }
    assert [Path(each).name for each in seen["tokenizer"]] == ["tandem-tiny"]


@pytest.mark.promise("S6-362")
def test_a_trace_is_sent_in_the_order_of_its_times_within_the_bounds(
    tool: Tool, url: str, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 900, "input_length": 9, "output_length": 1, "hash_ids": [4]},
        {"timestamp": 100, "input_length": 1, "output_length": 1, "other": "ignored"},
        {"timestamp": 1100, "input_length": 11, "output_length": 1},
        {"timestamp": 1101, "input_length": 12, "output_length": 1},
    ]
    trace.write_text("\n\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert main(["bench", "--url", url, "--trace", str(trace), "--seconds", "1"]) == 0
    (sent,) = tool.seen["trace"]
    assert [json.loads(line) for line in sent.splitlines()] == [
        {"timestamp": 100, "input_length": 1, "output_length": 1},
        {"timestamp": 900, "input_length": 9, "output_length": 1, "hash_ids": [4]},
        {"timestamp": 1100, "input_length": 11, "output_length": 1},
    ]
    assert tool.seen["asked"]["phases"] == [
        {"name": "profiling", "type": "fixed_schedule", "auto_offset": True}
    ]
    assert read(trace, requests=1) == (TracedRequest(100, 1, 1),)


@pytest.mark.promise("S6-363")
def test_an_interrupt_shows_what_there_is_and_leaves_nothing_running(
    tool: Tool, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool.does(
        [record(), record()],
        waits=True,
        at_the_end=(record(), failed(code=499, message="ended by AIPerf")),
    )
    live = Console.live

    def interrupt(self: Console, what: str, *more: Any, **named: Any) -> None:
        live(self, what, *more, **named)
        if what.startswith("2/200"):
            raise KeyboardInterrupt

    monkeypatch.setattr(Console, "live", interrupt)
    assert main(["bench", "--url", url]) == 130
    shown = rows(capsys.readouterr().out)
    assert (shown["requests"], shown["failed"]) == ("3 in 0.5 s", "0")
    folder = Path(tool.seen["asked"]["artifacts"]["dir"])
    assert not folder.exists()


@pytest.mark.promise("S6-363")
def test_a_tool_that_does_not_end_is_killed_at_the_second_interrupt(
    tool: Tool, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deaf = tool.path.read_text(encoding="utf-8").replace("interrupted.append(True)", "None")
    tool.path.write_text(deaf + "\n", encoding="utf-8")
    tool.does([record()], waits=True)
    pids = []

    def interrupt(self: Console, what: str, *_: Any, **__: Any) -> None:
        if what.startswith("1/200"):
            raise KeyboardInterrupt

    wait = aiperf.subprocess.Popen.wait

    def impatient(self: Any, timeout: float | None = None) -> int:
        pids.append(self.pid)
        if timeout is not None:
            raise KeyboardInterrupt
        return wait(self)

    monkeypatch.setattr(Console, "live", interrupt)
    monkeypatch.setattr(aiperf.subprocess.Popen, "wait", impatient)
    assert main(["bench", "--url", url]) == 130
    assert rows(capsys.readouterr().out)["requests"] == "1 in 0.5 s"
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_where_no_request_succeeded_the_status_says_so(
    tool: Tool, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tool.does([failed(code=503, message="no")], status=1)
    assert main(["bench", "--url", url]) == 1
    shown = capsys.readouterr().out
    assert rows(shown)["failed"] == "1 (503: 1)"
    assert "AIPerf failed" not in shown


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("00:00 INFO x\n00:01 ERROR    no tokenizer\n00:02 ERROR then", "00:01 ERROR    no token"),
        ("╭─ Error ─╮\n│ a field is missing  │\n│ more │\n╰──╯", "Error"),
        ("", "it said nothing"),
    ],
)
def test_where_aiperf_fails_its_first_error_is_told(
    tool: Tool, url: str, says: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tool.does([], status=3, says=says)
    assert main(["bench", "--url", url]) == 1
    assert f"AIPerf failed with status 3: {told}" in capsys.readouterr().out


def test_without_aiperf_one_sentence_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["bench"]) == 2
    assert capsys.readouterr().err == (
        "tandem: the load is sent by AIPerf: pip install 'tandem-serving[bench]'\n"
    )
    Tool(tmp_path)
    assert aiperf.program() == str(tmp_path / "aiperf")


@pytest.mark.parametrize(
    ("more", "status", "says"),
    [
        (["--url", "http://127.0.0.1:1"], 1, "nobody answers at 127.0.0.1:1"),
        (["--api-key-env", "WRONG"], 1, "401: The API key is wrong"),
        (["--api-key-env", "NOT_SET"], 2, "the variable NOT_SET is not set"),
        (["--model", "third"], 1, "'third' is not served; tandem-tiny, other is"),
        (["--model", "other"], 2, "name the folder with other's tokenizer"),
        (["--model-path", "."], 2, ". holds no model"),
        (["--trace", "gone.jsonl"], 2, "cannot read the trace gone.jsonl: No such file"),
        (["--trace", "x", "--output-tokens", "3"], 2, "--trace has lengths of its own"),
        (["--plot", "gone/figures.svg"], 2, "there is no folder gone"),
    ],
)
@pytest.mark.promise("S6-361")
def test_what_cannot_be_run_is_one_sentence_and_sends_nothing(
    tool: Tool,
    url: str,
    more: list[str],
    status: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WRONG", "another")
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--url", url, *more]) == status
    complaint = capsys.readouterr().err
    assert says in complaint
    assert complaint.count("\n") == 1
    assert not tool.started


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--rate", "0"], "argument --rate: must be above 0"),
        (["--rate", "nan"], "argument --rate: must be above 0"),
        (["--seconds", "inf"], "argument --seconds: must be above 0"),
        (["--requests", "0"], "argument --requests: must be at least 1"),
        (["--rate", "1", "--concurrency", "1"], "not allowed with argument --rate"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    more: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", *more])
    assert says in capsys.readouterr().err


@pytest.mark.promise("S5-754")
def test_the_plot_shows_both_distributions_their_objectives_and_what_was_asked(
    tool: Tool, url: str, tmp_path: Path
) -> None:
    tool.does([record(ttft=10.0 * n, itl=None if n == 3 else 4.0) for n in range(1, 6)])
    out = tmp_path / "plot.svg"
    assert main(["bench", "--url", url, "--plot", str(out), "--slo-ttft", "0.025"]) == 0
    namespace = "{http://www.w3.org/2000/svg}"
    root = ElementTree.parse(out).getroot()
    ttft, itl = root.iterfind(f"{namespace}g")
    lines = [panel.find(f"{namespace}polyline") for panel in (ttft, itl)]
    points = [line.get("points", "").split() for line in lines if line is not None]
    assert [len(each) for each in points] == [5, 4]
    right, top = plot.WIDTH - plot.MARGIN, plot.MARGIN
    assert points[0][0].startswith(f"{plot.MARGIN:.1f},"), "10 ms is the axis' low end"
    assert points[0][-1] == f"{right:.1f},{top:.1f}", "50 ms its high end"
    dashed = [panel.find(f"{namespace}path[@stroke-dasharray]") for panel in (ttft, itl)]
    place = math.log(25 / 10) / math.log(50 / 10)
    assert dashed[0] is not None
    assert dashed[1] is not None
    x = plot.MARGIN + place * (plot.WIDTH - 2 * plot.MARGIN)
    assert dashed[0].get("d", "").startswith(f"M{x:.1f} ")
    texts = [str(each.text) for each in root.iter(f"{namespace}text")]
    assert "tandem bench: tandem-tiny" in texts
    for said in ("16 requests at once", "200 requests", "512 prompt and 128 output", " UTC"):
        assert any(said in each for each in texts), said
    assert {"10 ms", "20 ms", "50 ms", "SLO 25 ms", "SLO 100 ms", "50%"} <= {*texts}


@pytest.mark.promise("S5-754")
def test_a_plot_has_no_panel_of_nothing() -> None:
    def panels(*answers: TimedAnswer) -> int:
        figures = Figures.of(answers, BenchSlo(ttft_seconds=2.0, itl_seconds=0.1))
        root = ElementTree.fromstring(plot.svg(figures, title="<any> & \x1b", parameters=()))
        return len(root.findall("{http://www.w3.org/2000/svg}g"))

    assert panels() == 0
    assert panels(TimedAnswer(0.0, 1.0, output_tokens=1, ttft=0.5)) == 1
    assert panels(TimedAnswer(0.0, 1.0, output_tokens=2, ttft=0.5, itl=0.1)) == 2
    nothing = Figures.of([], BenchSlo(ttft_seconds=2.0, itl_seconds=0.1))
    assert dict(nothing.rows())["within both"] == "0 of 0"
