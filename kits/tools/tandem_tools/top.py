"""`tandem top`: the fleet, the queues and slow workers, live in a terminal."""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from tandem.cli import options, run_state, worker_counts
from tandem.cli.client import ApiError
from tandem.cli.commands import Command
from tandem.cli.console import Console
from tandem.errors import ConfigError
from tandem_tools import fleet_frame, fleet_readings

ROUTER = "127.0.0.1:7001"
_LINES_BESIDE_WORKERS = 12
_LEAST_WORKERS = 5
_EVERY_WORKER = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--routers",
        default="",
        metavar="HOST:PORT,...",
        help="Metrics ports of routers; a name stands for every address that it has. "
        f"[those of `tandem up`, else {ROUTER}]",
    )
    add(
        "--workers",
        default="",
        metavar="HOST:PORT,...",
        help="Metrics ports of workers, to show speed, hit rate and KV. [those of `tandem up`]",
    )
    add("--interval", type=float, default=1.0, metavar="SECONDS", help="[%(default)s]")
    add("--once", action="store_true", help="Show the figures of one interval, and end.")
    options.add_run_dir(parser)


def top(arguments: argparse.Namespace, console: Console) -> int:
    """Raises ConfigError for addresses that are none, ApiError where no router answers `--once`."""
    if not 0.05 <= arguments.interval <= 3600:
        raise ConfigError("--interval is 0.05 to 3600 seconds")
    routers, workers = _addresses(arguments)
    before = fleet_readings.read(routers, workers)
    try:
        while True:
            time.sleep(arguments.interval)
            now = fleet_readings.read(routers, workers)
            most = _EVERY_WORKER if arguments.once else _workers_that_fit(len(routers + workers))
            console.frame(fleet_frame.lines(before, now, most_workers=most))
            if arguments.once:
                break
            before = now
    except KeyboardInterrupt:
        return 0
    if all(isinstance(each, ApiError) for each in now.routers.values()):
        raise ApiError("no router answers")
    return 0


def _addresses(arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Metrics ports of the routers and of the workers."""
    if arguments.routers or arguments.workers:
        return (
            _resolved(arguments.routers or ROUTER, "--routers"),
            _resolved(arguments.workers, "--workers"),
        )
    run_dir: Path = arguments.run_dir
    state = run_state.read(run_dir)
    ports = {} if state is None else state.metrics
    workers = [address for name, address in ports.items() if "worker" in name]
    return [ports.get("router", ROUTER)], workers


def _resolved(text: str, flag: str) -> list[str]:
    targets = worker_counts.targets(text, flag)
    return sorted({address for each in targets for address in each.addresses()})


def _workers_that_fit(others: int) -> int:
    height = shutil.get_terminal_size().lines
    return max(_LEAST_WORKERS, height - others - _LINES_BESIDE_WORKERS)


COMMAND = Command(add_arguments, top)
