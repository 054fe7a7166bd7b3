"""What `tandem why` says of requests: of twenty that were slow for a known cause, and by its
options.

why_stories/ has what a frontend and a router told of requests, as `make why-causes ARGS="--record
kits/tools/tests/why_stories"` found them; the name of a file is the cause.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from local_servers import answering

from tandem import cli
from tandem.cli import run_state
from tandem.cli.client import ApiError
from tandem.cli.console import Console
from tandem.cli.run_state import RunState
from tandem.story_book import log_line
from tandem.timeline import PARTS
from tandem_frontend.http.call_story import CallStory, CallTimes, story
from tandem_router.core.story import Story
from tandem_tools.why import asking, command
from tandem_tools.why.causes import LEVELS, diagnose
from tandem_tools.why.evidence import Evidence, joined

FOLDER = Path(__file__).parent / "why_stories"
STORIES = sorted(FOLDER.glob("*.json"))


def stories(path: Path) -> tuple[list[CallStory], list[Story]]:
    told = json.loads(path.read_text(encoding="utf-8"))
    calls = [msgspec.convert(each, CallStory) for each in told if "endpoint" in each]
    return calls, [msgspec.convert(each, Story) for each in told if "sequences" in each]


def evidence(kind: str) -> Evidence:
    (only,) = joined(*stories(FOLDER / f"{kind}.json")).values()
    return only


@pytest.mark.promise("S5-718")
def test_each_of_twenty_recorded_causes_is_named_first() -> None:
    assert len(STORIES) >= 20
    named = {path.stem: diagnose(evidence(path.stem)).causes[0].kind for path in STORIES}
    assert named == {kind: kind for kind in named}


@pytest.mark.promise("S5-718")
def test_a_wait_is_in_its_part_and_what_was_possible_is_without_it() -> None:
    slots, room, form = (diagnose(evidence(kind)) for kind in ("slots", "kv_room", "classifiers"))
    assert slots.possible["ideal"] < 0.3 < 1.2 < slots.possible["capacity"]
    assert room.parts["kv"] > 1.3 > 0.1 > room.parts["prefill"]
    assert form.parts["hooks"] > 1.4
    (retry, *_) = diagnose(evidence("retry")).causes
    assert 0.6 < retry.seconds < 0.9, "the run that was given up, and not the next"


def test_what_ended_a_request_comes_before_what_it_waited_for() -> None:
    whole = evidence("slots")
    assert whole.call is not None
    late = msgspec.structs.replace(whole.call, outcome="deadline_exceeded")
    first, second, *_ = diagnose(Evidence(late, whole.story)).causes
    assert (first.kind, second.kind) == ("deadline", "slots")


@pytest.mark.parametrize("kind", [path.stem for path in STORIES])
def test_all_seconds_are_in_the_parts_and_what_was_possible_grows_to_what_was(kind: str) -> None:
    told = diagnose(evidence(kind))
    assert [*told.parts] == [*PARTS]
    assert sum(told.parts.values()) == pytest.approx(told.seconds, rel=0.1, abs=0.05)
    seconds = [told.possible[level] for level in LEVELS]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= told.seconds + 1e-6
    for each in told.causes:
        assert each.seconds <= told.seconds * 1.1
        assert each.sentence.endswith(".")
        assert "{" not in each.sentence


@pytest.mark.promise("S5-715")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            "slots",
            "no slot is free on decode, which has 2. 2 without a key ran then, the longest for ",
        ),
        ("prefix_elsewhere", "which was not taken: no slot was free: 1 of 1 taken"),
        ("prompts_ahead", "prefill_worker-0 had "),
        ("ejected", "it is ejected: "),
        ("drain", "it is draining"),
        ("adapter", "with the adapter first"),
        ("retry", "(kv_corrupt), and tried again elsewhere"),
        ("kv_room", "The KV cache of decode_worker-0 had no room for it"),
    ],
)
def test_a_cause_says_who_was_in_the_way(kind: str, said: str) -> None:
    assert said in diagnose(evidence(kind)).causes[0].sentence


def test_a_router_s_story_alone_and_a_frontend_s_alone_say_what_they_can() -> None:
    whole = evidence("slots")
    for half in (Evidence(None, whole.story), Evidence(whole.call, None)):
        told = diagnose(half)
        assert told.trace_id == whole.trace_id
        assert told.seconds > 0
    assert diagnose(Evidence(None, whole.story)).causes[0].kind == "slots"


def test_what_waited_in_vain_for_workers_is_not_taken_off_its_body_s_time() -> None:
    times = CallTimes(arrived=100.0, came=104.0, no_workers=30.0)
    told = story(times, trace_id="1" * 32, endpoint="chat", tenant="", outcome="no_pair")
    parts = Evidence(told, None).parts()
    assert (parts["read"], parts["queue"]) == (4.0, 30.0)


# --- the command ---------------------------------------------------------------------------------


def component(told: list[Any], *, delay: float = 9.0) -> AbstractContextManager[str]:
    """The admin port of a component that tells these stories, of one trace id."""
    trace_id = told[0].trace_id
    listed = {"trace_id": trace_id, "delay": delay, "ended_seconds_ago": 1.0}
    answers = {
        "/debug/requests": {"kept": 1, "recent": [listed], "slowest": [listed]},
        f"/debug/requests/{trace_id}": {
            "trace_id": trace_id,
            "left_out": 0,
            "requests": [{"ended_seconds_ago": 1.0, "story": each} for each in told],
        },
    }
    return answering({path: msgspec.json.encode(each) for path, each in answers.items()})


@contextmanager
def stack(kind: str, folder: Path) -> Iterator[str]:
    """A stack of a run directory that knows one request; its trace id."""
    calls, told = stories(FOLDER / f"{kind}.json")
    with component(calls) as frontend, component(told, delay=0.1) as router:
        ports = {"router": router, "frontend": frontend, "decode_worker-0": "nobody:1"}
        run_state.write(folder, RunState("http://127.0.0.1:1", "sim", None, {}, ports))
        yield calls[0].trace_id


def run(*words: str) -> int:
    return cli.main(["why", *words])


@pytest.mark.promise("S5-719")
def test_it_draws_the_parts_and_names_causes_and_what_was_possible(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stack("slots", tmp_path) as trace_id:
        assert run(trace_id, f"--run-dir={tmp_path}") == 0
        shown = capsys.readouterr().out
        for options in (["--last"], ["--last", "--over=9"]):
            assert run(*options, f"--run-dir={tmp_path}") == 0
            assert capsys.readouterr().out == shown
        assert run("--slowest=3", f"--run-dir={tmp_path}") == 0
        rows = capsys.readouterr().out.splitlines()
        assert run(trace_id, "--json", f"--run-dir={tmp_path}") == 0
        (line,) = capsys.readouterr().out.splitlines()
    lines = shown.splitlines()
    assert lines[0].startswith(f"{trace_id}  tandem-tiny  finished: ")
    assert [line.split()[0] for line in lines[2:10]] == [*PARTS]
    assert "█" in lines[3], "the queue took most of it"
    assert "  1. " in shown
    assert [line.split()[0] for line in lines[-len(LEVELS) :]] == [*LEVELS]
    assert len(rows) == 2
    assert rows[1].split()[0] == trace_id
    assert json.loads(line)["causes"][0]["kind"] == "slots"


@pytest.mark.promise("S5-719")
def test_a_day_later_logs_of_both_formats_tell_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls, told = stories(FOLDER / "retry.json")
    fields = [log_line(each) for each in (*calls, *told)]
    as_json = [json.dumps({"message": "request ended", **each}) for each in fields]
    console = [f"t INFO    request ended trace_id=x story={each['story']}" for each in fields]
    noise = [
        "nothing of it",
        '{"message": "request ended", "story": "{cut',
        "t INFO request ended story={cut",
        '{"message": "request ended"}',
    ]
    for text in (as_json, console):
        log = tmp_path / "all.log"
        log.write_text("\n".join([*noise, *text, ""]), encoding="utf-8")
        for words in ([calls[0].trace_id], ["--last", "--over=0"], ["--slowest=5"]):
            assert run(*words, "--json", f"--log={log}") == 0
            (line,) = capsys.readouterr().out.splitlines()
            assert json.loads(line)["causes"][0]["kind"] == "retry"
    # Components that have forgotten it, or are gone: the logs of the run directory are read.
    ports = {"router": "127.0.0.1:1"}
    run_state.write(tmp_path, RunState("http://127.0.0.1:1", "sim", None, {}, ports))
    assert run(calls[0].trace_id, "--json", f"--run-dir={tmp_path}") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["causes"][0]["kind"] == "retry"


@pytest.mark.promise("S5-719")
def test_what_nobody_knows_is_status_1_and_what_cannot_be_asked_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stack("slots", tmp_path):
        for words in (["0" * 32], ["--last", "--over=10"]):
            assert run(*words, f"--run-dir={tmp_path}") == 1
            assert "log_requests" in capsys.readouterr().err
    assert run("0" * 32, "--routers=127.0.0.1:1", f"--run-dir={tmp_path}") == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
    for words in (["--last", "--over=-1"], ["--slowest=1", "--routers=nowhere"]):
        assert run(*words) == 2
    assert run("--slowest=1", f"--log={tmp_path}/none.log") == 2
    with pytest.raises(SystemExit) as status:
        run()
    assert status.value.code == 2


def test_one_that_does_not_answer_is_named_below_what_the_others_told(tmp_path: Path) -> None:
    _, told = stories(FOLDER / "slots.json")
    shown = io.StringIO()
    with component(told) as router:
        words = ["why", "--last", f"--routers={router},127.0.0.1:1"]
        command.why(cli.parsed(words), Console(shown, terminal=False))
    assert "(not asked: 127.0.0.1:1: " in shown.getvalue()


def test_one_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def client(address: str, **_: Any) -> Any:
        asked.append(address)
        raise ApiError("it is gone")

    monkeypatch.setattr(asking, "Client", client)
    ports = asking.AdminPorts(["a:1"])
    assert ports.all(f"{number:032x}" for number in range(9)) == {}
    assert (asked, ports.silent) == (["a:1"], {"a:1": "it is gone"})


def test_a_story_of_another_version_is_an_error_of_its_own() -> None:
    with pytest.raises(ApiError, match="not that of a component of this version"):
        asking._evidence([{"endpoint": 1}])
