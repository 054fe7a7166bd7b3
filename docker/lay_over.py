"""Run while tandem-sglang and tandem-vllm are built: lays Tandem's environment over that of the
engine's own image.

    python3 lay_over.py path FILE       with the image's Python: a .pth file that adds its packages
    python lay_over.py check EXTRA ...  with Tandem's: is every requirement met, by either?
    python lay_over.py brings PACKAGE ...  the same of packages, such as "vllm==0.32.*"

Nothing of an engine is imported: the builder has no GPU.
"""

import site
import sys
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

DISTRIBUTION = "tandem-serving"
KIT = "tandem-"
"""How the names of its kits begin, whose requirements count too."""
LEFT_TO_THE_IMAGE = frozenset({"nixl"})
"""Any version of these will do: engines were tried with their own."""


def path_file() -> str:
    """Adds the packages of this Python, .pth files among them included, behind those of another."""
    added = "; ".join(f"site.addsitedir({folder!r})" for folder in site.getsitepackages())
    return f"import site; {added}\n"


def problems(distribution: str, extras: Collection[str]) -> list[str]:
    """Which requirements of a distribution with these extras are not met here, and of the kits
    among them. Kits require what requires them: each is looked at once.
    """
    # In the image it is one of the engine's packages.
    from packaging.requirements import Requirement

    found: dict[str, None] = {}
    asked = [(distribution, frozenset(extras))]
    for name, wanted in asked:
        environments = [{"extra": extra} for extra in ("", *wanted)]
        for requirement in map(Requirement, metadata.requires(name) or ()):
            if requirement.marker and not any(map(requirement.marker.evaluate, environments)):
                continue
            if problem := _problem(requirement):
                found[problem] = None
            kit = (requirement.name, frozenset(requirement.extras))
            if not problem and requirement.name.startswith(KIT) and kit not in asked:
                asked.append(kit)
    return list(found)


def missing(packages: Collection[str]) -> list[str]:
    """The packages that are missing here, or of other versions than these requirements ask for."""
    from packaging.requirements import Requirement

    return [problem for each in packages if (problem := _problem(Requirement(each)))]


def _problem(requirement: "Requirement") -> str:
    """Why a requirement is not met; empty: it is."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} is missing"
    # A build's local part, as in 2.13.0+cu130, is not compared.
    fits = requirement.specifier.contains(version, prereleases=True)
    if fits or requirement.name in LEFT_TO_THE_IMAGE:
        return ""
    return f"{requirement.name} is {version}, and has to be {requirement.specifier}"


def main(action: str, *arguments: str) -> str | None:
    """What went wrong; None where nothing did."""
    if action == "path":
        Path(arguments[0]).write_text(path_file(), encoding="utf-8")
        return None
    if action == "brings":
        return "\n".join(missing(arguments)) or None
    return "\n".join(problems(DISTRIBUTION, arguments)) or None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
