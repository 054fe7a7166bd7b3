"""tandem.testing.sim_stack starts a stack with a hook author's class in its workers."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tandem.cli.stack import StackError
from tandem.testing import sim_stack

HOOK = """
from tandem.hooks.contract import emit

class Shout:
    def __init__(self, mark="!"):
        self.mark = mark
    def __call__(self, chunk):
        return emit(chunk.text_diff.upper() + self.mark * chunk.is_final)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that this process can import by sys.path."""
    folder = tmp_path / "hooks_of_the_author"
    folder.mkdir()
    (folder / "shouting.py").write_text(HOOK, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    return "shouting"


def test_a_class_given_as_such_runs_in_the_workers(module: str, tmp_path: Path) -> None:
    hook = importlib.import_module(module).Shout
    with sim_stack(hook, prefill_hook=f"{module}:Shout", run_dir=tmp_path / "run") as stack:
        body = {"model": stack.model, "prompt": "Hi", **stack.saying("all of this")}
        assert stack.client.post("/v1/completions", body)["choices"][0]["text"] == "ALL OF THIS!"
        assert "hook=shouting:Shout" in stack.log("prefill_worker-0")
        assert stack.base_url == f"{stack.url}/v1"
    assert (tmp_path / "run" / "decode_worker-0.log").is_file()


def test_a_hook_that_cannot_be_loaded_says_why() -> None:
    with (
        pytest.raises(StackError, match="no module 'no_such_module'"),
        sim_stack("no_such_module:Hook"),
    ):
        pass


def test_a_class_that_no_worker_could_import_is_refused() -> None:
    class Local:
        pass

    with pytest.raises(ValueError, match="must stand at the top of a module"), sim_stack(Local):
        pass


def test_a_hook_and_a_chain_are_one_too_many() -> None:
    with pytest.raises(ValueError, match="not both"), sim_stack("a:B", hooks={"chain": []}):
        pass
