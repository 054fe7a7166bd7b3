"""`tandem check-hook` tells a good hook from a bad one, and the example hooks are good ones."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from examples.hooks import CountingHook, PhraseGuard, UpperCase
from tandem.cli import main
from tandem.hooks.contract import Chunk, Verdict

HOOKS = """
import time
from tandem.hooks.contract import emit, suppress, terminate

class Good:
    def __call__(self, chunk):
        return emit(chunk.text_diff)

class Raises:
    def __call__(self, chunk):
        raise KeyError("words")

class ReturnsText:
    def __call__(self, chunk):
        return chunk.text_diff

class NeedsArguments:
    def __init__(self, phrase): ...

class BreaksOnAbort(Good):
    def __call__(self, chunk):
        if chunk.aborted:
            raise RuntimeError("unexpected end")
        return super().__call__(chunk)

class MixesRequestsUp:
    def __init__(self):
        self.text = ""
    def __call__(self, chunk):
        self.text += chunk.text_diff
        return emit(self.text)

class Slow(Good):
    def __call__(self, chunk):
        until = time.perf_counter() + 0.0015 * (chunk.text_diff == " END")
        while time.perf_counter() < until:
            pass
        return emit(chunk.text_diff)

class Stops:
    def __call__(self, chunk):
        return terminate("enough") if "time" in chunk.text else suppress()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "hooks_under_test"
    (tmp_path / f"{name}.py").write_text(HOOKS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return name


@pytest.mark.parametrize("name", ["Good", "Stops"])
def test_a_hook_that_keeps_to_the_contract_passes(
    module: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-hook", f"{module}:{name}"]) == 0
    assert "time a call: median" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Raises", "raised KeyError"),
        ("ReturnsText", "answered str"),
        ("BreaksOnAbort", "raised RuntimeError: unexpected end"),
        ("MixesRequestsUp", "key what you remember by"),
    ],
)
def test_a_hook_that_breaks_the_contract_fails_with_its_reason(
    module: str, name: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-hook", f"{module}:{name}"]) == 1
    assert says in capsys.readouterr().out


def test_a_slow_hook_is_named(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-hook", f"{module}:Slow"]) == 0
    assert "delays every token" in capsys.readouterr().out


def test_a_hook_that_cannot_be_built_has_status_2(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-hook", f"{module}:NeedsArguments"]) == 2
    assert "cannot be built without arguments" in capsys.readouterr().err


def test_a_path_that_leads_nowhere_has_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-hook", "no_such_module_here:Hook"]) == 2
    assert "no_such_module_here" in capsys.readouterr().err


@pytest.mark.parametrize("hook", [UpperCase, CountingHook, PhraseGuard])
def test_the_example_hooks_pass(hook: type, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-hook", f"examples.hooks:{hook.__name__}"]) == 0, capsys.readouterr().out


def run(hook: PhraseGuard, *pieces: str, request_id: int = 1) -> list[Verdict]:
    verdicts = []
    for index, piece in enumerate(pieces):
        verdict = hook(
            Chunk(
                request_id=request_id,
                output_index=0,
                text_diff=piece,
                text="".join(pieces[: index + 1]),
                token_ids_diff=(),
                is_final=index == len(pieces) - 1,
                aborted=False,
                streaming=True,
                phase="decode",
                trace_id="0" * 32,
                model="m",
            )
        )
        verdicts.append(verdict)
        if verdict.action == "terminate":
            break
    return verdicts


def shown(verdicts: list[Verdict]) -> str:
    return "".join(verdict.text for verdict in verdicts if verdict.action == "emit")


def test_the_phrase_guard_shows_nothing_of_a_phrase_that_spans_chunks() -> None:
    verdicts = run(PhraseGuard(), "Well, For", "bidden", " phr", "ase", " more")
    assert (verdicts[-1].action, verdicts[-1].reason) == ("terminate", "phrase_guard")
    assert shown(verdicts) == "Well, "


def test_the_phrase_guard_loses_nothing_of_other_text() -> None:
    guard = PhraseGuard()
    assert shown(run(guard, "for", "forbidden", " phra", "X for")) == "forforbidden phraX for"
    assert shown(run(guard, "next", request_id=2)) == "next"
