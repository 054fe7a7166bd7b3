"""`python -m prefill_worker`: the prefill phase as a process."""

from __future__ import annotations

import sys

from prefill_worker.rules import load_phase
from tandem.worker import server


def main() -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    return server.main("prefill", load_phase)


if __name__ == "__main__":
    sys.exit(main())
