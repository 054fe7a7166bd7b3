"""Panels as they are declared, and the JSON that Grafana reads. Grafana 10 to 12 take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from monitoring.expressions import Expressions, Scoped

Kind = Literal["timeseries", "stat", "heatmap", "table"]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
PLUGIN_VERSION = "12.0.0"


@dataclass(slots=True, frozen=True)
class Query:
    """One expression, without its scope. `legend` names labels as `{{label}}`."""

    expression: str
    legend: str = ""


@dataclass(slots=True, frozen=True, kw_only=True)
class Panel:
    """`unit` is Grafana's name for it. `note` comes before the metrics' own help texts."""

    title: str
    queries: Sequence[Query]
    kind: Kind = "timeseries"
    unit: str = "short"
    width: int = 8
    height: int = 8
    note: str = ""
    minimum: float | None = 0
    maximum: float | None = None
    stacked: bool = False
    thresholds: Sequence[tuple[float, str]] = ()
    """From each value on, this colour."""
    exemplars: bool = False
    """Points that lead to a trace, where traces are exported."""


def render(panel: Panel, number: int, place: dict[str, int], expressions: Expressions) -> Any:
    """The panel's JSON. Raises UnknownMetricError and UnknownLabelError."""
    scoped = [expressions.scoped(each.expression, legend=each.legend) for each in panel.queries]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": _description(panel, scoped, expressions),
        "datasource": DATASOURCE,
        "gridPos": place,
        "pluginVersion": PLUGIN_VERSION,
        "targets": [
            _target(panel, query, each, index)
            for index, (query, each) in enumerate(zip(panel.queries, scoped, strict=True))
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
        "transparent": False,
    }


def _description(panel: Panel, scoped: Sequence[Scoped], expressions: Expressions) -> str:
    """The help texts of the panel's metrics, as its description."""
    helps = {name: expressions.catalogue.help(name) for each in scoped for name in each.series}
    lines = [f"{name}: {text}" for name, text in helps.items() if text]
    return "\n\n".join(filter(None, (panel.note, *lines)))


def _target(panel: Panel, query: Query, scoped: Scoped, index: int) -> dict[str, Any]:
    now = panel.kind in ("stat", "table")
    return {
        "refId": chr(ord("A") + index),
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": scoped.text,
        "legendFormat": query.legend or "__auto",
        "format": {"heatmap": "heatmap", "table": "table"}.get(panel.kind, "time_series"),
        "exemplar": panel.exemplars,
        "instant": now,
        "range": not now,
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = [(None, "green"), *panel.thresholds]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
        "thresholds": {
            "mode": "absolute",
            "steps": [{"color": color, "value": value} for value, color in steps],
        },
        "mappings": [],
        "custom": _looks(panel),
    }
    if panel.minimum is not None:
        defaults["min"] = panel.minimum
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    return defaults


def _lines(panel: Panel) -> dict[str, Any]:
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 25 if panel.stacked else 8,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "line" if panel.thresholds else "off"},
    }


def _stat(panel: Panel) -> dict[str, Any]:
    return {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "value_and_name" if any(each.legend for each in panel.queries) else "value",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }


def _heatmap(panel: Panel) -> dict[str, Any]:
    return {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "mode": "scheme",
            "scheme": "Oranges",
            "exponent": 0.5,
            "fill": "dark-orange",
            "reverse": False,
            "steps": 64,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": panel.unit},
    }


def _options(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case "timeseries":
            legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
        case "stat":
            return _stat(panel)
        case "heatmap":
            return _heatmap(panel)
        case "table":
            return {"showHeader": True, "cellHeight": "sm", "frameIndex": 0}


def _looks(panel: Panel) -> dict[str, Any]:
    if panel.kind == "table":
        return {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False}
    return _lines(panel) if panel.kind == "timeseries" else {}
