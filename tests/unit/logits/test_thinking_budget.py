"""A budget counts in the thought alone, and leaves what follows its end to the other processors."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from logits_bench import MODEL, Given, generate, state_of

from tandem.logits import TokenHistory

pytestmark = pytest.mark.promise("S1-303")
BUDGET = 3
END = "</think>"
COUNTED: Given = ("thinking_budget", {"budget": BUDGET, "end_text": END})
POSSIBLE: Given = (COUNTED[0], COUNTED[1] | {"begin_text": "<think>"})
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALLS = {
    "calls": [{"begin": '<tool_call>\n{"name": "f", "arguments": ', "schema": SCHEMA, "end": "}"}]
}
BEHIND: dict[str, dict[str, Any]] = {
    "json": {"calls": [], "answer": SCHEMA},
    "regex": {"calls": [], "pattern": "[ab]{2}/c"},
    "choice": {"calls": [], "texts": ["yes", "no, never"]},
    "calls": CALLS,
    "calls or text": CALLS | {"triggers": ["<tool_call>"]},
}


def written(given: Given, text: str) -> str:
    """What a model writes that would write `text`, where the budget lets it."""
    state = state_of(given)
    wanted = MODEL.encode(text)
    generated: list[int] = []
    while len(generated) < len(wanted):
        row = numpy.zeros(MODEL.vocabulary, dtype=numpy.float32)
        row[wanted[len(generated)]] = 1.0
        assert state.apply(TokenHistory((5, 6, 7), generated), row) is None
        generated.append(int(row.argmax()))
    return MODEL.decode(generated)


LONG = "one two three four five six seven eight nine ten"


def test_a_thought_that_the_prompt_opened_ends_by_its_budget() -> None:
    assert END in written(COUNTED, LONG)


@pytest.mark.parametrize("before", ["", " ", "\n\n", "<", "<think", "<thinking>"])
def test_an_answer_that_begins_no_thought_is_left_alone(before: str) -> None:
    assert written(POSSIBLE, before + LONG) == before + LONG


@pytest.mark.parametrize("before", ["<think>", "\n <think>", "<think>\n"])
def test_a_thought_that_the_answer_opens_ends_by_its_budget(before: str) -> None:
    text = written(POSSIBLE, before + LONG)
    thought, end, _ = text.partition(END)
    assert end == END
    count = len(MODEL.encode(thought)) - len(MODEL.encode(before.rstrip()))
    assert BUDGET - 1 <= count <= BUDGET + 1  # tokens may be cut otherwise alone


@pytest.mark.parametrize("given", [COUNTED, POSSIBLE], ids=["opened", "possible"])
def test_a_thought_that_ends_by_itself_is_ended_once(given: Given) -> None:
    text = ("" if given is COUNTED else "<think>") + f"a{END}{LONG}"
    assert written(given, text) == text


@pytest.mark.parametrize("budget", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("form", BEHIND)
def test_a_budget_beside_a_form_behind_the_thought_leaves_a_token_at_each_step(
    form: str, budget: int
) -> None:
    """Greedily over random rows: an error of a row is raised."""
    counted = {"budget": budget, "end_text": END}
    for seed in range(12):
        state = state_of(("tagged", {"before": END} | BEHIND[form]), ("thinking_budget", counted))
        assert END in MODEL.decode(generate(state, "numpy", steps=40, seed=seed))


def test_a_character_is_not_cut_by_the_budget() -> None:
    character = "\N{PILE OF POO}"
    assert len(MODEL.encode(character)) > BUDGET
    assert written(COUNTED, f"{character} {LONG}").startswith(character + END)
