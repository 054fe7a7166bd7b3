"""A hook that cannot run stops the start, with a message that says what to change."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.errors import LoadError
from tandem.hooks.contract import Chunk, emit
from tandem.hooks.loader import load_hook
from tandem.usercode.loader import load_object

MODULE = """
from tandem.hooks.contract import emit

class Good:
    built = 0
    def __init__(self):
        type(self).built += 1
        self.seen = []
    def __call__(self, chunk):
        self.seen.append(chunk)
        return emit(chunk.text_diff)

class Outer:
    class Inner(Good):
        pass

class Needy:
    def __init__(self, limit): ...
    def __call__(self, chunk): ...

class Raising:
    def __init__(self): raise RuntimeError("no licence")
    def __call__(self, chunk): ...

class NotCallable:
    pass

class Generating:
    async def __call__(self, chunk):
        yield chunk

class TwoArguments:
    def __call__(self, chunk, more): ...

instance = Good()
"""


@pytest.fixture
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "user_hooks.py").write_text(MODULE)
    (tmp_path / "user_broken.py").write_text("raise RuntimeError('the disk is full')")
    (tmp_path / "user_missing.py").write_text("import a_library_nobody_has")
    info = tmp_path / "user_hooks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: user-hooks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tandem.hooks]\nuser_good = user_hooks:Good\n")
    yield
    for name in ("user_hooks", "user_broken", "user_missing"):
        sys.modules.pop(name, None)


@pytest.mark.promise("S0-001")
@pytest.mark.parametrize("path", ["user_hooks.Good", "user_hooks:Good", "user_hooks:Outer.Inner"])
@pytest.mark.usefixtures("user_code")
def test_a_valid_path_gives_one_instance_built_without_arguments(path: str) -> None:
    built = load_object("user_hooks.Good").built
    hook = load_hook(path)
    assert load_object(path).built == built + 1
    chunk = Chunk(
        request_id=1,
        output_index=0,
        text_diff="a",
        text="a",
        token_ids_diff=(1,),
        is_final=True,
        aborted=False,
        streaming=False,
        phase="decode",
        trace_id="",
        model="m",
    )
    assert hook(chunk) == emit("a")


@pytest.mark.usefixtures("user_code")
def test_a_name_is_that_of_a_hook_that_an_installed_package_offers() -> None:
    assert type(load_hook("user_good")) is load_object("user_hooks:Good")


@pytest.mark.promise("S0-005")
@pytest.mark.usefixtures("user_code")
def test_two_loads_share_no_state() -> None:
    one, other = load_hook("user_hooks.Good"), load_hook("user_hooks.Good")
    assert one is not other
    assert vars(one)["seen"] is not vars(other)["seen"]


@pytest.mark.promise("S0-002", "S0-003", "S0-027")
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "is not an import path"),
        ("no_dots", "no installed package offers 'no_dots' as an entry point"),
        ("user_hooks:", "is not an import path"),
        (".Good", "is not an import path"),
        ("user hooks.Good", "is not an import path"),
        ("nowhere.Good", "there is no module 'nowhere'"),
        ("user_hooks.deeper.Good", "there is no module 'user_hooks.deeper'"),
        ("user_broken.Good", "raised while it was imported: RuntimeError: the disk is full"),
        ("user_missing.Good", "imports 'a_library_nobody_has', which is not installed"),
        ("user_hooks.Bad", "has no 'Bad'"),
        ("user_hooks:Outer.Bad", "has no 'Outer.Bad'"),
        ("user_hooks.instance", "is a Good, not a class"),
        ("user_hooks.Needy", "cannot be built without arguments: missing a required argument"),
        ("user_hooks.Raising", "its constructor raised RuntimeError: no licence"),
        ("user_hooks.NotCallable", "is not callable"),
        ("user_hooks.Generating", "its __call__ is a generator"),
        ("user_hooks.TwoArguments", "must take the chunk alone"),
    ],
)
@pytest.mark.usefixtures("user_code")
def test_a_path_that_gives_no_hook_is_refused_naming_it(path: str, words: str) -> None:
    with pytest.raises(LoadError) as refused:
        load_hook(path)
    assert words in str(refused.value)
    assert repr(path) in str(refused.value)
