"""The threat model, the table of ports and the promises S6 say the same."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from one_case import one_case

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import promises

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security" / "threat-model.md").read_text(encoding="utf-8")
PORTS = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
FAMILY = [promise.id for promise in promises.PROMISES if promise.seed == "S6"]


def rows(page: str, header: str) -> list[list[str]]:
    """The cells of every table whose header begins so."""
    tables = re.findall(rf"^\| {header}.*\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    return [line.strip("| \n").split(" | ") for table in tables for line in table.splitlines()]


def test_each_row_of_the_threat_model_is_a_promise_and_each_promise_a_row() -> None:
    threats = rows(PAGE, "Promise")
    assert [cells[0] for cells in threats] == FAMILY
    assert [cells for cells in threats if len(cells) != 4 or not all(cells)] == []


@one_case("cells", rows(PORTS, "Port"), ids=lambda cells: cells[0])
def test_each_port_names_the_promises_that_hold_it(cells: list[str]) -> None:
    assert len(cells) == 5
    named = re.findall(r"S6-\d+", cells[-1])
    assert named
    assert set(named) <= set(FAMILY)


def test_there_are_ports() -> None:
    assert len(rows(PORTS, "Port")) == 11
