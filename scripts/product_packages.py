"""Where the product's packages lie, as pyproject.toml packs them into the wheel."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES: Final[dict[str, Path]] = {
    Path(each).name: ROOT / each
    for each in _PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
}
"""Each package's folder, by the name by which the package is imported."""
PLACES: Final = tuple(sorted({str(each.parent) for each in PACKAGES.values()}))
"""The folders in which Python finds the packages, for PYTHONPATH."""


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
