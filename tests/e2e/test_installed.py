"""Tandem's wheels in an environment of their own, with nothing of the checkout in sight."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import installed
import pytest
from product_packages import KITS, PACKAGES


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return installed.build(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def bare(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with Tandem's wheels alone."""
    python = installed.make_environment(tmp_path_factory.mktemp("bare") / "venv", sys.executable)
    installed.install_wheels(python, (each for each in wheels if "sglang" not in each.name))
    return python


@pytest.mark.promise("S5-701")
def test_every_distribution_has_a_wheel_whose_packages_are_typed(wheels: list[Path]) -> None:
    assert len(wheels) == 1 + len(KITS)
    names = {name for each in wheels for name in zipfile.ZipFile(each).namelist()}
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert "tandem_tiny/tandem-tiny/model.safetensors" in names
    tops = {name.partition("/")[0] for name in names if ".dist-info" not in name}
    assert tops == set(PACKAGES)


@pytest.mark.promise("S5-702")
@pytest.mark.parametrize(
    "program", ["tandem", *(f"tandem-{each}" for each in installed.COMPONENTS)]
)
def test_a_program_names_the_package_that_is_not_installed(
    bare: Path, tmp_path: Path, program: str
) -> None:
    words = ["up"] if program == "tandem" else ["--help"]
    ended = subprocess.run(
        [bare.parent / program, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.endswith(" is not installed: pip install tandem-serving\n")
    assert ended.stderr.count("\n") == 1


@pytest.mark.promise("S5-703")
def test_a_first_hour_needs_no_more_than_the_wheels_and_what_they_require(
    wheels: list[Path], tmp_path: Path
) -> None:
    python = installed.make_environment(tmp_path / "venv", sys.executable)
    installed.install_wheels(python, (each for each in wheels if "sglang" not in each.name))
    installed.lend(python, tmp_path / "lent")
    project = tmp_path / "a project"
    project.mkdir()
    installed.FirstHour(python, project).go()
    lent = [each.name for each in (tmp_path / "lent").iterdir()]
    assert [name for name in lent if installed.HEAVY.search(name)] == []
