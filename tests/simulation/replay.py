"""Replay one simulated run with its trace: `python tests/simulation/replay.py SEED`.

Each line is a moment of virtual time in one router: `>` is an event that its core was told, `<` an
action that it asked for. With `--messages`, each line is a message between processes instead.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    # Run from a checkout without an installation too.
    sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from simulated.loop import BrokenRule  # noqa: E402 - the path comes first
from simulated.world import World  # noqa: E402 - the path comes first


def main() -> int:
    """Exit status 1 where the seed breaks a rule."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seed", type=int)
    parser.add_argument("--messages", action="store_true", help="what is sent, as text")
    options = parser.parse_args()
    seed = options.seed
    logging.disable(logging.CRITICAL)
    world = World(seed, messages=print) if options.messages else World(seed, trace=print)
    try:
        world.run()
    except BrokenRule as error:
        print(f"seed {seed} breaks a rule: {error}")
        return 1
    print(f"seed {seed} holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
