"""What `tandem up` leaves in its run directory so that `tandem down`, in another process, ends
exactly that.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tandem.cli import processes
from tandem.cli.plan import StackOptions
from tandem.cli.processes import Identity
from tandem.cli.prometheus import PROMETHEUS
from tandem.cli.stack import Stack
from tandem.errors import StartError

FILE = "stack.json"


@dataclass(slots=True, frozen=True)
class RunState:
    """What `tandem up` writes down about a started stack, for `down` and `status`."""

    url: str
    engine: str
    owner: Identity | None
    """The `tandem up` that waits in the foreground; None when detached."""
    processes: dict[str, Identity]
    metrics: dict[str, str] = field(default_factory=dict)
    """Where each answers /metrics, "host:port"."""
    asked: dict[str, Any] = field(default_factory=dict)
    """What it was started with; empty: not known."""

    def running(self) -> list[str]:
        return [name for name, process in self.processes.items() if processes.alive(process)]

    def targets(self) -> dict[str, str]:
        """Metrics ports of Tandem's own processes."""
        return {name: each for name, each in self.metrics.items() if name != PROMETHEUS}


def of(stack: Stack, *, owner: Identity | None) -> RunState:
    members = {name: each.identity for name, each in stack.components.items()}
    ports = {name: each.launch.metrics for name, each in stack.components.items()}
    return RunState(
        stack.url, stack.options.engine, owner, members, ports, asked_for(stack.options)
    )


def asked_for(options: StackOptions) -> dict[str, Any]:
    """Options as a file keeps them."""
    asked: dict[str, Any] = json.loads(json.dumps(asdict(options), default=str))
    return asked


def write(run_dir: Path, state: RunState) -> None:
    """Raises StartError where it cannot be written."""
    path = run_dir / FILE
    partial = path.with_suffix(".partial")
    try:
        partial.write_text(json.dumps(asdict(state), indent=2), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise StartError(f"cannot write {path}: {error.strerror}") from error


def read(run_dir: Path) -> RunState | None:
    """The state of the started stack, or None if nothing was started. Raises StartError for a file
    that is not ours, or cannot be read.
    """
    path = run_dir / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunState)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StartError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise StartError(f"{path} is damaged ({error!r}): remove it") from error


def remove(run_dir: Path) -> None:
    """Raises StartError where that may not be."""
    path = run_dir / FILE
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StartError(f"cannot remove {path}: {error.strerror}") from error


def nothing_in(run_dir: Path) -> str:
    """What a user is told where nothing was started from a folder."""
    return (
        f"nothing is up: {run_dir.resolve()} holds no {FILE}. A stack is found from the folder in"
        " which it was started, or with the --run-dir that it was given."
    )
