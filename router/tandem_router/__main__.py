"""`python -m tandem_router`: the router as a process."""

from __future__ import annotations

if __name__ == "__main__":  # before all imports that take time: Ctrl-C may come in them
    from tandem import component

    raise SystemExit(component.router())

import asyncio
import socket

from tandem import process, tracing
from tandem_router import server
from tandem_router.config import RouterConfig


def main() -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    return process.run("router", RouterConfig, _serve, server.check)


async def _serve(config: RouterConfig, stop: asyncio.Event) -> None:
    with tracing.exporting(
        config.otlp_endpoint, service="tandem-router", instance=socket.gethostname()
    ) as tracer:
        await server.serve(config, stop, tracer)
