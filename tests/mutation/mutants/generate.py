"""Bugs of the usual kinds, of every place of a file or function where they can be made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from mutants.change import blocks, find_scope, replaced
from mutants.table import ROOT, Mutant, files

_OTHERS: dict[type[ast.cmpop | ast.boolop], ast.cmpop | ast.boolop] = {
    ast.Lt: ast.LtE(),
    ast.LtE: ast.Lt(),
    ast.Gt: ast.GtE(),
    ast.GtE: ast.Gt(),
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.In: ast.NotIn(),
    ast.NotIn: ast.In(),
    ast.Is: ast.IsNot(),
    ast.IsNot: ast.Is(),
    ast.And: ast.Or(),
    ast.Or: ast.And(),
}
_TAKEN_OUT = (ast.Assign, ast.AugAssign, ast.Delete, ast.Expr, ast.Raise)
"""Statements without which a function may still run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated(Mutant):
    """A bug that is known by its place."""

    text: str
    """The whole file with it."""

    def applied(self, source: str) -> str:
        """The file's text with the bug."""
        return self.text


def generate(path: str, function: str = "", *, tests: tuple[str, ...] = ()) -> list[Mutant]:
    """Of a file, or of one of its functions. `tests`: those that are to notice; none: those that
    belong to the file. Raises LookupError where nothing says which these are.
    """
    source = (ROOT / path).read_text()
    known = files().get(path)
    if not (tests or known):
        raise LookupError(f"{path} is not in files.toml: give its tests")
    scope = find_scope(ast.parse(source), function)
    return [
        Generated(
            path=path,
            function=function,
            breaks=f"line {at.lineno}: {_brief(at)} -> {after}",
            before=ast.unparse(at),
            after=after,
            text=replaced(source, [at], after),
            tests=tests or (known.tests if known else ()),
            simulated=bool(known and known.simulated),
        )
        for at, after in _changes(scope)
    ]


def _brief(at: ast.expr | ast.stmt) -> str:
    return ast.unparse(at).partition("\n")[0]


def _changes(scope: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    for each in ast.walk(scope):
        if isinstance(each, ast.If | ast.While | ast.IfExp):
            yield each.test, f"(not ({ast.unparse(each.test)}))"
        if isinstance(each, ast.Compare):
            for place, operator in enumerate(each.ops):
                ops = [*each.ops[:place], _OTHERS[type(operator)], *each.ops[place + 1 :]]
                yield each, f"({ast.unparse(ast.Compare(each.left, ops, each.comparators))})"
        if isinstance(each, ast.BoolOp):
            yield each, f"({ast.unparse(ast.BoolOp(_OTHERS[type(each.op)], each.values))})"
        if isinstance(each, ast.Constant) and type(each.value) is int:
            yield each, f"({each.value + 1})"
        if isinstance(each, ast.Constant) and isinstance(each.value, bool):
            yield each, str(not each.value)
    for block in blocks(scope):
        for statement in block:
            text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if isinstance(statement, _TAKEN_OUT) and not text:
                yield statement, "pass"
