"""What `tandem monitoring export` writes, as Prometheus' own tool reads it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from watching import Tools

from tandem_tools.monitoring.export import EXPECTED, export
from tandem_tools.monitoring.release import MonitoredRelease


@pytest.mark.promise("S5-752")
@pytest.mark.parametrize("expected", [(), tuple(EXPECTED)], ids=["plain", "everything"])
def test_promtool_accepts_the_configuration_with_all_its_rules(
    expected: tuple[str, ...], tools: Tools, tmp_path: Path
) -> None:
    release = MonitoredRelease(job="lab.1:a", namespace="desk", itl_objective=0.5)
    export(tmp_path, release, {"router": "127.0.0.1:7001"}, expected=expected)
    done = subprocess.run(
        [str(tools.promtool), "check", "config", "prometheus.yaml"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "2 rule files found" in said
    assert "FAILED" not in said
