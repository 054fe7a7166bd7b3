"""A deliberate bug is one change of a tree, wherever its text stands and however it is written."""

from __future__ import annotations

import ast

import pytest
from mutants.change import changed
from mutants.generate import Generated, generate

SOURCE = '''\
"""A queue of parties."""

MOST = 3


class Queue:
    def take(self, size: int) -> bool:
        # Größe: a character of two bytes before what is replaced.
        name = "Größe"; fits = size < MOST
        if fits and self.open:
            self.count += size
            self.log(
                "taken",
                size,  # how many
            )
            return True
        return False

    def close(self) -> None:
        self.open = False
        self.log("taken", 0)
'''


def test_an_expression_is_found_however_it_is_written() -> None:
    text = changed(SOURCE, "Queue.take", 'self.log("taken", size)', "self.wake()")
    assert "self.count += size\n            (self.wake())\n            return True" in text


def test_a_part_of_a_line_is_replaced_behind_wide_characters() -> None:
    assert "fits = (size <= MOST)\n" in changed(SOURCE, "Queue.take", "size < MOST", "size <= MOST")


def test_statements_are_replaced_together_and_may_be_taken_out() -> None:
    before = "self.open = False\nself.log('taken', 0)"
    assert changed(SOURCE, "Queue.close", before, "self.open = True\nreturn").endswith(
        "None:\n        self.open = True\n        return\n"
    )
    assert changed(SOURCE, "Queue.close", before, "").endswith("None:\n        pass\n")


@pytest.mark.parametrize(
    ("function", "before", "words"),
    [
        ("Queue.take", "size > MOST", "there 0 times"),
        ("Queue.take", "size", "there 3 times"),
        ("Queue.leave", "size", "there is no Queue.leave"),
        ("MOST", "3", "there is no MOST"),
        ("Queue.take", "self.open = False", "there 0 times"),
    ],
)
def test_what_is_not_there_once_is_refused(function: str, before: str, words: str) -> None:
    with pytest.raises(LookupError, match=words):
        changed(SOURCE, function, before, "None")


def test_each_place_of_a_function_has_its_usual_bugs() -> None:
    path = "router/tandem_router/core/admission.py"
    made = generate(path, "refusal")
    assert {each.path for each in made} == {path}
    assert {each.simulated for each in made} == {True}
    assert all(each.tests for each in made)
    texts = [each.text for each in made if isinstance(each, Generated)]
    assert len({ast.unparse(ast.parse(text)) for text in texts}) == len(made) > 30
    kinds = [each.breaks.partition(": ")[2] for each in made]
    assert "state.draining -> (not (state.draining))" in kinds
    assert "too_many > 0 -> (too_many >= 0)" in kinds
    assert "request.allotment.admit(len(request.task)) -> pass" in kinds


def test_a_file_of_which_nobody_says_its_tests_needs_them() -> None:
    with pytest.raises(LookupError, match=r"not in files\.toml"):
        generate("tandem/ranges.py")
    assert generate("tandem/ranges.py", "Range.has", tests=("tests/unit/test_ranges.py",))
