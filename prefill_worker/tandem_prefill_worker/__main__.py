"""`python -m tandem_prefill_worker`: the prefill phase as a process."""

from __future__ import annotations

if __name__ == "__main__":  # before all imports that take time: Ctrl-C may come in them
    from tandem import component

    raise SystemExit(component.prefill_worker())


from tandem.worker import server
from tandem_prefill_worker.rules import load_phase


def main() -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    return server.main("prefill", load_phase)
