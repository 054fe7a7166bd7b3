"""`tandem top`: the fleet, its latencies, queues and slow workers, live in a terminal."""

from __future__ import annotations

import argparse
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tandem import config
from tandem.cli import options, run_state, worker_counts
from tandem.cli.client import ApiError
from tandem.cli.commands import Command, adding
from tandem.cli.console import Console
from tandem.cli.up import stopping_on_signals
from tandem.cli.worker_counts import MetricsTarget
from tandem.errors import ConfigError

try:
    from rich.console import Console as Terminal
    from rich.live import Live
except ImportError as error:
    raise ConfigError("the screen is drawn by rich: pip install 'tandem-serving[top]'") from error

from tandem_tools.top import frame, readings
from tandem_tools.top.figures import FleetFigures, FleetHistory
from tandem_tools.top.frame import FleetView
from tandem_tools.top.keys import QUIT, SUSPEND, Keyboard
from tandem_tools.top.readings import FleetAddresses, FleetReading

ROUTER = "127.0.0.1:7001"
PLAIN_WIDTH = 200
"""Columns of a page that goes into a file or a pipe."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    for name, what, default in (
        ("routers", "routers", f"those of `tandem up`, else {ROUTER}"),
        ("workers", "workers, to show speed, hit rate and KV", "those of `tandem up`"),
        ("frontends", "frontends, to show TTFT, ITL and goodput", "those of `tandem up`"),
    ):
        add(
            f"--{name} HOST:PORT,...",
            default="",
            help=f"Metrics ports of {what}; a name stands for every address that it has. "
            f"[{default}]",
        )
    add("--interval SECONDS", float, default=1.0, help="[%(default)s]")
    add("--once", action="store_true", help="Show the figures of one interval, and end.")
    options.add_run_dir(parser)


def top(arguments: argparse.Namespace, console: Console) -> int:
    """Raises ConfigError for addresses that are none, ApiError for a name without an address, and
    where no router answers `--once`.
    """
    if not 0.05 <= arguments.interval <= 3600:
        raise ConfigError("--interval is 0.05 to 3600 seconds")
    fleet = _asked_fleet(arguments)
    terminal = _terminal()
    try:
        with stopping_on_signals():
            if terminal.is_terminal and not (
                arguments.once or arguments.json or terminal.is_dumb_terminal
            ):
                _live(fleet, arguments.interval, terminal)
                return 0
            for figures in _figures(fleet, arguments.interval):
                if not console.result(figures):
                    terminal.print(frame.page(figures, fleet.view(), terminal.width))
                if arguments.once:
                    break
    except KeyboardInterrupt:
        return 0
    if all(each.problem for each in figures.routers):
        raise ApiError("no router answers")
    return 0


def _terminal() -> Terminal:
    """Standard output. Texts of others are never markup, and NO_COLOR is honoured."""
    environment = config.environment()
    sized = sys.stdout.isatty() or "COLUMNS" in environment
    width = None if sized else PLAIN_WIDTH
    no_color = bool(environment.get("NO_COLOR"))
    return Terminal(
        width=width, no_color=no_color, markup=False, emoji=False, highlight=False, soft_wrap=False
    )


# --- who is asked ---------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class _Fleet:
    """Whom to ask. Names are looked up for each reading: pods come and go."""

    url: str
    interval: float
    routers: list[MetricsTarget]
    workers: list[MetricsTarget]
    frontends: list[MetricsTarget]
    names: Mapping[str, str]
    """Names of workers, by metrics port."""

    def view(self) -> FleetView:
        return FleetView(address=self.url, interval=self.interval)

    def addresses(self) -> FleetAddresses:
        """Raises ApiError for a name without an address."""
        asked = self.routers, self.workers, self.frontends
        return FleetAddresses(*map(worker_counts.addresses, asked))


def _asked_fleet(arguments: argparse.Namespace) -> _Fleet:
    run_dir: Path = arguments.run_dir
    state = run_state.read(run_dir)
    ports = {} if state is None else state.metrics
    names = {address: name for name, address in ports.items() if "worker" in name}
    if arguments.routers or arguments.workers or arguments.frontends:
        routers = arguments.routers or ROUTER
        given = {"routers": routers, "workers": arguments.workers, "frontends": arguments.frontends}
        url = routers
    else:
        kinds = ("router", "worker", "frontend")
        found = [",".join(port for name, port in ports.items() if kind in name) for kind in kinds]
        given = {"routers": found[0] or ROUTER, "workers": found[1], "frontends": found[2]}
        url = ROUTER if state is None else state.url
    targets = {name: worker_counts.targets(text, f"--{name}") for name, text in given.items()}
    return _Fleet(url, arguments.interval, names=names, **targets)


# --- without keys ---------------------------------------------------------------------------------


def _figures(fleet: _Fleet, interval: float) -> Iterator[FleetFigures]:
    """The figures of each interval, for ever. Raises ApiError for a name without an address, at
    first.
    """
    history = FleetHistory(first := readings.read(asked := fleet.addresses()), fleet.names)
    due = first.at
    while True:
        due = max(due + interval, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        asked = _again(fleet, asked)
        yield history.take(readings.read(asked))


def _again(fleet: _Fleet, asked: FleetAddresses) -> FleetAddresses:
    """The addresses of now; those of before where a name has none at the moment."""
    try:
        return fleet.addresses()
    except ApiError:
        return asked


# --- live -----------------------------------------------------------------------------------------


def _live(fleet: _Fleet, interval: float, terminal: Terminal) -> None:
    """Until a key or a signal ends it. Raises ApiError for a name without an address."""
    asked = fleet.addresses()
    with Keyboard() as keyboard:
        shown = _Shown(fleet, keyboard, terminal)
        reader = threading.Thread(
            target=_read_for_ever, args=(fleet, asked, interval, shown), daemon=True
        )
        reader.start()
        while True:
            with _screen(terminal, keyboard) as live:
                if not shown.watch(live):
                    return
            os.kill(os.getpid(), signal.SIGSTOP)


class _Shown:
    """What is on the screen, and what comes next."""

    def __init__(self, fleet: _Fleet, keyboard: Keyboard, terminal: Terminal) -> None:
        self.readings: queue.SimpleQueue[FleetReading | Exception] = queue.SimpleQueue()
        """An error is what ended the thread that reads."""
        self.view = fleet.view()
        self.keyboard = keyboard
        self._terminal = terminal
        self._names = fleet.names
        self._history: FleetHistory | None = None
        self._figures: FleetFigures | None = None

    def watch(self, live: Live) -> bool:
        """Show what comes, until the user wants to end it, False, or to suspend it, True."""
        while True:
            if self._figures is not None:
                with suppress(OSError):  # the terminal has gone, as a signal says
                    # Of now: variables COLUMNS and LINES that a shell exports do not change.
                    self._terminal.size = os.get_terminal_size(sys.stdout.fileno())
                live.update(frame.screen(self._figures, self.view, self._terminal), refresh=True)
            for event in self.keyboard.events():
                if event in (QUIT, SUSPEND):
                    return event == SUSPEND
                if self._figures is not None:
                    self.view.press(event, len(self._figures.workers))
            while not self.readings.empty():
                self._take(self.readings.get())

    def _take(self, reading: FleetReading | Exception) -> None:
        if isinstance(reading, Exception):
            raise reading
        if self._history is None:
            self._history = FleetHistory(reading, self._names)
        now = self._history.take(reading)
        self.view.remember(now)
        if not self.view.paused or self._figures is None:
            self._figures = now


def _read_for_ever(fleet: _Fleet, asked: FleetAddresses, interval: float, shown: _Shown) -> None:
    """A thread's life: components that do not answer hold up no key. An error ends the screen."""
    try:
        while True:
            began = time.monotonic()
            shown.readings.put(readings.read(asked))
            shown.keyboard.wake()
            time.sleep(max(0.0, began + interval - time.monotonic()))
            asked = _again(fleet, asked)
    except Exception as error:  # noqa: BLE001 - the main thread raises it
        shown.readings.put(error)
        shown.keyboard.wake()


@contextmanager
def _screen(terminal: Terminal, keyboard: Keyboard) -> Iterator[Live]:
    """The terminal's other screen. Any end gives back the first screen, the cursor and the keys."""
    live = Live(console=terminal, screen=True, auto_refresh=False, redirect_stderr=False)
    with keyboard.listening():
        try:
            live.start()
            yield live
        finally:
            impatient = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C again and again
            live.stop()
            signal.signal(signal.SIGINT, impatient)


COMMAND = Command(add_arguments, top, example="tandem top --once --json")
