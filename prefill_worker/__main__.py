"""`python -m prefill_worker`: the prefill phase as a process."""

from __future__ import annotations

from tandem import grpc_polling  # noqa: F401  # isort: skip  # before gRPC is imported

import sys

from prefill_worker.rules import load_phase
from tandem.worker import server


def main() -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    return server.main("prefill", load_phase)


if __name__ == "__main__":
    sys.exit(main())
