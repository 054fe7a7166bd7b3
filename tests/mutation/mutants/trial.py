"""Trying mutants: the simulation first, and where it notices nothing, the tests of the file."""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

from mutants.overlay import Overlay
from mutants.table import Mutant

Killer = Literal["simulation", "tests", "nothing"]


class Result(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    killer: Killer
    seconds: float


def run(
    mutants: Sequence[Mutant], *, seeds: int, processes: int, with_tests: bool = True
) -> Iterator[Result]:
    """Try them on several processors, and yield each as it is done.

    Raises RuntimeError where simulation or tests fail without any mutant.
    """
    with ExitStack() as stack:
        overlays: queue.SimpleQueue[Overlay] = queue.SimpleQueue()
        for number in range(processes):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"mutants-{number}-"))
            overlays.put(Overlay(Path(folder)))
        pool = stack.enter_context(ThreadPoolExecutor(processes))
        _check_unbroken(overlays, mutants, seeds=seeds, with_tests=with_tests)
        jobs = [pool.submit(_try, overlays, each, seeds, with_tests) for each in mutants]
        stack.callback(pool.shutdown, cancel_futures=True)
        for job in as_completed(jobs):
            yield job.result()


def _check_unbroken(
    overlays: queue.SimpleQueue[Overlay],
    mutants: Sequence[Mutant],
    *,
    seeds: int,
    with_tests: bool,
) -> None:
    overlay = overlays.get()
    simulated = any(mutant.simulated for mutant in mutants)
    if simulated and not overlay.simulation_passes(seeds):
        raise RuntimeError("the simulation breaks a rule without any mutant")
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    for file, those in groupby(tests, lambda test: test.partition("::")[0]):
        if with_tests and not overlay.tests_pass([*those]):
            raise RuntimeError(f"{file} fails, or takes too long, without any mutant")
    overlays.put(overlay)


def _try(
    overlays: queue.SimpleQueue[Overlay], mutant: Mutant, seeds: int, with_tests: bool
) -> Result:
    overlay, began = overlays.get(), time.monotonic()
    killer: Killer = "nothing"
    try:
        with overlay.broken_by(mutant):
            if mutant.simulated and not overlay.simulation_passes(seeds):
                killer = "simulation"
            elif with_tests and not overlay.tests_pass(mutant.tests):
                killer = "tests"
    finally:
        overlays.put(overlay)  # else the others wait for it for ever
    return Result(mutant, killer, time.monotonic() - began)
