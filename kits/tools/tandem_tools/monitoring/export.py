"""Dashboards, rules and a configuration for a Prometheus and a Grafana that are there, as files."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from importlib.resources import files
from pathlib import Path

import yaml

from tandem.errors import StartError
from tandem_tools.monitoring.release import MonitoredRelease, fill

EXPECTED = {"rdma": "tandem.rdma", "certificates": "tandem.certificates"}
"""What a release may have -> the group of alerts for its want, which would fire elsewhere."""
SCRAPE_SECONDS = 15
PROMETHEUS, TARGETS, GRAFANA = "prometheus.yaml", "targets.json", "grafana.yaml"
_GROUP = re.compile(r"^(?=- name: )", re.MULTILINE)


def export(
    to: Path,
    release: MonitoredRelease,
    targets: Mapping[str, str],
    *,
    expected: Collection[str] = (),
) -> list[Path]:
    """Write all files, each whole or not at all, and say which.

    `targets`: metrics ports, "host:port", by the name of their pod. `expected`: of EXPECTED.
    Raises StartError where a file cannot be written.
    """
    left_out = {group for name, group in EXPECTED.items() if name not in expected}
    packaged = files(__package__)
    made = {
        f"dashboards/{each.name}": each.read_text("utf-8")
        for each in packaged.joinpath("dashboards").iterdir()
    }
    for each in packaged.joinpath("rules").iterdir():
        made[f"rules/{each.name}"] = _kept(fill(each.read_text("utf-8"), release), left_out)
    rules = sorted(name for name in made if name.startswith("rules/"))
    made[TARGETS] = json.dumps(_targets(release, targets), indent=2) + "\n"
    made[PROMETHEUS] = yaml.safe_dump(_prometheus(release, rules), sort_keys=False)
    made[GRAFANA] = yaml.safe_dump(_grafana(to.absolute() / "dashboards"), sort_keys=False)
    try:
        for name, text in made.items():
            _write(to / name, text)
    except OSError as error:
        raise StartError(f"cannot write {error.filename or to}: {error.strerror}") from error
    return sorted(to / name for name in made)


def _kept(rules: str, left_out: Collection[str]) -> str:
    head, *groups = _GROUP.split(rules)
    names = {group: group.partition("\n")[0].removeprefix("- name: ") for group in groups}
    return head + "".join(group for group in groups if names[group] not in left_out)


def _targets(release: MonitoredRelease, targets: Mapping[str, str]) -> list[dict[str, object]]:
    return [
        {"targets": [address], "labels": {"namespace": release.namespace, "pod": name}}
        for name, address in targets.items()
    ]


def _prometheus(release: MonitoredRelease, rules: list[str]) -> dict[str, object]:
    """Paths are relative to the file. Targets are read again when their file changes."""
    every = f"{SCRAPE_SECONDS}s"
    job = {"job_name": release.job, "file_sd_configs": [{"files": [TARGETS]}]}
    return {
        "global": {"scrape_interval": every, "evaluation_interval": every},
        "rule_files": rules,
        "scrape_configs": [job],
    }


def _grafana(dashboards: Path) -> dict[str, object]:
    """A provider, for Grafana's folder provisioning/dashboards."""
    provider = {
        "name": "tandem",
        "folder": "Tandem",
        "type": "file",
        "options": {"path": str(dashboards)},
    }
    return {"apiVersion": 1, "providers": [provider]}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
