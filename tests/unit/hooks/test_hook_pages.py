"""The code in the pages about hooks runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tandem.cli import main
from tandem.hooks.contract import Chunk
from tandem.testing import run_hook, run_hook_async
from tandem_tools.check_hook import checks
from tandem_tools.check_hook.subject import Subject

PAGES = Path(__file__).parents[3] / "docs" / "hooks"


def python_blocks(page: str) -> list[str]:
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def defined(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(block, "the page", "exec"), names)
    return names


def test_the_examples_of_tensorrt_llm_differ_in_their_import_line_alone() -> None:
    blocks = python_blocks("moving-from-tensorrt-llm.md")
    assert len(blocks) == 3
    for block in blocks:
        assert block.startswith("from tandem.hooks.contract import")
        assert block.count("tandem") == 1


def test_the_examples_of_tensorrt_llm_run() -> None:
    upper, guard, silent = map(defined, python_blocks("moving-from-tensorrt-llm.md"))
    assert run_hook(upper["UpperCaseHook"](), ["ab", " c"]).text == "AB C"
    hook = guard["BannedPhraseGuard"]()
    run = run_hook(hook, ["Well,", " Forbidden", " phrase", " never"])
    assert (run.text, run.stop_reason) == ("Well, Forbidden", "banned_phrase")
    run_hook(hook, ["gone"], ending="abort")
    assert hook._buffers == {}
    run = run_hook(silent["SuppressHook"](), ["a", "b"])
    assert (run.text, run.token_ids, run.shown) == ("", (), (None, None))


@pytest.mark.promise("S6-524")
async def test_the_hook_of_first_steps_shows_nothing_of_what_it_guards_and_the_page_checks_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """check-hook finds nothing with the text that the page gives, and the hook acts on that."""
    (block,) = (block for block in python_blocks("../first-steps.md") if "NoSecrets" in block)
    (tmp_path / "my_hook.py").write_text(block)
    monkeypatch.syspath_prepend(str(tmp_path))
    page = (PAGES.parent / "first-steps.md").read_text(encoding="utf-8")
    (path, text) = re.findall(r'tandem check-hook (\S+) --text "(.+)"', page)[0]
    subject = Subject(path, {})
    calls = await checks.calls(subject, [text])
    assert "terminate" in calls.summary
    for check in (
        calls,
        await checks.borders(subject, [text]),
        await checks.tokens(subject, [text]),
    ):
        assert not check.problems
    hook = defined(block)["NoSecrets"]()
    run = await run_hook_async(hook, ["Well. This is a sec", "ret", " thing."])
    assert run.stop_reason == "no_secrets"
    assert "sec" not in run.text


def test_a_chunk_has_the_eight_fields_and_five_more() -> None:
    theirs = "request_id output_index text_diff text token_ids_diff is_final aborted streaming"
    more = ["phase", "trace_id", "model", "replay", "lora_adapter"]
    assert [*Chunk._fields] == [*theirs.split(), *more]
    assert Chunk(1, 0, "b", "ab", (2,), False, False, True).phase == "decode"


def test_the_guard_of_the_page_on_writing_stops_at_its_phrase() -> None:
    guard = defined(python_blocks("writing.md")[0])["Guard"]("b c")
    run = run_hook(guard, ["a", " b", " c", " d"])
    assert (run.text, run.stop_reason) == ("a b", "banned_phrase")
    assert guard._text == {}


def test_the_whole_answer_of_the_page_on_writing_is_shown_at_once_or_not_at_all() -> None:
    hook = defined(python_blocks("writing.md")[1])["WholeAnswer"]()
    run = run_hook(hook, ["a", " b", " c"])
    assert (run.shown, run.token_ids) == ((None, None, "a b c"), (1, 2, 3))
    run = run_hook(hook, ["a", " sec", "ret"])
    assert (run.text, run.token_ids) == ("", ())
    assert hook._tokens == {}


@pytest.mark.parametrize(("left", "text"), [(1, "a b"), (0, "")])
def test_the_async_hook_of_the_page_on_writing_asks_once(left: int, text: str) -> None:
    hook = defined(python_blocks("writing.md")[2])["AskFirst"]("http://budget/left")
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json={"left": left})

    async def startup() -> None:
        hook._client = httpx.AsyncClient(transport=httpx.MockTransport(answer))

    hook.startup = startup
    run = run_hook(hook, ["a", " b"], trace_id="t1")
    assert (run.text, run.stop_reason) == (text, None if left else "budget")
    assert [str(request.url) for request in asked] == ["http://budget/left?trace_id=t1"]
    assert hook._asked == set()


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page on testing."""
    names = ("cards.py", "test_cards.py", "conftest.py", "test_served.py")
    blocks = python_blocks("testing.md")
    for name, block in zip(names, blocks, strict=True):
        (tmp_path / name).write_text(block, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _outline(text: str) -> list[str]:
    """Without figures, which differ from run to run."""
    return re.sub(r"\d[\d.,]* ?[µm]?s?", "0", text).strip().splitlines()


@pytest.mark.parametrize("hook", ["cards:NoCards", "examples.redact_pii:RedactPii"])
def test_check_hook_says_what_the_page_on_testing_shows(
    cards: Path, hook: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (PAGES / "testing.md").read_text(encoding="utf-8")
    shown = text.partition(f"$ tandem check-hook {hook}\n")[2].partition("```")[0]
    main(["check-hook", hook])
    assert _outline(capsys.readouterr().out) == _outline(shown)


def test_the_tests_of_the_page_on_testing_pass(cards: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cards)]
    ran = subprocess.run(command, cwd=cards, capture_output=True, timeout=120, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout
