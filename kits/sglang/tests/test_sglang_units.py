"""An SGLang that lacks one name after the other: what is found, and what is put in then."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import sglang_sides

from tandem.engine.base import EngineUnit, UnitState
from tandem.errors import StartError
from tandem_sglang import fitting
from tandem_sglang.additions import Additions, TokenAddresses
from tandem_sglang.units import UNITS

pytestmark = [pytest.mark.timeout(300)]
DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = DOCS / "design" / "0003-embedding-sglang.md"
UPSTREAM = DOCS / "engines" / "upstream.md"


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return sglang_sides.answers(sglang_sides.HERE / "sglang_units_side.py")


@pytest.mark.sglang
@pytest.mark.promise("S5-803")
def test_the_sglang_that_is_installed_has_all_that_units_need(found: dict[str, Any]) -> None:
    assert {state for states in found["found_whole"] for state in states} <= {"kept", "unneeded"}
    assert found["nothing_asks_a_name_of_the_one_that_is_cured"] == "unneeded"


@pytest.mark.sglang
@pytest.mark.promise("S5-803")
def test_of_each_name_that_goes_the_units_say_that_need_it(found: dict[str, Any]) -> None:
    needing: dict[str, set[str]] = {}
    seen = found["found_without_each_name"]
    assert set(seen) == {unit.name for unit in UNITS}
    for unit, names in seen.items():
        for name, lacking in names.items():
            needing.setdefault(name, set()).add(unit)
            assert lacking[unit].startswith(name), "the name is said"
    for names in seen.values():
        for name, lacking in names.items():
            others = {each for each, why in lacking.items() if why.startswith(name)}
            members = [
                units for need, units in needing.items() if f"{need}.".startswith(f"{name}.")
            ]
            assert others <= set().union(*members)
            after = {each for each, why in lacking.items() if not why.startswith(name)}
            assert after <= {unit.name for unit in UNITS if unit.after in lacking}


@pytest.mark.sglang
@pytest.mark.promise("S5-803")
@pytest.mark.parametrize("unit", [unit.name for unit in UNITS])
def test_a_unit_that_is_left_out_is_not_put_in_and_every_other_is(
    found: dict[str, Any], unit: str
) -> None:
    seen = found["put_in_without_each_unit"][unit]
    assert seen == {"whole": True, "left": [], "others": True, "otherwise": True}


@pytest.mark.sglang
@pytest.mark.promise("S5-803")
def test_parameters_count_as_names_do(found: dict[str, Any]) -> None:
    place = "sglang.srt.managers.scheduler.Made"
    assert found["parameters"] == {
        "takes": "",
        "may_take_more": "",
        "asks_more": f"{place}.asks_more with no parameter other",
        "calls_it_so": f"{place}.calls_it_so with a parameter batch",
        "is_not_there": f"{place}.is_not_there",
    }
    said = found["an_import_of_ours_that_fails"]
    assert said == (
        "what seeds:seed_every_row imports (ImportError: cannot import name 'TOP_K_ALL')"
    )


@pytest.mark.sglang
@pytest.mark.promise("S5-804")
def test_without_its_unit_a_failure_ends_its_request_as_it_is_found(found: dict[str, Any]) -> None:
    kept, at_once = found["failures_are_told_at_once_where_nothing_keeps_them"]
    assert kept == [[], 1]
    assert at_once == [[[[2], []]], 0]


def additions(**given: Any) -> Additions:
    made = Additions.__new__(Additions)
    for name, value in ({"further": (), "states": [0]} | given).items():
        object.__setattr__(made, name, value)
    return made


def lacking(name: str) -> EngineUnit:
    return EngineUnit(name=name, promise="", state=UnitState.LACKING, lacks="sglang.srt.a.b")


@pytest.mark.promise("S5-805")
def test_a_start_warns_once_of_each_unit_that_is_lacking(caplog: pytest.LogCaptureFixture) -> None:
    units = [
        lacking("seeds"),
        EngineUnit(name="pages", promise="", state=UnitState.KEPT),
        EngineUnit(name="metadata of all ranks", promise="", state=UnitState.UNNEEDED),
        lacking("forms"),
    ]
    with caplog.at_level(logging.INFO, "tandem_sglang"):
        fitting.check(units, additions(), strict=False, release="0.0")
    said = [(each.levelname, vars(each)["unit"]) for each in caplog.records]
    assert said == [("WARNING", "seeds"), ("WARNING", "forms")]
    assert vars(caplog.records[0])["reason"] == (
        "no sglang.srt.a.b. Requests with a seed are refused, as with seeded_sampling=false."
    )
    assert fitting.left_out(units) == {"seeds", "forms", "metadata of all ranks"}


@pytest.mark.promise("S5-806")
def test_a_unit_that_is_lacking_ends_a_start_that_is_to_be_strict_or_that_needs_it() -> None:
    why = r"SGLang 0\.0 lacks sglang\.srt\.a\.b, which the unit '{}' needs.*{}"
    with pytest.raises(StartError, match=why.format("pages", "strict_units to false")):
        fitting.check([lacking("pages")], additions(), strict=True, release="0.0")
    further = [TokenAddresses(requests="a", outputs="b")]
    for unit in ("outputs", "data-parallel requests"):
        fitting.check([lacking(unit)], additions(), strict=False, release="0.0")
        several = additions(further=further)
        with pytest.raises(StartError, match=why.format(unit, "install a release")):
            fitting.check([lacking(unit)], several, strict=False, release="0.0")


@pytest.mark.promise("S5-683")
def test_0003_lists_the_units_as_they_are() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Units\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \| ([^|]+) \|$", table, re.MULTILINE)
    assert rows[0] == ("unit", "promise", "without the unit")
    listed = [(name, promise, without) for name, promise, without in rows[2:]]
    assert listed == [(unit.name, unit.promise, unit.without) for unit in UNITS]


def test_the_page_for_sglang_s_maintainers_says_of_each_unit_what_would_end_it() -> None:
    page = " ".join(UPSTREAM.read_text(encoding="utf-8").split())
    ended = " ".join(re.findall(r"\*\*Ends\.\*\* (.*?)(?= ## |$)", page))
    cured = page.partition("## What needs nothing of SGLang ")[2]
    assert [unit.name for unit in UNITS if f"`{unit.name}`" not in ended + cured] == []
