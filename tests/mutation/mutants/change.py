"""One change of a syntax tree: an expression, or statements, in place of others of a function.

What is replaced is compared as a tree: spaces, line breaks, comments and the rest of the file make
no difference.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from functools import lru_cache
from threading import Lock
from typing import TypeAlias

_PARSING = Lock()
"""CPython 3.11 counts the depth of a tree that it makes for all threads together: two at once have
raised SystemError.
"""
_Scope: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def changed(source: str, function: str, before: str, after: str) -> str:
    """`source` with `after` in place of `before` in a function, named `Class.method`; an empty name
    stands for the whole file. An empty `after` takes statements out.

    Raises LookupError where there is no such function, or `before` is not there exactly once, and
    SyntaxError for what is no Python.
    """
    with _PARSING:
        tree = _parsed(source)
        old = ast.parse(textwrap.dedent(before)).body
        new = ast.parse(textwrap.dedent(after)).body
    scope = find_scope(tree, function)
    if isinstance(old[0], ast.Expr) and isinstance(new[0] if new else None, ast.Expr):
        found: list[Sequence[ast.expr | ast.stmt]] = list(_expressions(scope, old[0].value))
        after = f"({after.strip()})"
    else:
        found = list(_statements(scope, old))
    if len(found) != 1:
        raise LookupError(f"its `before` is there {len(found)} times, not once")
    return replaced(source, found[0], after)


@lru_cache(maxsize=8)
def _parsed(source: str) -> ast.Module:
    """A file has many bugs, one after the other."""
    return ast.parse(source)


def find_scope(tree: ast.Module, function: str) -> _Scope:
    """The function or class of that name, `Class.method`; empty: the whole tree. Raises
    LookupError.
    """
    scope: _Scope = tree
    for name in filter(None, function.split(".")):
        found = _named(scope).get(name)
        if found is None or not isinstance(found, _Scope):
            raise LookupError(f"there is no {function}")
        scope = found
    return scope


@lru_cache(maxsize=64)
def _named(scope: _Scope) -> dict[str, ast.AST]:
    """What has a name in it; of several with one name the outermost, and the first of these."""
    found: dict[str, ast.AST] = {}
    for each in ast.walk(scope):
        if isinstance(name := getattr(each, "name", None), str):
            found.setdefault(name, each)
    return found


def _expressions(scope: ast.AST, wanted: ast.expr) -> Iterator[list[ast.expr | ast.stmt]]:
    shape = ast.dump(wanted)
    for each in ast.walk(scope):
        if type(each) is type(wanted) and ast.dump(each) == shape:
            yield [each]


def _statements(
    scope: ast.AST, wanted: Sequence[ast.stmt]
) -> Iterator[Sequence[ast.expr | ast.stmt]]:
    shapes = [ast.dump(each) for each in wanted]
    for block in blocks(scope):
        for at in range(len(block) - len(wanted) + 1):
            those = block[at : at + len(wanted)]
            if [ast.dump(each) for each in those] == shapes:
                yield those


def blocks(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    """Each run of statements in a tree."""
    for each in ast.walk(scope):
        for _, value in ast.iter_fields(each):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value


def replaced(source: str, old: Sequence[ast.expr | ast.stmt], after: str) -> str:
    """`source` with `after` in place of an expression, or of statements that follow each other."""
    lines = source.encode().splitlines(keepends=True)
    first, last = old[0], old[-1]
    assert last.end_lineno is not None
    indent = " " * first.col_offset
    text = textwrap.indent(textwrap.dedent(after).strip() or "pass", indent).lstrip()
    before = b"".join(lines[: first.lineno - 1]) + lines[first.lineno - 1][: first.col_offset]
    behind = lines[last.end_lineno - 1][last.end_col_offset :] + b"".join(lines[last.end_lineno :])
    return (before + text.encode() + behind).decode()
