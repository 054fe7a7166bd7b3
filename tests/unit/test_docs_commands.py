"""What the pages tell people to run is there: our commands, their subcommands, modules, targets."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import product_packages
from one_case import one_case
from test_docs_prose import PAGES, ROOT

from tandem.cli import _parser
from tandem.cli.plan import COMPONENTS

_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_SHELL = {"", "sh", "bash", "shell", "console"}
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMANDS = set(_PROJECT["scripts"])
SUBCOMMANDS = set(_parser()[1].choices)
TARGETS = set(
    re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)
EXAMPLES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.py"))


def lines(text: str) -> Iterator[str]:
    """Lines of shell: fenced ones, and those that stand four spaces in."""
    for _, language, block in _FENCED.findall(text):
        if language in _SHELL:
            yield from block.splitlines()
    for line in _FENCED.sub("", text).splitlines():
        if line.startswith("    "):
            yield line


def unknown(text: str) -> list[str]:
    """The commands in a text that would not be found."""
    found = []
    for line in lines(text):
        words = line.strip().removeprefix("$ ").split()
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            del words[0]
        if words and not _known(words):
            found.append(" ".join(words[:3]))
    return found


def _known(words: list[str]) -> bool:
    first, second, third = [*words, "", ""][:3]
    if first in COMPONENTS:
        return not second.startswith("-")
    if first.startswith("tandem-") and re.fullmatch(r"tandem-[a-z-]+", first):
        return first in COMMANDS or not second.startswith("-")
    if first == "tandem" and re.fullmatch(r"[a-z-]+", second):
        return second in SUBCOMMANDS or second.startswith("-")
    if (first, second) == ("python", "-m"):
        return _runs(third)
    if first == "make" and re.fullmatch(r"[a-z-]+", second):
        return second in TARGETS
    return True


def _runs(module: str) -> bool:
    """Of somebody else's modules nothing is asked: to look into a package is to import it."""
    package = module.partition(".")[0]
    if package not in product_packages.PACKAGES:
        return package != module or importlib.util.find_spec(module) is not None
    folder = product_packages.folder(module)
    return folder.with_suffix(".py").exists() or (folder / "__main__.py").exists()


@one_case("page", [*PAGES, *EXAMPLES])
def test_every_command_of_ours_that_a_page_shows_is_there(page: str) -> None:
    assert unknown((ROOT / page).read_text(encoding="utf-8")) == []


def test_a_command_that_is_not_there_is_found(tmp_path: Path) -> None:
    text = """
    prefill_worker --logits-processors a=b:C
    tandem-prefill-worker --logits-processors a=b:C
    tandem-prefil-worker --listen x
    TANDEM_X=1 tandem upp --engine sim
    tandem up --engine sim
    python -m no_such_module_here
    python -m tandem_prefill_worker
    make tset
```bash
$ router --listen x
```
```python
    router --listen x
```
"""
    assert unknown(text) == [
        "router --listen x",
        "prefill_worker --logits-processors a=b:C",
        "tandem-prefil-worker --listen x",
        "tandem upp --engine",
        "python -m no_such_module_here",
        "make tset",
    ]
