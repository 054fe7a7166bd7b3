"""Give the parsers of answers spoilt outputs of each family: `python tests/fuzz/parsers.py`.

Each output is a recorded one that was cut, doubled or mixed; each has to keep the rules of
kits/answers/tests. At the end a line for each family says how many were given; the exit status is 1
where one broke a rule. A family whose share of the minutes is over gives no more.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    # Run from a checkout without an installation too.
    sys.path[:0] = [str(TESTS.parent), str(TESTS.parent / "kits" / "answers" / "tests")]

from recorded_answers import RECORDED  # noqa: E402 - the path comes first
from spoilt_answers import check, spoilt  # noqa: E402


def main() -> int:
    options = _options()
    seconds = options.minutes * 60 / len(RECORDED)
    return max([_fuzz(family, options.seed, options.outputs, seconds) for family in RECORDED])


def _fuzz(family: str, seed: int, outputs: int, seconds: float) -> int:
    """Gives the parser of one family its outputs; says 1 where one broke a rule."""
    rng = random.Random(seed)
    until = time.monotonic() + seconds
    given = 0
    for text in spoilt(family, seed, outputs):
        if time.monotonic() > until:
            break
        given += 1
        try:
            check(family, text, rng)
        except Exception as error:  # noqa: BLE001 - whatever it is, the text is what is looked for
            print(f"{family}: {error!r} with {text!r}")
            return 1
    print(f"{family}: {given} outputs", flush=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--outputs", type=int, default=10_000, help="of each family")
    parser.add_argument("--minutes", type=float, default=20, help="for all of them")
    parser.add_argument("--seed", type=int, default=1, help="another one makes other outputs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
