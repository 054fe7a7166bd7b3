"""All generated files, as text."""

from __future__ import annotations

import json
from pathlib import Path

from monitoring import alerts, dashboard, recording, rules
from monitoring.dashboards import DASHBOARDS
from monitoring.definitions import Catalogue
from monitoring.registries import families

OUTPUT = Path(__file__).resolve().parent.parent / "helm" / "tandem"


def files() -> dict[Path, str]:
    """The generated files, by path. Raises UnknownMetricError and UnknownLabelError."""
    catalogue = Catalogue(families())
    made = {
        OUTPUT / "rules" / "recording.yaml": rules.write(recording.GROUPS, catalogue),
        OUTPUT / "rules" / "alerts.yaml": rules.write(alerts.GROUPS, catalogue),
    }
    for each in DASHBOARDS:
        document = dashboard.render(each, catalogue)
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        made[OUTPUT / "dashboards" / f"{each.name}.json"] = text
    return made
