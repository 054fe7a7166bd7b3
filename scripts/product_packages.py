"""Where the product's packages lie, as pyproject.toml packs them into the wheel."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


def packages(tree: Path) -> dict[str, Path]:
    """The folder of each package of a checkout, by the name by which the package is imported."""
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    paths = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return {Path(each).name: tree / each for each in paths}


def import_path(tree: Path) -> str:
    """PYTHONPATH by which Python finds a checkout's packages, and not those of another checkout
    that is installed.
    """
    return os.pathsep.join(sorted({str(each.parent) for each in packages(tree).values()}))


PACKAGES: Final = packages(ROOT)
"""This checkout's packages."""


def folder(module: str) -> Path:
    """Where a package lies, or a package within: "tandem_router.core"."""
    name, _, rest = module.partition(".")
    return PACKAGES[name] / rest.replace(".", "/")


def sources() -> Iterator[Path]:
    """All modules of the product, without those that are generated from proto/."""
    for package in PACKAGES.values():
        for path in sorted(package.rglob("*.py")):
            if not path.is_relative_to(ROOT / "tandem" / "v1"):
                yield path
