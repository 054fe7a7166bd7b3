"""Run while tandem-sglang is built: lays Tandem's environment over that of SGLang's image.

    python3 lay_over.py path FILE       with the image's Python: a .pth file that adds its packages
    python lay_over.py check EXTRA ...  with Tandem's: is every requirement met, by either?

Nothing of SGLang is imported: the builder has no GPU.
"""

import site
import sys
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "tandem-serving"
KIT = "tandem-"
"""How the names of its kits begin, whose requirements count too."""
LEFT_TO_THE_IMAGE = frozenset({"nixl"})
"""Any version of these will do: SGLang was tried with its own."""


def path_file() -> str:
    """Adds the packages of this Python, .pth files among them included, behind those of another."""
    added = "; ".join(f"site.addsitedir({folder!r})" for folder in site.getsitepackages())
    return f"import site; {added}\n"


def problems(distribution: str, extras: Collection[str]) -> list[str]:
    """Which requirements of a distribution with these extras are not met here, and of the kits
    among them.
    """
    # In the image it is one of SGLang's packages.
    from packaging.requirements import Requirement

    found = []
    for line in metadata.requires(distribution) or ():
        requirement = Requirement(line)
        wanted = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker and not any(map(requirement.marker.evaluate, wanted)):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            found.append(f"{requirement.name} is missing")
            continue
        # A build's local part, as in 2.13.0+cu130, is not compared.
        fits = requirement.specifier.contains(version, prereleases=True)
        if not fits and requirement.name not in LEFT_TO_THE_IMAGE:
            found.append(f"{requirement.name} is {version}, and has to be {requirement.specifier}")
        if requirement.name.startswith(KIT):
            found += problems(requirement.name, requirement.extras)
    return found


def main(action: str, *arguments: str) -> str | None:
    """What went wrong; None where nothing did."""
    if action == "path":
        Path(arguments[0]).write_text(path_file(), encoding="utf-8")
        return None
    return "\n".join(problems(DISTRIBUTION, arguments)) or None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
