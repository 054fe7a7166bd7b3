"""What the command line writes, on a terminal and elsewhere."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tandem.cli.console import Console


def written(*, terminal: bool) -> str:
    stream = io.StringIO()
    console = Console(stream, terminal=terminal)
    console.live("waiting for router", 1.0)
    console.live("waiting for router", 1.1)
    console.live("waiting for frontend", 2.0)
    console.done("ready", 2.5)
    console.failed("broken")
    console.table([("a", "1"), ("long name", "2")], head=("what", "how"))
    return stream.getvalue()


def test_without_a_terminal_there_are_plain_lines_and_no_repetition() -> None:
    assert written(terminal=False).splitlines() == [
        "     1 s  waiting for router",
        "     2 s  waiting for frontend",
        "ok  ready  2.5 s",
        "!!  broken",
        "  what       how",
        "  a          1",
        "  long name  2",
    ]


def test_on_a_terminal_a_live_line_is_rewritten_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = written(terminal=True)
    assert text.count("\r\x1b[2K") == 4
    assert "\x1b[32mok\x1b[0m" in text


@pytest.mark.promise("S5-755")
def test_what_has_a_share_says_it_and_about_how_long_the_rest_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    console = Console(stream, terminal=True)
    console.live("3/8 2:4 by prefix", 30.0, share=0.25)
    assert "3/8 2:4 by prefix, 25%, about 90 s left" in stream.getvalue()
    console.live("1/8 2:4 by prefix", 0.0, share=0.0)
    assert stream.getvalue().endswith("1/8 2:4 by prefix"), "nothing is known of the rest yet"
    now = 100.0
    monkeypatch.setattr("tandem.cli.console.time.monotonic", lambda: now)
    stream = io.StringIO()
    console = Console(stream, terminal=False)
    for number in range(1, 31):
        now += 1.0
        console.live(f"{number}/30 requests", float(number), share=number / 30)
        console.clear()
    assert stream.getvalue().splitlines() == [
        "    10 s  10/30 requests, 33%, about 20 s left",
        "    20 s  20/30 requests, 67%, about 10 s left",
        "    30 s  30/30 requests, 100%, about 0 s left",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.promise("S5-755")
@pytest.mark.parametrize("json", [False, True])
def test_the_live_line_goes_to_standard_error(monkeypatch: pytest.MonkeyPatch, json: bool) -> None:
    for errors, shown in (
        (Terminal(), "  waiting, 50%, about 10 s left\r"),
        (io.StringIO(), "    10 s  waiting, 50%, about 10 s left\n"),
    ):
        output = io.StringIO()
        monkeypatch.setattr("sys.stdout", output)
        monkeypatch.setattr("sys.stderr", errors)
        console = Console(json=json)
        console.live("waiting", 10.0, share=0.5)
        console.clear()
        assert shown in errors.getvalue()
        assert output.getvalue() == ""


@pytest.mark.promise("S5-791")
def test_a_result_is_a_line_of_json_on_standard_output_and_words_are_elsewhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain, console = Console(), Console(json=True)
    assert not plain.result({"a": 1})
    assert console.result({"path": Path("a"), "text": "two\nlines", "none": None})
    console.done("done")
    said = capsys.readouterr()
    assert said.out == '{"path":"a","text":"two\\nlines","none":null}\n'
    assert "done" in said.err


def test_no_color_takes_the_colours_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in written(terminal=True)
