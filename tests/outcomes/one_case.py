"""One test that asks one question of every entry of a table.

Where each entry is a case of its own, pytest collects, sets up and reports thousands of them, and
most of their time is pytest's. `one_case` takes what `pytest.mark.parametrize` takes, asks of every
entry however many break the rule, and then fails with the name of each that does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

import pytest
from _pytest.mark import ParameterSet

MOST_LINES: Final = 6
"""The report shows so many lines of an error."""
Test = Callable[..., Any]


def one_case(
    names: str | Sequence[str],
    entries: Iterable[Any] | Callable[[], Iterable[Any]],
    *,
    ids: Callable[[Any], object] = lambda value: value if isinstance(value, str) else repr(value),
) -> Callable[[Test], Test]:
    """Call the test with every entry of a table, in one case.

    `names` are the test's parameters that an entry gives. An entry is a value for a single name and
    a tuple for several, or a `pytest.param` with an id; `ids` makes the name of a value. A table
    that takes long to make is a function, which the test calls when it runs. Fixtures are made once
    for all entries. Two of these decorators make one test of all pairs of entries.
    """
    parameters = [names] if isinstance(names, str) else list(names)

    def table() -> Iterator[tuple[str, dict[str, Any]]]:
        for entry in entries() if callable(entries) else entries:
            if isinstance(entry, ParameterSet):
                values: Sequence[Any] = entry.values
                name = str(entry.id)
            else:
                values = [entry] if isinstance(names, str) else entry
                name = "-".join(str(ids(value)) for value in values)
            yield name, dict(zip(parameters, values, strict=True))

    def decorate(rule: Test) -> Test:
        if inspect.iscoroutinefunction(rule):

            @functools.wraps(rule)
            async def test(**fixtures: Any) -> None:
                with _Asked() as asked:
                    for name, values in table():
                        with asked.about(name):
                            await rule(**values, **fixtures)

        else:

            @functools.wraps(rule)
            def test(**fixtures: Any) -> None:
                with _Asked() as asked:
                    for name, values in table():
                        with asked.about(name):
                            rule(**values, **fixtures)

        signature = inspect.signature(rule)
        fixtures = [each for each in signature.parameters.values() if each.name not in parameters]
        test.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return test

    return decorate


class EntriesBroke(pytest.fail.Exception):
    """The names of the entries that broke a rule, each with what it said."""

    def __init__(self, broken: list[str], asked: int) -> None:
        self.broken = broken
        lines = "\n".join(broken)
        super().__init__(f"{len(broken)} of {asked} entries broke the rule:\n{lines}", False)


class _Asked:
    """The entries that a rule was asked of, and those that broke it."""

    def __init__(self) -> None:
        self._count = 0
        self._broken: list[str] = []

    def __enter__(self) -> _Asked:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            assert self._count, "the table has no entries"
            if self._broken:
                raise EntriesBroke(self._broken, self._count)

    @contextmanager
    def about(self, name: str) -> Iterator[None]:
        self._count += 1
        try:
            yield
        except EntriesBroke as inner:
            self._broken += [f"{name}, {each}" for each in inner.broken]
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - an entry is not the test
            self._broken.append(f"{name}: {_said(error, error.__traceback__)}")


def _said(error: BaseException, traceback: TracebackType | None) -> str:
    """An error with the line of the test that raised it."""
    place = ""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename.rpartition("/")[2]
        if file.startswith("test_"):
            place = f"{file}:{traceback.tb_lineno}: "
        traceback = traceback.tb_next
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    lines = str(error).splitlines()
    more = ["  ..."] if len(lines) > MOST_LINES else []
    return place + kind + "\n  ".join([*lines[:MOST_LINES], *more])
