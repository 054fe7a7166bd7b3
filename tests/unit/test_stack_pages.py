"""Pages about hooks, classifiers and logits processors begin with a line that starts a stack."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from one_case import one_case
from test_config_check import MAIN

from tandem.cli import config_command, options
from tandem.cli.init import EXAMPLE

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs/hooks", "docs/logits", "kits/guardrails/docs")
NO_GUIDES = {"docs/logits/cost.md"}
"""Measurements alone."""
PAGES = sorted(
    str(path.relative_to(ROOT))
    for folder in FOLDERS
    for path in (ROOT / folder).glob("*.md")
    if str(path.relative_to(ROOT)) not in NO_GUIDES
)
HOOK = """
from tandem.hooks.contract import emit

class Guard:
    def __call__(self, chunk):
        return emit(chunk.text_diff)

MyHook = Tone = FirstToken = Guard
"""
PROCESSOR = """
from tandem.logits import BaseLogitsProcessor
from tandem.logits.callbacks import batched_callback, callback

class BanToken(BaseLogitsProcessor):
    def __init__(self, token_id: int = 5) -> None:
        self.token_id = token_id

    def __call__(self, input_ids, logits):
        logits[self.token_id] = float("-inf")

class Style(BaseLogitsProcessor):
    def __init__(self, strength: float) -> None: ...

    def __call__(self, input_ids, logits): ...

ForcedThenCooler = BanToken

@callback
def cooler(req_id, logits, token_ids, stream_ptr): ...

@batched_callback
def steer(req_ids, logits, token_ids, stream_ptr): ...
"""
YOURS = {
    "my_pkg/guard.py": HOOK,
    "my_pkg/guardrail.py": HOOK,
    "my_package/processors.py": PROCESSOR,
    "my_package/callbacks.py": PROCESSOR,
}
"""The reader's own modules, which a page names and does not show, or shows with torch."""


def beginning(page: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    return text.partition("\n## ")[0]


def write_files(page: str, folder: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    shown = {
        found[1]: block for block in blocks if (found := re.match(r"# (my_\w+/\w+\.py)\n", block))
    }
    if "# cards.py" in text or "`cards.py`" in text:
        shown["cards.py"] = next(block for block in blocks if "class NoCards" in block)
    for name, code in {**YOURS, **shown}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(code)
    if stack := re.search(r"^```yaml\n(# stack\.yaml.*?)^```", text, re.DOTALL | re.MULTILINE):
        log = str(folder / "audit.jsonl")
        (folder / "stack.yaml").write_text(stack[1].replace("/var/log/tandem/audit.jsonl", log))


def would_start(
    line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In this process, as `tandem config check` does in others."""
    for component, flags in config_command.of_flags(shlex.split(line, comments=True)[2:]):
        monkeypatch.setattr(sys, "argv", [component, "--check-config", *flags])
        assert MAIN[component]() == 0, capfd.readouterr().err


@pytest.mark.promise("S5-708")
@one_case("page", PAGES)
def test_a_page_begins_with_a_line_that_starts_a_stack(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (line,) = re.findall(r"^(?:    )?(tandem up .*)$", beginning(page), re.MULTILINE)
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(options, "engine", lambda given: "sim")
    for name in [each for each in sys.modules if each.partition(".")[0] in MODULES]:
        monkeypatch.delitem(sys.modules, name)
    would_start(line, monkeypatch, capfd)


MODULES = {"my_pkg", "my_package", "cards"}


def test_the_page_of_the_stacks_file_shows_what_init_writes() -> None:
    page = (ROOT / "docs" / "stack-file.md").read_text(encoding="utf-8")
    assert f"```yaml\n{EXAMPLE}```" in page
