"""What `tandem top` draws: figures of a fleet as a screen of any size, made with rich."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tandem_tools.top.figures import (
    FINE,
    FleetFigures,
    RouterFigures,
    TrafficFigures,
    WorkerFigures,
)

LEAST_WORKERS = 5
"""Rows of workers that a screen has before it shows anything below its head."""
MOST_ROUTERS = 8
KEEP = 240
"""Points of a sparkline that are kept."""
SPARKS = "▁▂▃▄▅▆▇█"
GOOD, BAD, POOR, FAINT, TITLE = "green", "bold red", "yellow", "dim", "bold"
KEYS = "q quit  p pause  s sort  r reverse  ↑↓ scroll"
FULL_SHARE, NEARLY_FULL_SHARE = 0.95, 0.8
_BAR_WIDTH = 8
T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class _Order:
    """One way to sort workers. `largest`: those with most come first."""

    name: str
    key: Callable[[WorkerFigures], object]
    largest: bool = True


ORDERS = (
    _Order("state", lambda each: (each.state in FINE, each.name), largest=False),
    _Order("name", lambda each: each.name, largest=False),
    _Order("slots", lambda each: each.legs / each.slots if each.slots else each.legs),
    _Order("KV", lambda each: each.kv_used_ratio or 0.0),
    _Order("tok/s", lambda each: each.tokens_per_second or 0.0),
    _Order("wait", lambda each: each.waiting or 0.0),
)


@dataclass(slots=True, kw_only=True)
class FleetView:
    """How somebody looks at a fleet: what keys change, and what sparklines remember."""

    address: str
    interval: float
    order: int = 0
    backwards: bool = False
    paused: bool = False
    first: int = 0
    """The first worker that is shown."""
    page: int = 1
    """Workers that the last screen had room for."""
    tokens: deque[float] = field(default_factory=lambda: deque(maxlen=KEEP))
    queue: deque[float] = field(default_factory=lambda: deque(maxlen=KEEP))

    def remember(self, figures: FleetFigures) -> None:
        """For the sparklines."""
        self.tokens.append(figures.tokens_per_second)
        self.queue.append(figures.queue_length)

    def press(self, key: str, workers: int) -> None:
        """What a key does, with as many workers; nothing for a key that means nothing."""
        most = max(0, workers - self.page)
        steps = {"down": 1, "up": -1, "page down": self.page, "page up": -self.page}
        match key:
            case "s":
                self.order, self.first = (self.order + 1) % len(ORDERS), 0
            case "r":
                self.backwards, self.first = not self.backwards, 0
            case "p" | " ":
                self.paused = not self.paused
            case "home":
                self.first = 0
            case "end":
                self.first = most
            case _:
                self.first = min(max(0, self.first + steps.get(key, 0)), most)


def screen(figures: FleetFigures, view: FleetView, console: Console) -> Group:
    """A screen of the console's size: the head always, workers in what is left, and of what lies
    between as much as leaves some rows for workers.
    """
    height = console.size.height
    between = [_traffic(figures, view, console.size.width), _routers(figures, console.size.width)]
    while True:
        parts = [_head(figures, view, console.size.width), *between]
        left = height - sum(len(console.render_lines(each)) for each in parts) - 2
        if left >= LEAST_WORKERS or not between:
            break
        between.pop()
    view.page = max(1, left)
    view.press("", len(figures.workers))  # a screen that grew shows more
    rows = _sorted(figures.workers, view)[view.first : view.first + view.page]
    blank = "\n" * max(0, left - len(rows) - 1)
    return Group(
        *parts,
        _workers(rows, view, console.size.width),
        *((Text(blank),) if left > len(rows) else ()),
        _foot(figures, view),
    )


def page(figures: FleetFigures, view: FleetView, width: int) -> Group:
    """Everything, however long."""
    return Group(
        _head(figures, view, width),
        _traffic(figures, view, width),
        _routers(figures, width, most=len(figures.routers)),
        _workers(_sorted(figures.workers, view), view, width),
    )


def _sorted(workers: Iterable[WorkerFigures], view: FleetView) -> list[WorkerFigures]:
    order = ORDERS[view.order]
    by_name = sorted(workers, key=lambda each: each.name)
    return sorted(by_name, key=order.key, reverse=order.largest != view.backwards)  # type: ignore[arg-type]


# --- head and traffic -----------------------------------------------------------------------------


def _head(figures: FleetFigures, view: FleetView, width: int) -> Text:
    parts = [
        "tandem top",
        f"{datetime.now().astimezone():%H:%M:%S}",
        f"every {view.interval:g} s",
        *(f"v{each}" for each in figures.versions),
        view.address,
        *figures.models,
    ]
    text = _flowing(parts, width)
    text.stylize(TITLE)
    for router in figures.routers:
        if router.problem:
            text.append(f"\n{router.address}: no answer: {router.problem}", BAD)
    for address, problem in figures.silent_frontends.items():
        text.append(f"\n{address}: no answer: {problem}", BAD)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _flowing(parts: Iterable[str], width: int) -> Text:
    """Parts that are never broken, in as few lines as hold them."""
    lines = [""]
    for part in parts:
        joined = f"{lines[-1]}  {part}" if lines[-1] else part
        if len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(part)
    return Text("\n".join(filter(None, lines)))


def _traffic(figures: FleetFigures, view: FleetView, width: int) -> RenderableType:
    """Latencies left and rates right on a wide screen, else one below the other."""
    if width < 100:
        return Group(_latencies(figures.traffic), _rates(figures, view, width))
    grid = Table.grid(padding=(0, 4))
    grid.add_row(_latencies(figures.traffic), _rates(figures, view, width // 2))
    return grid


def _latencies(traffic: TrafficFigures | None) -> RenderableType:
    if traffic is None:
        return Text("TTFT, ITL: no frontend answers, or none is asked (--frontends)", FAINT)
    grid = Table.grid(padding=(0, 2))
    for name in ("ttft", "itl"):
        limit = traffic.slo.get(name)
        points = [
            Text(f"{point} {_time(value)}", POOR if limit and value > limit else "")
            for point, value in getattr(traffic, name).items()
        ]
        objective = [Text(f"SLO {_time(limit)}", FAINT)] if limit else []
        cells = points or [Text("no request yet", FAINT)]
        grid.add_row(Text(name.upper(), TITLE), *cells, *objective)
    return grid


def _rates(figures: FleetFigures, view: FleetView, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    room = max(4, min(KEEP, width - 22))
    grid.add_row(
        Text("tokens/s", TITLE),
        _number(figures.tokens_per_second),
        Text(sparkline(view.tokens, room), "cyan"),
    )
    grid.add_row(
        Text("queue", TITLE),
        _number(figures.queue_length),
        Text(sparkline(view.queue, room), "magenta"),
    )
    traffic = figures.traffic
    if traffic is None:
        return grid
    share = "-" if traffic.goodput_share is None else f"{traffic.goodput_share:.1%}"
    codes = ", ".join(f"{code} {count:.0f}" for code, count in traffic.errors.items())
    line = _flowing(
        (
            f"requests {traffic.requests_per_second:.1f}/s",
            f"goodput {traffic.goodput_per_second:.1f}/s ({share})",
            f"errors {traffic.errors_per_second:.1f}/s",
            *((codes,) if codes else ()),
        ),
        width,
    )
    if codes:
        line.stylize(POOR)
    return Group(line, grid)


def sparkline(values: Sequence[float] | deque[float], width: int) -> str:
    """The last values, a character each, as high as their share of the highest."""
    shown = list(values)[-width:]
    highest = max(shown, default=0.0) or 1.0
    return "".join(SPARKS[round(value / highest * (len(SPARKS) - 1))] for value in shown)


# --- tables ---------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class _Column(Generic[T]):
    """`least`: columns of a screen that is wide enough to show this one."""

    title: str
    cell: Callable[[T], RenderableType]
    least: int = 0
    right: bool = True


_WORKER_COLUMNS: tuple[_Column[WorkerFigures], ...] = (
    _Column("name", lambda each: Text(each.name), right=False),
    _Column("phase", lambda each: Text(each.phase), 76, right=False),
    _Column("slots", lambda each: _slots(each)),
    _Column("", lambda each: _bar(each.legs / each.slots if each.slots else None), 92),
    _Column("wait", lambda each: _number(each.waiting), 120),
    _Column("tok/s", lambda each: _number(each.tokens_per_second)),
    _Column("hits", lambda each: _share(each.hit_rate), 110),
    _Column("KV", lambda each: _share(each.kv_used_ratio), 60),
    _Column("", lambda each: _bar(each.kv_used_ratio), 92),
    _Column("address", lambda each: Text(each.address, FAINT), 140, right=False),
)


def _workers(workers: Sequence[WorkerFigures], view: FleetView, width: int) -> Table:
    columns = [each for each in _WORKER_COLUMNS if width >= each.least]
    order = ORDERS[view.order]
    table = _table()
    for column in columns:
        marked = column.title == order.name
        table.add_column(
            Text(f"{column.title}{_arrow(view) if marked else ''}"),
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=None if width >= 120 else 18,
            min_width=None if column.title else _BAR_WIDTH,
        )
    mark = _arrow(view) if order.name == "state" else ""
    table.add_column(Text(f"state{mark}"))  # it alone gives way on a narrow screen
    for worker in workers:
        table.add_row(*(column.cell(worker) for column in columns), _state(worker))
    return table


def _arrow(view: FleetView) -> str:
    return "▼" if ORDERS[view.order].largest != view.backwards else "▲"


def _state(worker: WorkerFigures) -> Text:
    style = GOOD if worker.state == "ok" else FAINT if worker.state in FINE else BAD
    text = Text(worker.state, style, no_wrap=True, overflow="ellipsis")
    if worker.reason:
        text.append(f" {worker.reason}", "" if worker.state not in FINE else POOR)
    return text


def _slots(worker: WorkerFigures) -> Text:
    return Text(f"{worker.legs}" if worker.slots is None else f"{worker.legs}/{worker.slots}")


def _bar(share: float | None) -> RenderableType:
    if share is None:
        return Text("")
    colour = "red" if share >= FULL_SHARE else "yellow" if share >= NEARLY_FULL_SHARE else "green"
    return Bar(1.0, 0.0, min(1.0, share), width=_BAR_WIDTH, color=colour, bgcolor="grey23")


def _routers(figures: FleetFigures, width: int, most: int = MOST_ROUTERS) -> RenderableType:
    """Routers that answer; those that do not stand in the head."""
    answering = [each for each in figures.routers if not each.problem]
    worst = sorted(answering, key=lambda each: (-each.queue_length, each.address))
    columns = [each for each in _ROUTER_COLUMNS if width >= each.least]
    table = _table()
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=True)
    for router in worst[:most]:
        table.add_row(*(column.cell(router) for column in columns))
    if len(worst) > most:
        table.add_row(Text(f"and {len(worst) - most} more", FAINT))
    return table if answering else Text("no router answers", BAD)


def _router_name(router: RouterFigures) -> Text:
    return Text(f"{router.address} (draining)" if router.draining else router.address)


def _queue(router: RouterFigures) -> Text:
    full = router.queue_limit and router.queue_length >= FULL_SHARE * router.queue_limit
    return Text(f"{router.queue_length}/{router.queue_limit}", BAD if full else "")


_ROUTER_COLUMNS: tuple[_Column[RouterFigures], ...] = (
    _Column("router", _router_name, right=False),
    _Column("queue", _queue),
    _Column("open", lambda each: _number(each.open_sequences)),
    _Column("pairs", lambda each: Text(f"{each.ready_pairs}", "" if each.ready_pairs else BAD)),
    _Column("ends/s", lambda each: Text(f"{each.ends_per_second:.1f}"), 60),
    _Column("err/s", lambda each: Text(f"{each.errors_per_second:.1f}"), 60),
    _Column("frontends", lambda each: _number(each.frontends), 76),
    _Column("retries", lambda each: _number(each.retries), 76),
)


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=FAINT)


def _foot(figures: FleetFigures, view: FleetView) -> Text:
    total = len(figures.workers)
    last = min(view.first + view.page, total)
    shown = f"workers {min(view.first + 1, total)}-{last} of {total}"
    text = Text(no_wrap=True, overflow="ellipsis")
    if view.paused:
        text.append("PAUSED  ", BAD)
    return text.append(f"{shown}  by {ORDERS[view.order].name}  {KEYS}", FAINT)


# --- cells ----------------------------------------------------------------------------------------


def _number(value: float | None) -> Text:
    return Text("-" if value is None else f"{value:,.0f}")


def _share(value: float | None) -> Text:
    return Text("-" if value is None else f"{value:.0%}")


def _time(seconds: float) -> str:
    """With the unit in which it is read at a glance."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1000:.3g} ms"
