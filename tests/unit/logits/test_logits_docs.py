"""The code of docs/logits/ runs, and its tables name what there is."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
import yaml
from logits_bench import MODEL, Library, rows

from tandem.logits import TokenHistory
from tandem.logits.ready import READY
from tandem.logits.registry import Registry
from tandem.logits.rows import apply_rows
from tandem.logits.settings import ProcessorSettings, parse
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec
from tandem.logits.state import RequestLogits

DOCS = Path(__file__).parents[3] / "docs" / "logits"
PAGES = sorted(DOCS.glob("*.md"))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """An importable module, filled from a page."""
    made = ModuleType("from_the_docs")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def run(page: Path, module: ModuleType) -> dict[str, Any]:
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def state_of(registry: Registry, name: str, **args: Any) -> RequestLogits:
    spec = LogitsProcessorSpec((LogitsProcessorEntry(name, args),))
    return RequestLogits.create(registry, spec, MODEL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_python_block_runs(page: Path, module: ModuleType) -> None:
    run(page, module)


def test_a_processor_written_for_dynamo_runs_and_is_exact_in_both_phases(
    library: Library, module: ModuleType
) -> None:
    cls = run(DOCS / "moving-from-dynamo.md", module)["ForcedThenCooler"]
    registry = Registry()
    registry.register("cooler", cls)
    forced = [70, 71, 72]
    batch, before = rows(library, 5), rows("numpy", 5)
    prefill = state_of(registry, "cooler", token_ids=forced)
    decode = state_of(registry, "cooler", token_ids=forced)
    generated: list[int] = []
    for position, row in enumerate(batch):
        phase = decode if position else prefill
        assert phase.apply(TokenHistory([5, 6], generated), row) is None
        generated.append(int(row.argmax()))
    assert generated[:3] == forced
    assert numpy.array(batch[4].tolist()) == pytest.approx(before[4] / 0.5, rel=1e-5)


def test_the_example_of_writing_bans_its_token_for_as_long_as_it_says(
    library: Library, module: ModuleType
) -> None:
    registry = Registry()
    registry.register("ban", run(DOCS / "writing.md", module)["BanToken"])
    state = state_of(registry, "ban", token_id=7, until=2)
    for position, row in enumerate(rows(library, 3)):
        assert state.apply(TokenHistory([5], [9] * position), row) is None
        assert (float(row[7]) == float("-inf")) is (position < 2)


def test_the_batched_example_does_what_its_single_form_does(
    library: Library, module: ModuleType
) -> None:
    registry = Registry()
    registry.register("lift", run(DOCS / "writing.md", module)["Lift"])
    batch, alone = rows(library, 3), rows(library, 3)
    past = TokenHistory([5], [])
    states = [state_of(registry, "lift", token_id=token) for token in (7, 8, 9)]
    assert apply_rows(states, [past] * 3, batch) == [None] * 3
    for token, row in zip((7, 8, 9), alone, strict=True):
        state_of(registry, "lift", token_id=token).apply(past, row)
    assert batch.tolist() == alone.tolist()


def test_the_callbacks_of_their_page_edit_the_rows_of_their_requests(
    library: Library, module: ModuleType
) -> None:
    found = run(DOCS / "callbacks.md", module)
    registry = Registry()
    for name in ("cooler", "steer"):
        registry.register(name, found[name])
    states = [state_of(registry, name, request_id=7) for name in ("cooler", "steer", "steer")]
    batch, before = rows(library, 3), rows("numpy", 3)
    assert apply_rows(states, [TokenHistory([5], [])] * 3, batch) == [None] * 3
    before[0] /= 0.8
    before[1:, 7] += 2.0
    assert numpy.array(batch.tolist()) == pytest.approx(before, rel=1e-6)
    assert registry.import_paths()["cooler"] == "from_the_docs:cooler"


def test_rows_are_tensors_where_the_module_of_the_processor_uses_torch(
    module: ModuleType,
) -> None:
    code = (
        "import torch\nfrom tandem.logits import BaseLogitsProcessor\n"
        "class Looks(BaseLogitsProcessor):\n"
        "    def __call__(self, input_ids, logits):\n"
        "        assert isinstance(logits, torch.Tensor)\n"
        "        logits.mul_(2)\n"
    )
    exec(code, module.__dict__)
    registry = Registry()
    registry.register("looks", module.Looks)
    row, before = rows("numpy", 1)[0], rows("numpy", 1)[0]
    assert state_of(registry, "looks").apply(TokenHistory([5], []), row) is None
    assert torch.equal(torch.from_numpy(row), torch.from_numpy(before) * 2)


def test_the_settings_page_shows_settings_that_load() -> None:
    _, text = blocks(DOCS / "configuring.md", "yaml")  # behind the stack's file
    settings = parse(yaml.safe_load(text)["logits_processors"])
    assert settings["house_style"].clients == "select"
    assert settings["watermark"] == ProcessorSettings(
        use="watermark", args={"key": "the deployment's secret"}, clients="none", always=True
    )


def test_the_catalogue_lists_every_ready_made_processor_and_no_other() -> None:
    section = (DOCS / "README.md").read_text(encoding="utf-8").partition("## Ready-made")[2]
    table = section.partition("What reads text")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == set(READY)
