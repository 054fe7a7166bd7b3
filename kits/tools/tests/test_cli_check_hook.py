"""`tandem check-hook` tells a good hook from a bad one, and says what to fix."""

from __future__ import annotations

import asyncio
import importlib
import json
from contextlib import suppress
from pathlib import Path

import pytest

from tandem.cli import main
from tandem_tools.check_hook import CHECKS, crowd, duration, samples
from tandem_tools.check_hook.subject import was_cut

REQUESTS = 400
HALF = REQUESTS // 2
"""After which it is measured what is kept."""
HOOKS = '''
import asyncio
import time
from tandem.hooks.contract import emit, suppress, terminate

class Good:
    def __call__(self, chunk):
        return emit(chunk.text_diff)

class Raises(Good):
    def __call__(self, chunk):
        raise KeyError("words")

class ReturnsText(Good):
    def __call__(self, chunk):
        return chunk.text_diff

class NeedsArguments(Good):
    def __init__(self, phrase): ...

class BreaksOnAbort(Good):
    def __call__(self, chunk):
        if chunk.aborted:
            raise RuntimeError("unexpected end")
        return super().__call__(chunk)

class BreaksOnEmpty(Good):
    def __call__(self, chunk):
        return emit(chunk.text_diff if chunk.text_diff[0] else "")

class BreaksOnPrefill(Good):
    def __call__(self, chunk):
        return None if chunk.phase == "prefill" else super().__call__(chunk)

class BreaksInClose(Good):
    def close(self, request_id):
        raise OSError("closed already")

class AsyncClose(Good):
    async def close(self, request_id): ...

class HoldsTooMuch(Good):
    def __call__(self, chunk):
        return emit("", hold_tokens=5)

class AddsTooMuch(Good):
    def __call__(self, chunk):
        return emit(chunk.text_diff + "x" * 2_000_000)

class SaysTooMuch(Good):
    def __call__(self, chunk):
        return terminate("r" * 2_000)

class Hangs(Good):
    def __call__(self, chunk):
        while True:
            time.sleep(1)

class CutAtOnce(Good):
    """As one that the signal reaches late, and whose time began before the probe's."""
    def __call__(self, chunk):
        from tandem.usercode.deadline import OverdueError
        raise OverdueError

class HangsAsync(Good):
    async def __call__(self, chunk):
        await asyncio.Event().wait()

class OneBuffer(Good):
    """All requests in one text."""
    banned = "bad word"
    def __init__(self):
        self.text = ""
    def __call__(self, chunk):
        self.text += chunk.text_diff
        return terminate("banned") if self.banned in self.text else emit(chunk.text_diff)

class ByTrace(Good):
    """The outputs of a request in one text."""
    def __init__(self, banned="bad word"):
        self.banned = banned
        self.texts = {}
    def __call__(self, chunk):
        text = self.texts.get(chunk.trace_id, "") + chunk.text_diff
        self.texts[chunk.trace_id] = text
        if chunk.is_final:
            self.texts.pop(chunk.trace_id, None)
        return terminate("banned") if self.banned in text else emit(chunk.text_diff)

class ForgetsNoAborted(Good):
    def __init__(self):
        self.users = {"all": {}}
    def __call__(self, chunk):
        if chunk.is_final and not chunk.aborted:
            self.users["all"].pop(chunk.request_id, None)
        else:
            self.users["all"][chunk.request_id] = chunk.text_diff
        return super().__call__(chunk)

SEEN = []
class RemembersInModule(Good):
    def __call__(self, chunk):
        if chunk.is_final:
            SEEN.append(chunk.trace_id)
        return super().__call__(chunk)

class RemembersInClass(Good):
    seen = set()
    def close(self, request_id):
        self.seen.add(request_id)

class Slots(Good):
    __slots__ = ("log",)
    def __init__(self):
        self.log = []
    def __call__(self, chunk):
        self.log.append(chunk.request_id)
        return super().__call__(chunk)

class Counts(Good):
    """Remembers, but no more with every request."""
    def __init__(self):
        self.by_phase = {}
        self.cache = {}
    def __call__(self, chunk):
        self.by_phase[chunk.phase] = self.by_phase.get(chunk.phase, 0) + 1
        self.cache[chunk.request_id % 50] = chunk.text_diff
        return super().__call__(chunk)

class ByChunk(Good):
    def __call__(self, chunk):
        return emit(chunk.text_diff.replace("4111", "####"))

class HoldsTextOnly(Good):
    def __init__(self):
        self.held = {}
    def __call__(self, chunk):
        text = self.held.pop(chunk.request_id, "") + chunk.text_diff
        if chunk.is_final:
            return emit(text)
        self.held[chunk.request_id] = text[-5:]
        return emit(text[:-5])

class Collects(Good):
    """The whole answer at its end, without its tokens."""
    def __init__(self):
        self.held = {}
    def __call__(self, chunk):
        self.held[chunk.request_id] = self.held.get(chunk.request_id, "") + chunk.text_diff
        return emit(self.held[chunk.request_id]) if chunk.is_final else suppress()
    def close(self, request_id):
        self.held.pop(request_id)

class Slow(Good):
    def __call__(self, chunk):
        until = time.perf_counter() + 0.0015
        while time.perf_counter() < until:
            pass
        return super().__call__(chunk)

class SlowAsync(Good):
    async def __call__(self, chunk):
        time.sleep(0.0015)
        return emit(chunk.text_diff)

class Waits(Good):
    """Takes long, but not from others."""
    async def __call__(self, chunk):
        await asyncio.sleep(0.002)
        return emit(chunk.text_diff)

class ReadsAll(Good):
    def __call__(self, chunk):
        sum(map(ord, chunk.text))
        return super().__call__(chunk)

class Shouts(Good):
    def __init__(self, mark="!"):
        self.mark = mark
    def __call__(self, chunk):
        print("for nobody")
        return emit(chunk.text_diff + self.mark * chunk.is_final)
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "hooks_under_test"
    (tmp_path / f"{name}.py").write_text(HOOKS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(importlib.sys.modules, name, raising=False)  # type: ignore[attr-defined]
    importlib.invalidate_caches()
    return name


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many requests as show what is wrong."""
    monkeypatch.setattr(crowd, "REQUESTS", REQUESTS)
    monkeypatch.setattr(duration, "LONG_ANSWER", 1_000)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """For hooks that are slow on purpose."""
    monkeypatch.setattr(crowd, "AT_ONCE", 4)
    monkeypatch.setattr(crowd, "SECONDS", 0.5)
    monkeypatch.setattr(samples, "SECONDS", 0.3)
    monkeypatch.setattr(duration, "LONG_ANSWER_SECONDS", 0.3)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The report as one line: where it is wrapped depends on its words."""
    return " ".join(capsys.readouterr().out.split())


def test_a_hook_that_keeps_to_the_contract_passes(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-hook", f"{module}:Good"]) == 0
    out = said(capsys)
    assert "!!" not in out
    assert "??" not in out
    assert f"{REQUESTS} interleaved, 64 at a time, each as if alone" in out
    assert out.endswith(f"ok {module}:Good keeps to the contract")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Raises", "raised KeyError: 'words' (hooks_under_test.py:12) on prefill's final chunk"),
        ("ReturnsText", "the hook answered str, not a verdict"),
        ("BreaksOnAbort", "raised RuntimeError: unexpected end (hooks_under_test.py:24) on the"),
        ("BreaksOnEmpty", "raised IndexError: string index out of range"),
        ("BreaksOnPrefill", "the hook answered NoneType, not a verdict"),
        ("BreaksInClose", "raised OSError: closed already (hooks_under_test.py:37) in close()"),
        ("AsyncClose", "close() is async, and is not awaited"),
        ("HoldsTooMuch", "the hook holds more tokens than there are"),
        ("AddsTooMuch", "the hook added more than 1048576 characters (max_added_chars)"),
        ("SaysTooMuch", "terminate's reason is longer than 1000 characters"),
        ("Hangs", "took longer than 1 s on prefill's final chunk"),
        ("CutAtOnce", "took longer than 1 s on prefill's final chunk"),
        ("HangsAsync", "took longer than 1 s on prefill's final chunk"),
    ],
)
def test_a_hook_that_breaks_the_contract_fails_with_its_reason(
    module: str, name: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-hook", f"{module}:{name}"]) == 1
    out = said(capsys)
    assert says in out
    assert out.endswith(f"!! {module}:{name}: 1 finding to fix")


async def test_an_await_is_cut_by_its_timeout_and_not_by_the_hook() -> None:
    found = []
    with suppress(TimeoutError):
        async with asyncio.timeout(0):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                found.append(was_cut(error))
                raise
    assert [*found, was_cut(asyncio.CancelledError())] == [True, False]


OUTPUTS = "two outputs of one request are mixed up: key what you remember by"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "OneBuffer",
            [
                OUTPUTS,
                "requests are mixed up: key what you remember by chunk.request_id",
                "alone: shows 'It began well. bad', then stops (banned)",
                "text grew by",
            ],
        ),
        ("ByTrace", [OUTPUTS]),
        ("ForgetsNoAborted", ["users[*] grew by"]),
        ("RemembersInModule", [f"hooks_under_test.SEEN grew by {HALF} entries in {HALF} requests"]),
        ("RemembersInClass", [f"RemembersInClass.seen grew by {HALF} entries"]),
        ("Slots", ["log grew by"]),
    ],
)
def test_a_hook_that_mixes_up_what_it_remembers_or_forgets_nothing_is_shown_where(
    module: str, name: str, says: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-hook", f"{module}:{name}"]) == 1
    out = said(capsys)
    assert [each for each in says if each not in out] == []


def test_state_that_is_bounded_is_no_leak(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-hook", f"{module}:Counts"]) == 0
    assert "nothing of requests that are over" in said(capsys)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "ByChunk",
            [
                "the shown text depends on where chunks begin and end by words: shows",
                "text is taken out, but its token ids are shown",
            ],
        ),
        ("HoldsTextOnly", ["are shown while its text is held back: emit(…, hold_tokens=n)"]),
        ("Collects", ["text is shown whose token ids were dropped: suppress(hold_tokens=n)"]),
        ("ReadsAll", ["look at chunk.text_diff and what you remember, not at all of chunk.text"]),
    ],
)
def test_what_an_author_should_know_is_a_warning(
    module: str, name: str, says: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-hook", f"{module}:{name}"]) == 0
    out = said(capsys)
    assert [each for each in says if each not in out] == []


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("name", ["Slow", "SlowAsync"])
def test_a_hook_that_keeps_the_worker_waiting_fails(
    module: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-hook", f"{module}:{name}"]) == 1
    assert "more than 1 ms delays every token of the worker" in said(capsys)


@pytest.mark.usefixtures("hasty")
def test_an_async_hook_may_wait(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-hook", f"{module}:Waits"]) == 0
    assert "awaited; of that on the event loop p50" in said(capsys)


def test_a_text_of_the_caller_is_tried(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-hook", f"{module}:ByChunk", "--text", "4111 is a prefix"]) == 0
    assert "'#### is a prefix'" in said(capsys)


def test_a_text_of_the_config_is_tried(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-hook", f"{module}:ByTrace", "--config={banned: x y z z y}"]) == 1
    assert "1 terminate" in said(capsys)


@pytest.mark.parametrize("form", ["inline", "file"])
def test_the_config_reaches_the_constructor(
    module: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = '{"mark": "?"}'
    if form == "file":
        (tmp_path / "config.yaml").write_text("mark: '?'\n")
        given = "config.yaml"
    assert main(["check-hook", f"{module}:Shouts", "--config", given]) == 0
    assert "keeps to the contract" in said(capsys)


def test_json_says_the_same_and_nothing_else(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-hook", f"{module}:Shouts", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["hook"], found["ok"]) == (f"{module}:Shouts", True)
    names = [check["name"] for check in found["checks"]]
    assert names[:2] == ["built", "calls"]
    assert len(names) == CHECKS, "by which the progress is told"
    assert main(["check-hook", f"{module}:Raises", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert found["checks"][1]["status"] == "failed"
    assert "KeyError" in found["checks"][1]["problems"][0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["MODULE:NeedsArguments"], "cannot be built without arguments"),
        (["MODULE:Shouts", "--config={volume: 3}"], "cannot be built from config ['volume']"),
        (["MODULE:Good", "--config=[1]"], "--config must be a mapping"),
        (["MODULE:Good", "--config={"], "--config cannot be read"),
        (["no_such_module_here:Hook"], "no_such_module_here"),
    ],
)
def test_a_hook_that_cannot_be_built_has_status_2(
    module: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-hook", *(each.replace("MODULE", module) for each in arguments)]) == 2
    assert says in capsys.readouterr().err
