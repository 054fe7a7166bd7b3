"""Draws what scale.py and scale_fleet.py found, for docs/scaling.md. Needs matplotlib, as nothing
else here does: `pip install matplotlib`.

    python benchmarks/scale.py --json cost.json
    python benchmarks/scale_fleet.py --routers 1 2 4 8 16 --json fleet.json
    python benchmarks/scale_plots.py --cost cost.json --fleet fleet.json --into docs/scaling
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

COST_ROWS = (
    "a request: submit to both legs started",
    "of that the choice of its pair",
    "a load report, nothing waits",
    "a worker comes up",
)
LOAD_ROWS = ("most loaded worker", "most loaded after a death", "least loaded worker")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cost", type=Path, required=True)
    parser.add_argument(
        "--before", type=Path, help="scale.py's of an older commit, drawn in dashes"
    )
    parser.add_argument("--fleet", type=Path, required=True)
    parser.add_argument("--into", type=Path, required=True)
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    _draw_cost(options)
    _draw_fleet(options)


def _draw_cost(options: argparse.Namespace) -> None:
    """Microseconds by the number of workers."""
    figure, axes = _axes("workers", "CPU microseconds in the router's core")
    for place, name in enumerate(COST_ROWS):
        color = f"C{place}"
        axes.plot(*_points(options.cost, name), "o-", color=color, label=name)
        if options.before:
            axes.plot(*_points(options.before, name), "x--", color=color, alpha=0.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _save(figure, axes, options.into / "cost.svg")


def _draw_fleet(options: argparse.Namespace) -> None:
    """How even the load of decode workers is, by the number of routers."""
    figure, axes = _axes("routers", "legs of a decode worker beside the mean")
    for name in LOAD_ROWS:
        routers, values = _points(options.fleet, name)
        shown = [(x, y) for x, y in zip(routers, values, strict=True) if y]
        axes.plot(*zip(*shown, strict=True), "o-", label=name)
    axes.set_xscale("log", base=2)
    _save(figure, axes, options.into / "balance.svg")


def _points(path: Path, row: str) -> tuple[list[int], list[float]]:
    table: dict[str, dict[str, float]] = json.loads(path.read_text(encoding="utf-8"))
    return [int(size) for size in table], [table[size][row] for size in table]


def _axes(x: str, y: str) -> tuple[Any, Any]:
    import matplotlib  # for this alone

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tandem"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.0, 4.2), layout="constrained")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, which="both", alpha=0.2)
    return figure, axes


def _save(figure: Any, axes: Any, path: Path) -> None:
    ticks = sorted({int(x) for line in axes.lines for x in line.get_xdata()})
    axes.set_xticks(ticks, labels=[f"{each:,}" for each in ticks])
    axes.minorticks_off()
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
