"""Logs are structured and hold only fields that are named."""

from __future__ import annotations

import ast
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import product_packages
import pytest

from tandem import logs

ROOT = Path(__file__).parents[2]


@pytest.fixture
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("root_logger")
def test_a_json_line_has_the_named_fields_and_no_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("router", format="json")
    logging.getLogger("t").info("ended", extra={"trace_id": "abc", "prompt": "secret words"})
    line = capsys.readouterr().err
    entry = json.loads(line)
    assert entry["message"] == "ended"
    assert entry["component"] == "router"
    assert entry["trace_id"] == "abc"
    assert "secret" not in line


@pytest.mark.usefixtures("root_logger")
@pytest.mark.parametrize("number", [None, 2])
def test_a_line_says_which_token_process_wrote_it_where_there_are_several(
    number: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("decode_worker", format="json", token_process=number)
    logging.getLogger("t").info("serving")
    assert json.loads(capsys.readouterr().err).get("token_process") == number


@pytest.mark.promise("S5-311")
@pytest.mark.parametrize("component", ["frontend", "router", "prefill_worker", "decode_worker"])
def test_every_component_says_alike_who_it_is_and_where_it_serves(
    component: str, model_path: Path
) -> None:
    model = f"--model-path={model_path}"
    own = {"router": ["--prefill=127.0.0.1:1", "--decode=127.0.0.1:2"], "frontend": [model]}
    command = [
        *(sys.executable, "-m", f"tandem_{component}", "--log-format=json"),
        *("--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0"),
        *own.get(component, ["--engine=sim", model]),
    ]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            entries = (json.loads(line) for line in process.stderr)
            serving = next(entry for entry in entries if entry["message"] == "serving")
        finally:
            process.kill()
    assert (serving["component"], serving["host"]) == (component, socket.gethostname())
    host, _, port = serving["address"].rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


@pytest.mark.usefixtures("root_logger")
def test_a_console_line_reads_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("router", level="warning")
    logging.getLogger("t").info("not shown")
    logging.getLogger("t").warning("lost", extra={"worker": "p0"})
    err = capsys.readouterr().err
    assert "not shown" not in err
    assert "WARNING lost component=router worker=p0" in err


@pytest.mark.promise("S6-147")
@pytest.mark.usefixtures("root_logger")
def test_a_console_line_is_one_line_whatever_stands_in_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("router")
    reason = "one\ntwo\r\x1b[31mthree\u2028four\x9bfive"
    logging.getLogger("t").warning("bad", extra={"reason": reason})
    err = capsys.readouterr().err
    assert err.endswith("reason=one\\ntwo\\r\\x1b[31mthree\\u2028four\\x9bfive\n")
    assert len(err.splitlines()) == 1


FORGED = "a\n2026-01-01T00:00:00.000Z ERROR   forged component=router\r\x9b2J\u2028b\x85c"


@pytest.mark.promise("S6-147", "S6-423")
@pytest.mark.usefixtures("root_logger")
def test_a_message_is_one_line_whatever_its_arguments_hold(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("router")
    logging.getLogger("t").warning("bad: %s", FORGED)
    (line,) = capsys.readouterr().err.splitlines()
    assert "bad: a\\n2026-01-01" in line


@pytest.mark.promise("S6-147", "S6-423")
@pytest.mark.usefixtures("root_logger")
def test_an_exceptions_text_begins_no_line_of_a_console(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nor does that of its cause, of its group or of its notes."""
    logs.configure("router")
    try:
        try:
            raise KeyError(FORGED)
        except KeyError as cause:
            error = ValueError(FORGED)
            error.add_note(FORGED)
            raise ExceptionGroup(FORGED, [error]) from cause
    except ExceptionGroup:
        logging.getLogger("t").exception("failed")
    first, *others = capsys.readouterr().err.splitlines()
    assert first.endswith("failed component=router")
    assert others
    assert {line[:4] for line in others} == {"  | "}
    assert not any("\x9b" in line for line in others)


@pytest.mark.promise("S6-147", "S6-423")
@pytest.mark.usefixtures("root_logger")
def test_a_json_record_is_one_line_to_whoever_splits_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Python, Java and JavaScript take U+0085 and U+2028 for ends of lines too."""
    logs.configure("router", format="json")
    try:
        raise ValueError(FORGED)
    except ValueError:
        logging.getLogger("t").exception("failed: %s", FORGED, extra={"reason": FORGED})
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert entry["reason"] == FORGED
    assert entry["message"] == f"failed: {FORGED}"
    assert FORGED in entry["exception"]
    assert "\x9b" not in line


@pytest.mark.promise("S6-147")
@pytest.mark.usefixtures("root_logger")
def test_an_exception_stays_in_its_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("worker", format="json")
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("t").exception("failed")
    entry = json.loads(capsys.readouterr().err)
    assert "ValueError: boom" in entry["exception"]


def test_every_field_that_is_logged_is_written() -> None:
    """Else it is lost without a word: only the fields of FIELDS reach a log."""
    sources = product_packages.sources()
    nodes = [list(ast.walk(ast.parse(source.read_text()))) for source in sources]
    logged = {key for each in nodes for key in _logged(each)}
    assert "trace_id" in logged
    assert logged - set(logs.FIELDS) == set()


def _logged(nodes: Sequence[ast.AST]) -> Iterator[object]:
    """The names of fields that a module's calls give, there or by the name of a variable."""
    given = [each.value for each in nodes if isinstance(each, ast.keyword) and each.arg == "extra"]
    names = {each.id for each in given if isinstance(each, ast.Name)}
    made = [each for each in nodes if isinstance(each, ast.Assign)]
    given += [each.value for each in made if ast.unparse(each.targets[0]) in names]
    for each in given:
        if isinstance(each, ast.Dict):
            yield from (key.value for key in each.keys if isinstance(key, ast.Constant))
