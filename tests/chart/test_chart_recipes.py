"""The examples of docs/recipes: Tandem and SGLang take their arguments, and the pages say of their
memory what `tandem plan-fit` says.
"""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import chart_renders
import pytest
import sglang_arguments
from chart_renders import EXAMPLES, ROOT
from test_chart_settings import settings

from tandem.cli import main
from tandem.engine.base import Nodes, Role
from tandem.engine.sglang import arguments, options

CONFIGS = ROOT / "tests" / "model_configs"
PAGES = ROOT / "docs" / "recipes"
MARK = "**Rendered and argument-checked; not run on GPUs.**"
_PLAN = re.compile(r"```\n\$ tandem plan-fit (.*)\n((?:.+\n)+)```")
PHASES = (Role.PREFILL, Role.DECODE)


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def model(name: str) -> str:
    """The folder of the model's configuration."""
    return str(chart_renders.values(name)["model"]["uri"]).rpartition("/")[2]


def made(name: str, role: Role, folder: Path) -> dict[str, Any]:
    """What a worker of the rendered chart gives to SGLang."""
    loaded = settings(name, role.value, folder)
    return arguments.server_args(
        options.parse(loaded.engine_options),
        role=role,
        model_path=CONFIGS / model(name),
        max_sequences=loaded.max_sequences,
        host="10.0.0.1",
        device="cuda",
        bootstrap_port=7110,
        processors=True,
        nodes=Nodes(count=loaded.nodes, rank=0, leader=loaded.leader),
    )


def test_each_example_has_a_page_that_says_what_was_checked() -> None:
    assert len(EXAMPLES) == 5
    assert {path.stem for path in PAGES.glob("*.md")} == {"README", *EXAMPLES}
    overview = page("README")
    for name in EXAMPLES:
        assert MARK in page(name)
        assert f"helm/tandem/examples/{name}.yaml" in page(name)
        assert f"({name}.md)" in overview


@pytest.mark.promise("S5-303")
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_says_of_memory_what_the_command_says(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = _PLAN.findall(page(name))
    ranks = chart_renders.values(name).get("engine", {}).get("tensorParallel", 1)
    assert any(f"{model(name)} " in command and f"--tp {ranks}" in command for command, _ in plans)
    for command, shown in plans:
        folder, *flags = shlex.split(command)
        assert main(["plan-fit", str(CONFIGS / folder), *flags]) == 0
        assert capsys.readouterr().out == shown


@pytest.mark.sglang
@pytest.mark.skipif(find_spec("sglang") is None, reason="`make chart-test` sets up no SGLang")
@pytest.mark.promise("S5-303")
def test_sglang_takes_what_workers_of_each_example_give_it(tmp_path: Path) -> None:
    cases = [(name, role) for name in EXAMPLES for role in PHASES]
    given = [made(name, role, tmp_path) for name, role in cases]
    for (name, role), resolved in zip(cases, sglang_arguments.ask(given)["resolved"], strict=True):
        assert isinstance(resolved, dict), f"{name} {role}: {resolved}"
        assert resolved["page_size"] == 64
        assert resolved["disaggregation_mode"] == role.value
