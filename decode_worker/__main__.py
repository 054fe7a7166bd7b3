"""`python -m decode_worker`: the decode phase as a process."""

from __future__ import annotations

import sys

from tandem.worker import server


def main() -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    return server.main("decode")


if __name__ == "__main__":
    sys.exit(main())
