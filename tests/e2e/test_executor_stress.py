"""The stress test of executors in a short form; `make stress` is the long one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from executor_book import Book
from executor_stress import run_tasks, run_threads

from tandem.testing.sim_stack import SimStack, sim_stack

SECONDS = 4.0


@pytest.fixture(scope="module")
def stack() -> Iterator[SimStack]:
    with sim_stack() as running:
        yield running


def check(books: Sequence[Book]) -> None:
    assert [fault for book in books for fault in book.faults] == []
    for book in books:
        assert book.endings["LENGTH"] > 10
    endings: Counter[str] = sum((book.endings for book in books), Counter())
    assert endings["CANCELLED"]
    assert endings["router_lost"]


def test_each_request_of_many_threads_ends_once_with_its_own_tokens(stack: SimStack) -> None:
    check(run_threads(stack.stack, count=40, seconds=SECONDS, kills=1, seed=1))


async def test_each_request_of_many_tasks_ends_once_with_its_own_tokens(stack: SimStack) -> None:
    check(await run_tasks(stack.stack, count=400, seconds=SECONDS, kills=1, seed=2))
