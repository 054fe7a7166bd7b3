"""`tandem monitoring export`: dashboards and rules for a Prometheus and a Grafana without the
chart.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tandem.cli import options, run_state, worker_counts
from tandem.cli.commands import Command, adding
from tandem.cli.console import Console
from tandem.errors import ConfigError
from tandem_tools.monitoring import export
from tandem_tools.monitoring.release import MonitoredRelease

_WHOLE = MonitoredRelease()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    add("action", choices=("export",), help="Write files for a Prometheus and a Grafana.")
    add("--to DIR", Path, required=True, help="Folder for the files.")
    add("--job", default=_WHOLE.job, help="Label `job` of the targets. [%(default)s]")
    add("--namespace", default=_WHOLE.namespace, help="Label `namespace` of them. [%(default)s]")
    add(
        "--targets NAME=HOST:PORT,...",
        default="",
        help="Metrics ports of all components, each with a name for it. [those of `tandem up`]",
    )
    add(
        "--runbook-url URL",
        default=_WHOLE.runbook_url,
        help="Where alerts find their runbooks. [%(default)s]",
    )
    for name, what in (
        ("availability", "must not fail by the service's fault"),
        ("ttft", "meet the objective of TTFT"),
        ("itl", "meet the objective of ITL"),
    ):
        add(
            f"--{name}-objective SHARE",
            options.share,
            default=getattr(_WHOLE, f"{name}_objective"),
            help=f"Share of requests that {what}. [%(default)s]",
        )
    add(
        "--start-seconds N",
        options.positive,
        default=_WHOLE.start_seconds,
        help="Time that a worker may take to start. [%(default)s]",
    )
    add(
        "--expect",
        nargs="+",
        choices=export.EXPECTED,
        default=[],
        help="What the release has, to be warned where it fails: KV over RDMA, certificates that "
        "`tandem certificates` keeps.",
    )
    options.add_run_dir(parser)


def monitoring(arguments: argparse.Namespace, console: Console) -> int:
    """Raises ConfigError for what would be no valid rules, StartError where nothing is written."""
    release = MonitoredRelease(
        namespace=arguments.namespace,
        job=arguments.job,
        start_seconds=arguments.start_seconds,
        runbook_url=arguments.runbook_url.rstrip("/"),
        availability_objective=arguments.availability_objective,
        ttft_objective=arguments.ttft_objective,
        itl_objective=arguments.itl_objective,
    )
    targets = _targets(arguments)
    to: Path = arguments.to
    written = export.export(to, release, targets, expected=arguments.expect)
    console.result({"files": written, "targets": targets})
    console.done(f"{len(written)} files in {to}, {len(targets)} targets")
    if not targets:
        console.line(f"nothing is up: run this again after `tandem up`, or write {export.TARGETS}")
    console.line(f"Prometheus: prometheus --config.file={to / export.PROMETHEUS}")
    console.line(f"Grafana: copy {to / export.GRAFANA} to its provisioning/dashboards")
    return 0


def _targets(arguments: argparse.Namespace) -> dict[str, str]:
    """Metrics ports by name. Raises ConfigError."""
    if not arguments.targets:
        state = run_state.read(arguments.run_dir)
        return {} if state is None else state.targets()
    found: dict[str, str] = {}
    for part in filter(None, map(str.strip, arguments.targets.split(","))):
        name, equals, address = part.partition("=")
        if (
            not (name and equals)
            or name in found
            or not worker_counts.targets(address, "--targets")
        ):
            raise ConfigError(f"--targets {part!r}: write it NAME=HOST:PORT, each name once")
        found[name] = address
    return found


COMMAND = Command(add_arguments, monitoring, example="tandem monitoring export --to monitoring")
