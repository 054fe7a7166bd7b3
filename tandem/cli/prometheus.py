"""Prometheus as one more process of a stack: `tandem up --monitoring`."""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping
from pathlib import Path

from tandem import cli
from tandem.cli.console import Console
from tandem.errors import StartError

PROMETHEUS = "prometheus"
"""The program, the process of the stack, and the folder in the run directory."""
RETENTION_TIME, RETENTION_SIZE = "15d", "1GB"
"""Prometheus removes its oldest data beyond either."""


def program() -> str:
    """Raises StartError where PATH has no Prometheus."""
    if found := shutil.which(PROMETHEUS):
        return found
    raise StartError(
        f"--monitoring starts the program `{PROMETHEUS}`, and PATH has none: apt-get install"
        f" {PROMETHEUS}, or https://prometheus.io/download"
    )


def flags(folder: Path, address: str) -> tuple[str, ...]:
    """What Prometheus is told: the configuration and the data in the folder, and an address."""
    return (
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--storage.tsdb.retention.time={RETENTION_TIME}",
        f"--storage.tsdb.retention.size={RETENTION_SIZE}",
        f"--web.listen-address={address}",
    )


def ready_path(name: str) -> str:
    """Where a process of a stack says whether it is ready."""
    return "/-/ready" if name == PROMETHEUS else "/ready"


def write_configuration(folder: Path, targets: Mapping[str, str]) -> None:
    """Export rules and scrape targets as `tandem monitoring export` does. `targets`: metrics ports
    by the names of components. Raises StartError: no kit exports, or a file cannot be written.
    """
    listed = ",".join(f"{name}={address}" for name, address in targets.items())
    asked = cli.parsed(["monitoring", "export", f"--to={folder}", f"--targets={listed}"])
    asked.run(asked, Console(io.StringIO()))
