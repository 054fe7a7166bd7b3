"""How a component's process lives: one event loop, SIGTERM and SIGINT ask it to stop, a second
signal ends it at once.

    def main() -> int:
        return process.run("router", RouterConfig, serve, check)

    async def serve(config: RouterConfig, stop: asyncio.Event) -> None: ...

    async def check(config: RouterConfig) -> None: ...

Exit status: 0 after an orderly stop, 2 when the component could not start (StartError; its message
says what to do).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import uvloop

from tandem import logs
from tandem.config import read
from tandem.errors import StartError

log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class LogSettings(Protocol):
    """What the settings of every component say of its logs."""

    @property
    def log_format(self) -> logs.Format: ...
    @property
    def log_level(self) -> str: ...


C = TypeVar("C", bound=LogSettings)


def run(
    component: str,
    settings: type[C],
    serve: Callable[[C, asyncio.Event], Awaitable[None]],
    check: Callable[[C], Awaitable[None]],
    argv: Sequence[str] | None = None,
) -> int:
    """Read the settings, and run `serve` until it returns; it should do so soon after its event is
    set. `check` raises StartError where it could not start, and is run instead where the process is
    asked for that alone. Returns the exit status.
    """

    async def checked(settings: C, stop: asyncio.Event) -> None:
        await check(settings)
        sys.stdout.write(would_start(component) + "\n")

    try:
        told = read(settings, prog=f"tandem-{component.replace('_', '-')}", argv=argv)
    except StartError as error:
        return _refused(component, error)
    return run_with(
        component,
        told.settings,
        checked if told.only_check else serve,
        located=told.located,
    )


def run_with(
    component: str,
    config: C,
    serve: Callable[[C, asyncio.Event], Awaitable[None]],
    *,
    token_process: int | None = None,
    located: Callable[[StartError], StartError] = lambda error: error,
) -> int:
    """Likewise, with settings that were read already. `token_process`: which of a worker's token
    processes this is, where it has several; log lines say it. `located`: adds to an error where the
    setting stands that it is about.
    """

    async def main() -> None:
        stop = asyncio.Event()
        own_signals(stop)
        await serve(config, stop)

    try:
        logs.configure(
            component, format=config.log_format, level=config.log_level, token_process=token_process
        )
        uvloop.run(main())
    except StartError as error:
        return _refused(component, located(error))
    return 0


def would_start(component: str) -> str:
    """How a process that was only to check its settings says that they are good."""
    return f"ok: tandem {component} would start with these settings"


def _refused(component: str, error: StartError) -> int:
    sys.stderr.write(logs.marked(f"tandem {component}: {error}") + "\n")
    return 2


def own_signals(stop: asyncio.Event) -> None:
    """Handle SIGTERM and SIGINT in the running loop. Call again after a library (SGLang) has put
    its own handlers in.
    """

    def on_signal(number: int) -> None:
        if stop.is_set():
            log.warning("second signal: ending at once")
            os._exit(128 + number)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.remove_signal_handler(number)
        loop.add_signal_handler(number, on_signal, number)
