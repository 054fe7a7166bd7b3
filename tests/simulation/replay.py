"""Replay one simulated run of the router's core with its trace: `python replay.py SEED`.

Each line is a moment of virtual time: `>` is an event that went in, `<` an action that came out.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":
    # Run from a checkout without an installation too.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from router_invariants import InvariantError
from router_world import World


def main() -> int:
    """Exit status 1 where the seed breaks a rule."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seed", type=int)
    seed = parser.parse_args().seed
    try:
        World(seed, trace=print).run()
    except InvariantError as error:
        print(f"seed {seed} breaks: {error}")
        return 1
    print(f"seed {seed} holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
