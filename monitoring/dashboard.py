"""Dashboards as they are declared, and the JSON that Grafana reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from monitoring import panels
from monitoring.definitions import Catalogue
from monitoring.expressions import Expressions
from monitoring.panels import DATASOURCE, Panel

SCOPE = {label: f'{label}=~"${label}"' for label in ("namespace", "job", "pod")}
SCHEMA_VERSION = 41
"""The schema of Grafana 12, which older ones read too."""
_COLUMNS = 24


class PanelRow:
    """A title, and the panels that are shown below it."""

    def __init__(self, title: str, *panels: Panel) -> None:
        self.title = title
        self.panels = panels


@dataclass(slots=True, frozen=True, kw_only=True)
class Dashboard:
    """`name` makes the file's name and the uid, which links keep for ever."""

    name: str
    title: str
    description: str
    rows: Sequence[PanelRow]

    @property
    def uid(self) -> str:
        return f"tandem-{self.name}"


def render(dashboard: Dashboard, catalogue: Catalogue) -> dict[str, Any]:
    """The dashboard's JSON. Raises UnknownMetricError and UnknownLabelError."""
    return {
        "uid": dashboard.uid,
        "title": f"Tandem / {dashboard.title}",
        "description": dashboard.description,
        "tags": ["tandem"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "preload": False,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "weekStart": "",
        "annotations": {"list": [_BUILT_IN_ANNOTATION, _alert_annotation()]},
        "links": [_LINKS],
        "templating": {"list": _variables()},
        "panels": list(_panels(dashboard, Expressions(catalogue, SCOPE))),
    }


def _panels(dashboard: Dashboard, expressions: Expressions) -> Iterator[dict[str, Any]]:
    """Rows below each other, panels from left to right and then below."""
    number = 0
    top = 0
    for row in dashboard.rows:
        number += 1
        yield _row(row, number, top)
        top += 1
        left, tallest = 0, 0
        for panel in row.panels:
            if left + panel.width > _COLUMNS:
                left, top, tallest = 0, top + tallest, 0
            number += 1
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            yield panels.render(panel, number, place, expressions)
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest


def _row(row: PanelRow, number: int, top: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "row",
        "title": row.title,
        "collapsed": False,
        "gridPos": {"x": 0, "y": top, "w": _COLUMNS, "h": 1},
        "panels": [],
    }


def _variables() -> list[dict[str, Any]]:
    """One narrows the next. `All` also matches series that have no such label: pods outside
    Kubernetes, and releases in which nothing names a model.
    """
    models = "tandem_(frontend|worker)_served_model_info"
    place = 'namespace=~"$namespace"'
    release = f'__name__=~"tandem_build_info|{models}",{place},model=~"$model"'
    return [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "hide": 0,
            "includeAll": False,
            "multi": False,
            "options": [],
            "refresh": 1,
            "regex": "",
            "skipUrlSync": False,
        },
        _variable("namespace", "Namespace", "label_values(tandem_build_info, namespace)", ".*"),
        _variable("model", "Model", f'label_values({{__name__=~"{models}",{place}}}, model)', ".*"),
        _variable("job", "Release", f"label_values({{{release}}}, job)", ""),
        _variable(
            "pod",
            "Pod",
            'label_values(tandem_build_info{namespace=~"$namespace",job=~"$job"}, pod)',
            ".*",
        ),
    ]


def _variable(name: str, label: str, query: str, all_value: str) -> dict[str, Any]:
    variable = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"{name}-variable"},
        "current": {"text": ["All"], "value": ["$__all"]},
        "hide": 0,
        "includeAll": True,
        "multi": True,
        "options": [],
        "refresh": 2,
        "regex": "",
        "skipUrlSync": False,
        "sort": 1,
    }
    return variable | ({"allValue": all_value} if all_value else {})


_BUILT_IN_ANNOTATION = {
    "builtIn": 1,
    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
    "enable": True,
    "hide": True,
    "iconColor": "rgba(0, 211, 255, 1)",
    "name": "Annotations & Alerts",
    "type": "dashboard",
}


def _alert_annotation() -> dict[str, Any]:
    return {
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "red",
        "name": "Firing alerts",
        "expr": (
            'ALERTS{alertname=~"Tandem.*",alertstate="firing",namespace=~"$namespace",job=~"$job"}'
        ),
        "step": "60s",
        "titleFormat": "{{alertname}}",
        "textFormat": "{{severity}}",
    }


_LINKS = {
    "type": "dashboards",
    "title": "Tandem",
    "tags": ["tandem"],
    "asDropdown": True,
    "icon": "external link",
    "includeVars": True,
    "keepTime": True,
    "targetBlank": False,
    "tooltip": "",
    "url": "",
}
