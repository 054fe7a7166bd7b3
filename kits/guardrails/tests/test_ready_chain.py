"""Ready-made hooks as settings name them, one behind the other, in a real chain."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hook_driver import equal_parts, parts_of, tokens_of
from hypothesis import given, settings
from hypothesis import strategies as st
from presidio_stand_in import stand_in
from product_packages import offered

from tandem.errors import LoadError
from tandem.hooks.chain import Chain
from tandem.hooks.loader import load_hook
from tandem.hooks.piece import Piece
from tandem.hooks.settings import parse
from tandem.hooks.trial import Brought, TrialRequest

KIT = Path(__file__).parents[1]
READY = offered("tandem.hooks")
MINIMAL: dict[str, dict[str, Any]] = {
    "banned_phrases": {"phrases": ["a"]},
    "max_output": {"words": 1},
    "patterns": {"patterns": [{"pattern": "a"}]},
}


def build(*entries: dict[str, Any]) -> Chain:
    hooks = parse("", {"chain": list(entries)})
    return Chain.build(hooks.for_worker("decode", "m"), phase="decode", model="m")


async def run(chain: Chain, parts: list[tuple[str, int]]) -> tuple[str, list[int], str | None]:
    """Text, token numbers and stop_reason."""
    request, token = TrialRequest(chain), 0
    for place, (text, tokens) in enumerate(parts, 1):
        piece = Piece(text, list(range(token, token + tokens)))
        token += tokens
        await request.step([Brought(piece, final=place == len(parts))])
    output = request.outputs[0]
    assert output.error is None
    return output.text, output.token_ids, output.stop_reason


@pytest.mark.parametrize("name", READY)
async def test_every_short_name_loads_and_lets_a_text_through_or_ends_it(name: str) -> None:
    chain = build({"path": name, "config": MINIMAL.get(name, {})})
    text, _, reason = await run(chain, equal_parts("zero 1", 1))
    assert (text, reason) in {
        ("zero 1", None),
        ("zero ", "max_output"),
        ("", "json_only"),
    }


@pytest.mark.parametrize("name", READY)
def test_what_is_wrong_with_a_ready_made_hook_is_said_with_its_name(name: str) -> None:
    with pytest.raises(LoadError, match=f"hook '{name}'.*nonsense"):
        load_hook(name, {"nonsense": 1})


def spans_in_the_original(text: str, first: str, second: str) -> tuple[str, list[tuple[int, int]]]:
    """What two redactions one after the other show, and all that they hide of `text`."""
    origin: list[tuple[int, int]] = []
    shown, hidden, place = "", [], 0
    for found in [*re.finditer(first, text), None]:
        begin, end = found.span() if found else (len(text), len(text))
        origin += [(at, at + 1) for at in range(place, begin)]
        shown += text[place:begin]
        if found:
            hidden.append((begin, end))
            origin.append((begin, end))
            shown += "_"
        place = end
    hidden += [
        (origin[found.start()][0], origin[found.end() - 1][1])
        for found in re.finditer(second, shown)
    ]
    return re.sub(second, "!", shown), hidden


@settings(max_examples=300)
@given(
    text=st.lists(st.sampled_from(["foo", "fo", "bar1", "ba", "1", "é", " ", "o"]), max_size=14),
    data=st.data(),
)
async def test_behind_each_other_they_show_no_token_of_what_either_hides(
    text: list[str], data: st.DataObject
) -> None:
    whole = "".join(text)
    parts = data.draw(parts_of(whole))
    chain = build(
        {
            "path": "banned_phrases",
            "config": {"phrases": ["foo"], "action": "redact", "replacement": "_"},
        },
        {"path": "patterns", "config": {"patterns": [{"pattern": "ba.?1|_o", "replacement": "!"}]}},
    )
    shown, tokens, _ = await run(chain, parts)
    expected, hidden = spans_in_the_original(whole, "foo", "ba.?1|_o")
    assert shown == expected
    for token, begin, end in tokens_of(parts, whole):
        if any(begin < last and first < end for first, last in hidden):
            assert token not in tokens


async def test_a_terminate_lets_the_later_hooks_show_what_they_held() -> None:
    chain = build(
        {"path": "max_output", "config": {"characters": 6}},
        {"path": "patterns", "config": {"patterns": [{"pattern": "ab+c", "name": "p"}]}},
    )
    text, _, reason = await run(chain, equal_parts("xx abbbbbc", 1))
    assert (text, reason) == ("xx abb", "max_output")


def examples() -> list[str]:
    """Every `hooks:` block of the documentation."""
    blocks = re.findall(
        r"```yaml\n(.*?)```", (KIT / "docs" / "ready-made.md").read_text(), re.DOTALL
    )
    return [block for block in blocks if block.startswith("hooks:")]


def test_the_documentation_shows_every_ready_made_hook() -> None:
    shown = {
        entry["path"] for block in examples() for entry in yaml.safe_load(block)["hooks"]["chain"]
    }
    assert set(READY) <= shown


@pytest.mark.parametrize("block", examples())
async def test_the_documentations_examples_load_and_run(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "engine: presidio" in block:
        stand_in(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "phrases.txt").write_text("project nightfall\n")
    chain = build(*yaml.safe_load(block)["hooks"]["chain"])
    text, _, _ = await run(chain, equal_parts('{"answer": "fine"}', 3))
    assert text == '{"answer": "fine"}'
