"""What the chart renders to is the same with each Helm that the suite has: nulls and defaults are
merged by rules that its versions do not share.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import chart_renders
import pytest
import yaml
from kube import CHART, HELM_3, HELMS, run

NUMBERS: dict[str, Any] = {each: {"replicas": None} for each in ("router", "prefill", "decode")}
VALUES = {
    "numbers-left-to-others": NUMBERS,
    **{s: chart_renders.values(s) for s in chart_renders.SETS},
}


@pytest.mark.promise("S5-291", "S5-314")
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("helm", HELMS)
def test_each_helm_renders_the_same(helm: str, name: str, tmp_path: Path) -> None:
    """Also as the tests of the chart, whose Helm is a library, have it."""
    if not HELMS[helm]:
        pytest.skip(f"set {HELM_3} to the program of a Helm 3")
    given = tmp_path / "values.yaml"
    given.write_text(yaml.safe_dump(json.loads(json.dumps(VALUES[name]))))
    where = (chart_renders.RELEASE, str(CHART), "--namespace", chart_renders.NAMESPACE)
    text = run(HELMS[helm], "template", *where, "--values", str(given))
    rendered = [each for each in yaml.safe_load_all(text) if each]
    expected = chart_renders.manifests(VALUES[name])
    assert sorted(map(json.dumps, rendered)) == sorted(map(json.dumps, expected))
