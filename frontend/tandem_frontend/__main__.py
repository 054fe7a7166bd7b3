"""`python -m tandem_frontend`: the OpenAI frontend as a process."""

from __future__ import annotations

if __name__ == "__main__":  # before all imports that take time: Ctrl-C may come in them
    from tandem import component

    raise SystemExit(component.frontend())

import asyncio
import socket

from tandem import process, tracing
from tandem.settled import settle
from tandem_frontend import lifecycle
from tandem_frontend.config import FrontendConfig


def main() -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    return process.run("frontend", FrontendConfig, _serve, lifecycle.check)


async def _serve(config: FrontendConfig, stop: asyncio.Event) -> None:
    with tracing.exporting(
        config.otlp_endpoint, service="tandem-frontend", instance=socket.gethostname()
    ) as tracer:
        await lifecycle.serve(config, stop, tracer=tracer, on_started=lambda *ports: settle())
