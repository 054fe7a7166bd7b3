"""How a component's process lives: one event loop, SIGTERM and SIGINT ask it to stop, a second
signal ends it at once.

    def main() -> int:
        return process.run("router", serve)         # async def serve(stop: asyncio.Event) -> None

Exit status: 0 after an orderly stop, 2 when the component could not start (StartError; its message
says what to do).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable

import uvloop

from tandem.errors import StartError

log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(component: str, serve: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    """Run `serve` until it returns; it should do so soon after `stop` is set. Returns the exit
    status.
    """

    async def main() -> None:
        stop = asyncio.Event()
        own_signals(stop)
        await serve(stop)

    try:
        uvloop.run(main())
    except StartError as error:
        sys.stderr.write(f"tandem {component}: {error}\n")
        return 2
    return 0


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
