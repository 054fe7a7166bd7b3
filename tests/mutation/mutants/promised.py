"""Which promises a deliberate bug breaks, so that a test of their own is seen to fail for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from mutants.table import ROOT, Mutant

sys.path.insert(0, str(ROOT / "tests"))

from promises import PROMISES

WHOLE = ("S0", "S1", "S2", "S3", "S4")
"""Families of which every promise has such a bug."""


def broken_promises(
    mutants: Iterable[Mutant], proofs: Mapping[str, set[str]], families: Sequence[str] = WHOLE
) -> list[str]:
    """What is wrong with the bugs that name a promise. `proofs`: promises.proofs()."""
    named = [mutant for mutant in mutants if mutant.promise]
    found = [
        f"{mutant}: {test} is not marked with {mutant.promise}"
        for mutant in named
        for test in mutant.tests
        if test.partition("[")[0] not in proofs.get(mutant.promise, ())
    ]
    found += [f"{mutant}: its tests alone are asked" for mutant in named if mutant.simulated]
    broken = {mutant.promise for mutant in named}
    return found + [
        f"{promise.id}: no deliberate bug names it"
        for promise in PROMISES
        if promise.seed in families and promise.id not in broken
    ]
