"""Draw the Grafana dashboards from a Prometheus' data, for the documentation.

    python scripts/draw_dashboards.py --prometheus http://127.0.0.1:9090 --out docs/monitoring

Every panel shows its own query's answer, placed as Grafana places it; only the strokes are
matplotlib's. Needs matplotlib, which is none of Tandem's dependencies.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.parse
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

DASHBOARDS = Path(__file__).resolve().parent.parent / "helm" / "tandem" / "dashboards"
POINTS = 240
COLUMNS, COLUMN_INCHES, ROW_INCHES = 24, 0.66, 0.36
INK, FAINT, GRID = "#24292e", "#6a737d", "#e6e8eb"
COLORS = ("#3274d9", "#e0752d", "#299c46", "#a352cc", "#c4162a", "#1f9e9e", "#b58900", "#7a5195")
MAX_LEGEND = 8
ROOM = {"stat": (0.2, 0.9), "table": (0.2, 0.9), "timeseries": (2.2, 1.1), "heatmap": (0.9, 1.1)}
"""Below and above a panel's axes, in rows: for ticks and legend, and for the title."""
plt.rcParams.update({"font.size": 8, "font.family": "DejaVu Sans", "text.color": INK})


class Source:
    """A Prometheus, asked about one stretch of time."""

    def __init__(self, url: str, minutes: float, interval: str) -> None:
        self.end = time.time()
        self.start = self.end - 60 * minutes
        self._url, self._interval = url, interval

    def range(self, expression: str) -> list[dict[str, Any]]:
        step = max(1, round((self.end - self.start) / POINTS))
        return self._ask("query_range", expression, start=self.start, end=self.end, step=step)

    def now(self, expression: str) -> list[dict[str, Any]]:
        return self._ask("query", expression, time=self.end)

    def _ask(self, path: str, expression: str, **more: float) -> list[dict[str, Any]]:
        expression = expression.replace("$__rate_interval", self._interval)
        for variable in ("namespace", "job", "pod", "model"):
            expression = expression.replace(f"${variable}", ".*")
        query = urllib.parse.urlencode({"query": expression} | more)
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{query}", timeout=30) as response:
            result: list[dict[str, Any]] = json.load(response)["data"]["result"]
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prometheus", required=True, help="address of Prometheus")
    parser.add_argument(
        "--minutes", type=float, default=10, help="range of time to draw, up to now"
    )
    parser.add_argument("--interval", default="20s", help="for $__rate_interval")
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    source = Source(options.prometheus, options.minutes, options.interval)
    for path in sorted(DASHBOARDS.glob("*.json")):
        figure = draw(json.loads(path.read_text()), source)
        figure.savefig(options.out / f"{path.stem}.png", dpi=80)
        plt.close(figure)


def draw(dashboard: dict[str, Any], source: Source) -> Figure:
    panels = dashboard["panels"]
    rows = 1 + max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in panels)
    figure = plt.figure(figsize=(COLUMNS * COLUMN_INCHES, rows * ROW_INCHES), facecolor="white")
    figure.text(0.008, 1 - 0.55 / rows, dashboard["title"], fontsize=13, weight="bold", va="center")
    for panel in panels:
        place = panel["gridPos"]
        left, width = place["x"] / COLUMNS, place["w"] / COLUMNS
        bottom = 1 - (1 + place["y"] + place["h"]) / rows
        height = place["h"] / rows
        if panel["type"] == "row":
            figure.text(
                left + 0.008, bottom + height / 2, panel["title"], fontsize=10, weight="bold"
            )
            continue
        gap = 0.004
        size = (width - gap, height - 0.2 / rows)
        frame = Rectangle((left + gap / 2, bottom + 0.1 / rows), *size, fill=False, edgecolor=GRID)
        figure.add_artist(frame)
        below, above = ROOM[panel["type"]]
        box = (
            left + 0.9 / COLUMNS,
            bottom + below / rows,
            width - 1.2 / COLUMNS,
            height - (below + above) / rows,
        )
        figure.text(
            left + 0.008, bottom + height - 0.5 / rows, panel["title"], fontsize=8.5, va="center"
        )
        axes = figure.add_axes(box)
        KINDS[panel["type"]](axes, panel, source)
    return figure


def _timeseries(axes: Axes, panel: dict[str, Any], source: Source) -> None:
    curves = []
    for target in panel["targets"]:
        for series in source.range(target["expr"]):
            points = [(date2num(_date(at)), float(text)) for at, text in series["values"]]
            curves.append((_legend(target["legendFormat"], series["metric"]), points))
    stacked = panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
    if stacked and curves:
        _stack(axes, curves)
    else:
        for index, (name, points) in enumerate(curves):
            axes.plot(*zip(*points, strict=True), color=_color(index), linewidth=1.1, label=name)
    _frame(axes, panel, source)
    if not any(points for _, points in curves):
        _say(axes, "no data")
    elif any(name for name, _ in curves):
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(
            handles[:MAX_LEGEND],
            labels[:MAX_LEGEND],
            loc="upper left",
            bbox_to_anchor=(-0.02, -0.12),
            ncols=4 if panel["gridPos"]["w"] > 8 else 2,
            frameon=False,
            fontsize=6.5,
            handlelength=1.2,
            columnspacing=1.0,
            labelspacing=0.25,
        )


def _stack(axes: Axes, curves: list[tuple[str, list[tuple[float, float]]]]) -> None:
    times = sorted({at for _, points in curves for at, _ in points})
    values = [[dict(points).get(at, 0.0) for at in times] for _, points in curves]
    names = [name for name, _ in curves]
    colors = [_color(index) for index in range(len(curves))]
    axes.stackplot(times, *values, labels=names, colors=colors, alpha=0.75)


def _heatmap(axes: Axes, panel: dict[str, Any], source: Source) -> None:
    series = source.range(panel["targets"][0]["expr"])
    series.sort(key=lambda each: float(each["metric"]["le"]))
    times = sorted({at for each in series for at, _ in each["values"]})
    below = [0.0] * len(times)
    grid = []
    for each in series:
        counts = dict(each["values"])
        upto = [float(counts.get(at, 0)) for at in times]
        grid.append([max(0.0, now - under) for now, under in zip(upto, below, strict=True)])
        below = upto
    _frame(axes, panel, source)
    if not times:
        _say(axes, "no data")
        return
    edges = [date2num(_date(at)) for at in (*times, times[-1] + (times[-1] - times[-2]))]
    shown = [[count or float("nan") for count in row] for row in grid]
    axes.pcolormesh(edges, range(len(grid) + 1), shown, cmap="Oranges", vmin=0)
    names = [each["metric"]["le"] for each in series]
    places = range(0, len(names), 2)
    axes.set_yticks([place + 1 for place in places], [_seconds(names[place]) for place in places])
    axes.grid(False)


def _stat(axes: Axes, panel: dict[str, Any], source: Source) -> None:
    axes.axis("off")
    found = source.now(panel["targets"][0]["expr"])
    text = _amount(float(found[0]["value"][1]), _unit(panel)) if found else "no data"
    color = _threshold(panel, float(found[0]["value"][1])) if found else FAINT
    axes.text(0.5, 0.5, text, fontsize=19, weight="bold", color=color, ha="center", va="center")


def _table(axes: Axes, panel: dict[str, Any], source: Source) -> None:
    axes.axis("off")
    found = source.now(panel["targets"][0]["expr"])
    if not found:
        _say(axes, "no data")
        return
    names = sorted(found[0]["metric"])
    rows = [
        [
            *(each["metric"].get(name, "") for name in names),
            _amount(float(each["value"][1]), _unit(panel)),
        ]
        for each in found
    ]
    table = axes.table(
        rows[:7], colLabels=[*names, "value"], loc="upper left", cellLoc="left", edges="horizontal"
    )
    table.auto_set_font_size(False)
    table.set_fontsize(7)


KINDS = {"timeseries": _timeseries, "heatmap": _heatmap, "stat": _stat, "table": _table}


def _frame(axes: Axes, panel: dict[str, Any], source: Source) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    axes.set_xlim(date2num(_date(source.start)), date2num(_date(source.end)))
    if panel["type"] == "timeseries":
        top = axes.get_ylim()[1]
        axes.set_ylim(defaults.get("min"), defaults.get("max", None if top > 0 else 1))
        unit = _unit(panel)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _amount(value, unit)))
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(labelsize=6.5, colors=FAINT, length=0)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=FAINT)


def _legend(pattern: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        pattern = pattern.replace(f"{{{{{name}}}}}", value)
    return "" if pattern == "__auto" else pattern


def _unit(panel: dict[str, Any]) -> str:
    unit: str = panel["fieldConfig"]["defaults"]["unit"]
    return unit


def _amount(value: float, unit: str) -> str:
    if value != value:
        return "no requests"
    if unit == "s":
        return _seconds(value)
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit in ("Bps", "bytes"):
        for prefix in ("", "k", "M", "G"):
            if abs(value) < 1000 or prefix == "G":
                return f"{value:.3g} {prefix}B" + ("/s" if unit == "Bps" else "")
            value /= 1000
    per = {"reqps": " req/s", "cps": "/s"}.get(unit, "")
    return f"{value:.4g}{per}" if abs(value) < 10_000 else f"{value / 1000:.4g}k{per}"


def _seconds(value: float | str) -> str:
    seconds = float(value)
    if seconds == float("inf"):
        return "more"
    if seconds and abs(seconds) < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) < 1 else f"{seconds:.3g} s"


def _threshold(panel: dict[str, Any], value: float) -> str:
    color = "green"
    for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]:
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return {"green": "#299c46", "orange": "#e0752d", "red": "#c4162a"}[color]


def _date(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _color(index: int) -> str:
    return COLORS[index % len(COLORS)]


if __name__ == "__main__":
    main()
