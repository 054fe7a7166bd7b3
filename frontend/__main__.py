"""`python -m frontend`: the OpenAI frontend as a process."""

from __future__ import annotations

from tandem import grpc_polling  # noqa: F401  # isort: skip  # before gRPC is imported

import asyncio
import gc
import socket
import sys

from frontend import config as settings
from frontend import lifecycle
from tandem import logs, process, tracing
from tandem.errors import ConfigError


def main() -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    try:
        config = settings.read()
    except ConfigError as error:
        sys.stderr.write(f"tandem frontend: {error}\n")
        return 2
    logs.configure("frontend", format=config.log_format, level=config.log_level)

    async def serve(stop: asyncio.Event) -> None:
        with tracing.exporting(
            config.otlp_endpoint, service="tandem-frontend", instance=socket.gethostname()
        ) as tracer:
            # What is loaded by then lives as long as the process: the collector need not look.
            await lifecycle.serve(
                config, stop, tracer=tracer, on_started=lambda *ports: gc.freeze()
            )

    return process.run("frontend", serve)


if __name__ == "__main__":
    sys.exit(main())
