"""`python -m tandem_aggregated_worker`: both phases in one process."""

from __future__ import annotations

if __name__ == "__main__":  # before all imports that take time: Ctrl-C may come in them
    from tandem import component

    raise SystemExit(component.aggregated_worker())

import asyncio
from functools import partial

from tandem.worker import server
from tandem.worker.config import WorkerConfig
from tandem_aggregated_worker.worker import KIND, AggregatedWorker, check


def main() -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    return server.run("aggregated_worker", _serve, check)


async def _serve(config: WorkerConfig, stop: asyncio.Event) -> None:
    await server.live(KIND, config, stop, partial(AggregatedWorker, config))
