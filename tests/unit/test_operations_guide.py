"""docs/kubernetes says nothing that the chart and the code do not know: values, settings, metrics,
error codes, log lines, commands and links.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import chart_renders
import product_packages
import pytest
import yaml

from monitoring.definitions import Catalogue
from monitoring.expressions import Expressions
from monitoring.registries import families
from tandem import cli
from tandem.errors import CODES
from tandem.hooks.settings import HookEntry, HookSettings
from tandem.worker.config import WorkerConfig
from tandem_frontend.config import FrontendConfig
from tandem_router.config import RouterConfig
from tandem_router.core.values import Fingerprint
from tandem_router.discovery.base import Trouble
from tandem_sglang.options import Options as SglangOptions
from tandem_sim.options import SimOptions

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "kubernetes"
PAGES = sorted(GUIDE.glob("*.md"))
COMPONENTS = ("frontend", "router", "prefill", "decode")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"[a-zA-Z]+(?:\.[a-zA-Z_]+)+")
_WORD = re.compile(r"[a-z]+(?:_[a-z0-9]+)+")
_FILE = re.compile(r"\.(py|md|yaml|crt|key|tgz)$")
_OTHERS_WORDS = {
    # UCX's, load.py's, Prometheus' and the examples' own
    "cuda_copy", "cuda_ipc", "max_tokens", "my_hooks",
    "itl_ms_p99", "ttft_ms_p99", "process_resident_memory_bytes",
}  # fmt: skip


class Block(NamedTuple):
    page: Path
    language: str
    text: str


def blocks(*languages: str) -> list[Block]:
    found = [
        Block(page, match[1], match[2])
        for page in PAGES
        for match in _FENCE.finditer(page.read_text(encoding="utf-8"))
    ]
    return [block for block in found if block.language in languages]


def spans(page: Path) -> list[str]:
    """Inline code."""
    return _SPAN.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))


def commands() -> Iterator[list[str]]:
    for block in blocks("sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words
    for page in PAGES:
        for span in spans(page):
            if span.split()[0] in ("helm", "kubectl", "make", "tandem", "python") and " " in span:
                yield shlex.split(span)


@cache
def schema() -> Mapping[str, Any]:
    text = (chart_renders.CHART / "values.schema.json").read_text(encoding="utf-8")
    content: Mapping[str, Any] = json.loads(text)
    return content


@cache
def catalogue() -> Catalogue:
    return Catalogue(families())


def is_value(path: str) -> bool:
    """Whether the chart takes a value there; below a free mapping anything is taken."""
    node = schema()
    for name in path.split("."):
        properties = node.get("properties", {})
        if name in properties:
            node = properties[name]
        else:
            return not properties and node.get("additionalProperties", True) is not False
    return True


def of_page(page: Path) -> str:
    return page.name


@pytest.mark.parametrize("page", PAGES, ids=of_page)
def test_every_value_that_is_named_exists(page: Path) -> None:
    top = schema()["properties"]
    named = {match[0] for span in spans(page) for match in _PATH.finditer(span)}
    paths = {path for path in named if path.partition(".")[0] in top and not _FILE.search(path)}
    assert [path for path in sorted(paths) if not is_value(path)] == []


def test_every_value_that_a_command_sets_exists() -> None:
    given = [
        part.partition("=")[0]
        for words in commands()
        for flag, value in pairwise(words)
        if flag in ("--set", "--set-json")
        for part in ([value] if flag == "--set-json" else value.split(","))
    ]
    assert given
    assert [path for path in given if not is_value(path)] == []


def test_every_values_file_renders() -> None:
    """The chart takes it, and refuses no combination in it."""
    files = [block for block in blocks("yaml") if block.text.startswith("# values.yaml\n")]
    assert len(files) > 4
    for block in files:
        assert chart_renders.manifests(yaml.safe_load(block.text)), block.page


def queries(page: Path) -> list[str]:
    inline = [span for span in spans(page) if re.search(r"\btandem_(?!tiny)\w", span)]
    fenced = [block.text for block in blocks("promql") if block.page == page]
    return inline + [query for text in fenced for query in re.split(r"\n(?=\S)", text.strip())]


@pytest.mark.parametrize("page", PAGES, ids=of_page)
def test_every_metric_exists_and_every_query_has_its_labels(page: Path) -> None:
    check = Expressions(catalogue(), {})
    for query in queries(page):
        check.scoped(query)  # raises for a name or a label that nobody has


def test_the_guide_has_queries_to_check() -> None:
    assert sum(len(queries(page)) for page in PAGES) > 20


def known_words() -> set[str]:
    """Settings, options, codes, reasons and fields, by their names in the code."""
    classes = (
        FrontendConfig, RouterConfig, WorkerConfig, SglangOptions, SimOptions, HookSettings,
        HookEntry,
    )  # fmt: skip
    fields = {name for each in classes for name in getattr(each, "__dataclass_fields__", ())}
    structs = {name for each in classes for name in getattr(each, "__struct_fields__", ())}
    reasons = {*Fingerprint._fields, *(each.value for each in Trouble)}
    return fields | structs | reasons | set(CODES) | _OTHERS_WORDS


@pytest.mark.parametrize("page", PAGES, ids=of_page)
def test_every_code_and_setting_that_is_named_exists(page: Path) -> None:
    words = {span for span in spans(page) if _WORD.fullmatch(span)}
    names = {word for word in words if not word.startswith(("tandem_", "test_"))}
    assert sorted(names - known_words()) == []


@cache
def sources() -> str:
    texts = [path.read_text(encoding="utf-8") for path in product_packages.sources()]
    return re.sub(r'"\s*\n\s*"', "", "\n".join(texts)).replace("engine %s", "engine sglang")


@pytest.mark.parametrize("page", PAGES, ids=of_page)
def test_every_log_line_that_is_quoted_is_written_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    quoted = re.findall(r"\blogs? `([^`]+)`(?:, `([^`]+)`)?", text)
    lines = [line for pair in quoted for line in pair if " " in line]
    assert [line for line in lines if line not in sources()] == []


def test_every_make_target_and_script_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {words[1] for words in commands() if words[0] == "make"}
    assert targets
    assert targets - set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)) == set()
    scripts = [words for words in commands() if words[0] == "python"]
    for _, script, *flags in scripts:
        text = (ROOT / script).read_text(encoding="utf-8")
        assert [flag for flag in flags if flag.startswith("--") and f'"{flag}"' not in text] == []


def test_every_tandem_command_exists() -> None:
    named = {words[1] for words in commands() if words[0] == "tandem"}
    assert named
    for command in named:
        with pytest.raises(SystemExit) as ended:
            cli.main([command, "--help"])
        assert ended.value.code == 0, command


def test_every_object_that_a_command_names_is_in_the_chart() -> None:
    """Of the default values: release and namespace `tandem`."""
    objects = {
        f"{each['kind'].lower()}/{each['metadata']['name']}"
        for each in chart_renders.of_set("default")
    }
    named = {
        word
        for words in commands()
        if words[0] == "kubectl"
        for word in words
        if re.fullmatch(r"(deployment|service|configmap)/tandem-\w+", word)
    }
    assert named
    assert named - objects == set()
