"""docs/imports.md draws what the import contracts of pyproject.toml hold, for every module."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import product_packages
from one_case import one_case

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "imports.md").read_text(encoding="utf-8")
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]
COMPONENTS = "The components"


def drawings() -> dict[str, list[str]]:
    """The lines of each drawing, by what it is of: the containers it names, or the components."""
    found = re.findall(r"^## (.*)\n(?:(?!^#).*\n)*?```\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)
    return {
        name.replace("/", "."): lines.splitlines()
        for title, lines in found
        for name in re.findall(r"`([\w/]+)/`", title) or [title]
    }


def contracts() -> dict[str, dict[str, Any]]:
    """The contracts that are drawn: those of layers, by their container."""
    return {
        container: contract
        for contract in LINTER["contracts"]
        if contract["type"] == "layers"
        for container in contract.get("containers", [COMPONENTS])
    }


def names(layers: list[str], *, optional: bool) -> set[str]:
    """The modules in these layers, with or without those in parentheses, which need not exist."""
    found = {name.strip() for layer in layers for name in re.split(r"[|:]", layer)}
    return {name.strip("()") for name in found if optional or not name.startswith("(")}


def top_modules(container: str) -> Iterator[str]:
    for path in product_packages.folder(container).iterdir():
        if path.suffix == ".py" and path.name != "__init__.py":
            yield path.stem
        elif (path / "__init__.py").exists():
            yield path.name


def test_each_contract_of_layers_is_drawn_and_nothing_else() -> None:
    assert drawings().keys() == contracts().keys()


@one_case("container", contracts())
def test_a_drawing_is_its_contract_line_by_line(container: str) -> None:
    assert drawings()[container] == contracts()[container]["layers"]


@one_case("container", sorted(contracts().keys() - {COMPONENTS}))
def test_every_module_is_in_a_layer(container: str) -> None:
    assert contracts()[container]["exhaustive"]
    layers, modules = contracts()[container]["layers"], set(top_modules(container))
    assert names(layers, optional=False) <= modules <= names(layers, optional=True)


def test_every_root_package_is_a_component_or_shared() -> None:
    layers, packages = contracts()[COMPONENTS]["layers"], set(LINTER["root_packages"])
    assert names(layers, optional=False) <= packages <= names(layers, optional=True)


def test_every_package_of_several_modules_has_a_contract() -> None:
    packages = {each for each in LINTER["root_packages"] if len([*top_modules(each)]) > 1}
    assert packages <= contracts().keys()


def test_each_module_of_tandem_has_its_line_in_the_table() -> None:
    cells = re.findall(r"^\| (`[^|]*`) \|", PAGE, re.MULTILINE)
    described = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert set(top_modules("tandem")) <= described
