"""Where the product's packages lie, as each pyproject.toml packs them into a wheel."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]


def kits(tree: Path) -> list[Path]:
    """The folder of each kit of a checkout that belongs to the product; none in an old one."""
    members = _project(tree)["tool"].get("uv", {}).get("workspace", {}).get("members", ())
    return [tree / each for each in members]


def packages(tree: Path) -> dict[str, Path]:
    """The folder of each package of a checkout, by the name by which the package is imported."""
    return {
        Path(each).name: folder / each
        for folder in (tree, *kits(tree))
        for each in _project(folder)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    }


def _project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def import_path(tree: Path) -> str:
    """PYTHONPATH by which Python finds a checkout's packages, and not those of another checkout
    that is installed.
    """
    return os.pathsep.join(sorted({str(each.parent) for each in packages(tree).values()}))


KITS: Final = kits(ROOT)
"""This checkout's kits."""

PACKAGES: Final = packages(ROOT)
"""This checkout's packages."""


def folder(module: str) -> Path:
    """Where a package lies, or a package within: "tandem_router.core"."""
    name, _, rest = module.partition(".")
    return PACKAGES[name] / rest.replace(".", "/")


def offered(group: str) -> list[str]:
    """The names that kits offer as entry points of a group."""
    points = (_project(kit)["project"].get("entry-points", {}) for kit in KITS)
    return sorted(name for each in points for name in each.get(group, ()))


def sources() -> Iterator[Path]:
    """All modules of the product, without those that are generated from proto/."""
    for package in PACKAGES.values():
        for path in sorted(package.rglob("*.py")):
            if not path.is_relative_to(ROOT / "tandem" / "v1"):
                yield path
