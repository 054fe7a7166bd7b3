"""The table of what came of each kind."""

from __future__ import annotations

from collections.abc import Sequence

from chaotic.trial import Row

_HEAD = ("fault", "requests", "in flight", "failed", "retried", "longest stall", "wrong", "hung")
_WIDTHS = (44, 8, 9, 56, 7, 13, 5, 4)


def head() -> str:
    return f"{_line(_HEAD)}\n{_line(['-' * width for width in _WIDTHS])}"


def line(row: Row) -> str:
    failed = ", ".join(f"{count} {code}" for code, count in sorted(row.failed.items()))
    stall = f"{row.longest_stall:.1f} s"
    fields = (row.name, row.requests, row.in_flight, failed, row.retried, stall)
    return _line([*map(str, fields), str(row.wrong), str(row.hung)])


def _line(fields: Sequence[str]) -> str:
    cells = (f"{field:{width}}" for field, width in zip(fields, _WIDTHS, strict=True))
    return f"| {' | '.join(cells)} |"
