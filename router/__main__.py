"""`python -m router`: the router as a process."""

from __future__ import annotations

from tandem import grpc_polling  # noqa: F401  # isort: skip  # before gRPC is imported

import asyncio
import socket
import sys

from router import config as settings
from router import server
from tandem import logs, process, tracing
from tandem.errors import ConfigError


def main() -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    try:
        config = settings.read()
    except ConfigError as error:
        sys.stderr.write(f"tandem router: {error}\n")
        return 2
    logs.configure("router", format=config.log_format, level=config.log_level)

    async def serve(stop: asyncio.Event) -> None:
        with tracing.exporting(
            config.otlp_endpoint, service="tandem-router", instance=socket.gethostname()
        ) as tracer:
            await server.serve(config, stop, tracer)

    return process.run("router", serve)


if __name__ == "__main__":
    sys.exit(main())
