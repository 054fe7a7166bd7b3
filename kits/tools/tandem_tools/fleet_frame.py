"""One frame of `tandem top`: what two readings, one after the other, say of routers and workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from tandem.cli.client import ApiError
from tandem_tools.fleet_readings import EngineReading, Readings, RouterReading, WorkerSeen

SLOW_SHARE = 0.5
"""A decode worker is slow whose sequences get less than this share of what is usual."""
MOST_CHARACTERS = 100
"""Shown of what a worker or router says in words."""
_GOOD_ENDS = ("finished", "terminated", "cancelled")
_LATELY = ("failed_legs", "ended_legs")
Row = tuple[str, ...]


def lines(before: Readings, now: Readings, *, most_workers: int) -> list[str]:
    """The frame. Of the workers that routers see those in trouble come first, and `most_workers`
    are shown.
    """
    seconds = max(now.at - before.at, 1e-9)
    found = [
        "routers",
        *_table(
            ("router", "queue", "open", "pairs", "frontends", "ends/s", "errors/s", "retries"),
            [_router(each, before, now, seconds) for each in now.routers],
        ),
    ]
    workers = sorted(_workers(now), key=lambda row: (not row[-1], row))
    found += [
        "",
        "workers",
        *_table(("worker", "name", "phase", "legs", "slots", "note"), workers[:most_workers]),
    ]
    if len(workers) > most_workers:
        found.append(f"  and {len(workers) - most_workers} more")
    if now.engines:
        head = ("metrics port", "phase", "legs", "waiting", "tokens/s", "hit rate", "KV", "note")
        found += ["", "engines", *_table(head, _engines(before, now, seconds))]
    return found


def _router(address: str, before: Readings, now: Readings, seconds: float) -> Row:
    told, earlier = now.routers[address], before.routers.get(address)
    if isinstance(told, ApiError):
        return address, f"no answer: {_plain(str(told))}"
    then = earlier if isinstance(earlier, RouterReading) else told
    ends = max(0, _ends(told) - _ends(then)) / seconds
    errors = max(0, _errors(told) - _errors(then)) / seconds
    return (
        f"{address} (draining)" if told.draining else address,
        f"{told.queue_length}/{told.queue_limit}",
        str(told.open_sequences),
        str(told.ready_pairs),
        str(told.frontends),
        f"{ends:.1f}",
        f"{errors:.1f}",
        str(told.retries),
    )


def _ends(told: RouterReading) -> int:
    return sum(told.requests.values())


def _errors(told: RouterReading) -> int:
    return sum(number for end, number in told.requests.items() if end not in _GOOD_ENDS)


def _workers(now: Readings) -> Iterator[Row]:
    """One row for each worker that some router knows."""
    views: dict[str, list[WorkerSeen]] = {}
    for told in now.routers.values():
        if isinstance(told, RouterReading):
            for each in told.workers:
                views.setdefault(each.address, []).append(each)
    for address, seen in views.items():
        legs = max(each.open_legs + each.other_legs for each in seen)
        slots = max(each.slots for each in seen)
        name = _plain(seen[0].name)
        yield address, name, seen[0].phase, str(legs), str(slots), _plain("; ".join(_notes(seen)))


def _notes(seen: Sequence[WorkerSeen]) -> Iterator[str]:
    """What is wrong with a worker, by any router; each thing once."""
    for each in seen:
        if each.refused:
            yield each.refused if each.connected else f"not connected: {each.refused}"
            break
    if silent := max(each.silent_seconds for each in seen):
        yield f"silent for {silent:.1f} s"
    if overdue := sum(each.overdue_legs for each in seen):
        yield f"{overdue} legs overdue"
    if faults := sum(each.faults for each in seen):
        yield f"{faults} faults"
    if proving := [each for each in seen if each.standing == "probation"]:
        failed, ended = (sum(getattr(each, name) for each in proving) for name in _LATELY)
        yield f"on probation: {failed} of the last {ended} legs failed"


def _engines(before: Readings, now: Readings, seconds: float) -> Iterator[Row]:
    speeds = {
        address: _speed(before.engines.get(address), told, seconds)
        for address, told in now.engines.items()
    }
    known = [each for each in speeds.values() if each is not None]
    usual = median(known) if len(known) > 1 else 0.0
    for address, told in now.engines.items():
        if isinstance(told, ApiError):
            yield address, f"no answer: {_plain(str(told))}"
            continue
        speed, then = speeds[address], before.engines.get(address)
        then = then if isinstance(then, EngineReading) else told
        yield (
            address,
            told.phase,
            f"{told.open_legs:.0f}",
            f"{told.waiting_legs:.0f}",
            f"{max(0.0, told.tokens - then.tokens) / seconds:.0f}",
            _hit_rate(then, told),
            f"{told.kv_used_ratio:.0%}",
            "slow" if speed is not None and speed < SLOW_SHARE * usual else "",
        )


def _speed(
    then: EngineReading | ApiError | None, told: EngineReading | ApiError, seconds: float
) -> float | None:
    """Tokens a second of each sequence; None where none ran all the while."""
    if not isinstance(then, EngineReading) or not isinstance(told, EngineReading):
        return None
    legs = min(then.open_legs, told.open_legs)
    if told.phase != "decode" or not legs:
        return None
    return max(0.0, told.tokens - then.tokens) / seconds / legs


def _hit_rate(then: EngineReading, told: EngineReading) -> str:
    """The share of prompts' tokens that a cache had: between the readings, else since the start."""
    prompt, cached = (
        told.prompt_tokens - then.prompt_tokens,
        told.cached_tokens - then.cached_tokens,
    )
    if prompt <= 0:
        prompt, cached = told.prompt_tokens, told.cached_tokens
    return f"{max(0.0, cached) / prompt:.0%}" if prompt > 0 else "-"


def _table(head: Row, rows: Iterator[Row] | list[Row]) -> list[str]:
    """Columns as wide as their widest cell; a row of fewer cells ends in words, of any width."""
    body = list(rows)
    whole = [row for row in (head, *body) if len(row) == len(head)]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    if body:
        widths[0] = max(len(row[0]) for row in (head, *body))
    cells = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        for row in (head, *body)
    )
    return [f"  {line.rstrip()}" for line in cells]


def _plain(text: str) -> str:
    """What somebody else says, without what a terminal would obey."""
    return "".join(each if each.isprintable() else "?" for each in text[:MOST_CHARACTERS])
