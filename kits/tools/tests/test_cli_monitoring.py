"""`tandem monitoring export`: files that a Prometheus and a Grafana read as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tandem import cli
from tandem.cli import run_state
from tandem.cli.run_state import RunState
from tandem_tools.monitoring import export

PLACEHOLDER = re.compile(r"@[A-Z_]+@")


def exported(to: Path, *flags: str, run_dir: Path | None = None) -> int:
    return cli.main(
        ["monitoring", "export", f"--to={to}", f"--run-dir={run_dir or to / 'none'}", *flags]
    )


def groups(to: Path) -> set[str]:
    return {
        group["name"]
        for path in (to / "rules").glob("*.yaml")
        for group in yaml.safe_load(path.read_text())["groups"]
    }


@pytest.mark.promise("S5-752")
def test_no_placeholder_is_left_and_every_rule_is_of_the_release(tmp_path: Path) -> None:
    assert exported(tmp_path, "--job=tandem-lab", "--namespace=desk", "--ttft-objective=0.95") == 0
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert {"rules/alerts.yaml", "rules/recording.yaml", "dashboards/overview.json"} < names
    for path in tmp_path.rglob("*.*"):
        assert not PLACEHOLDER.search(path.read_text()), path.name
    alerts = (tmp_path / "rules" / "alerts.yaml").read_text()
    assert 'job="tandem-lab",namespace="desk"' in alerts
    assert "1 - 0.95" in alerts
    assert "/blob/main/docs/runbooks/tandem-no-ready-decode.md" in alerts
    configuration = yaml.safe_load((tmp_path / "prometheus.yaml").read_text())
    assert configuration["rule_files"] == ["rules/alerts.yaml", "rules/recording.yaml"]
    assert [each["job_name"] for each in configuration["scrape_configs"]] == ["tandem-lab"]
    (provider,) = yaml.safe_load((tmp_path / "grafana.yaml").read_text())["providers"]
    assert Path(provider["options"]["path"], "overview.json").is_file()


def test_the_stack_of_this_run_directory_is_watched_by_the_names_of_its_components(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ports = {"router": "127.0.0.1:1", "decode_worker-0": "127.0.0.1:2"}
    run_state.write(tmp_path, RunState("http://127.0.0.1:3", "sim", None, {}, ports))
    assert exported(tmp_path / "out", run_dir=tmp_path) == 0
    told = json.loads((tmp_path / "out" / "targets.json").read_text())
    assert told == [
        {"targets": [address], "labels": {"namespace": "default", "pod": name}}
        for name, address in ports.items()
    ]
    assert "2 targets" in capsys.readouterr().out
    assert exported(tmp_path / "out", "--targets=a=10.0.0.1:8001, b=[::1]:7001") == 0
    told = json.loads((tmp_path / "out" / "targets.json").read_text())
    assert [each["targets"] for each in told] == [["10.0.0.1:8001"], ["[::1]:7001"]]
    assert exported(tmp_path / "out") == 0
    assert "nothing is up" in capsys.readouterr().out


def test_alerts_for_what_a_release_may_lack_are_asked_for(tmp_path: Path) -> None:
    assert exported(tmp_path) == 0
    plain = groups(tmp_path)
    assert exported(tmp_path, "--expect", "rdma", "certificates") == 0
    assert groups(tmp_path) - plain == set(export.EXPECTED.values())
    assert len(plain) > 8


@pytest.mark.promise("S5-753")
@pytest.mark.parametrize(
    "flag",
    [
        '--job=a"} or vector(1)',
        "--job=",
        "--namespace=a\nb",
        "--runbook-url=javascript:alert(1)",
        "--runbook-url=https://a'\n- x",
        "--targets=a",
        "--targets=a=b",
        "--targets=a=b:1,a=c:1",
    ],
)
def test_a_value_that_would_end_a_rule_is_refused_and_nothing_is_written(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exported(tmp_path / "out", flag) == 2
    assert flag.partition("=")[0] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("share", ["0", "1", "nan", "99"])
def test_an_objective_is_a_share(share: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        exported(tmp_path, f"--itl-objective={share}")


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("a file")
    assert exported(tmp_path / "out", run_dir=tmp_path) == 2
    assert f"cannot write {tmp_path / 'out'}" in capsys.readouterr().err
