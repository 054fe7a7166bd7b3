"""`python -m tandem_decode_worker`: the decode phase as a process."""

from __future__ import annotations

if __name__ == "__main__":  # before all imports that take time: Ctrl-C may come in them
    from tandem import component

    raise SystemExit(component.decode_worker())


from tandem.worker import divided, server
from tandem_decode_worker.rules import load_phase


def main() -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    return server.main("decode", load_phase, make=divided.worker)
