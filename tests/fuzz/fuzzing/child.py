"""The process that a target runs in: it may crash or hang, and the one that started it notices."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from .found import Findings
from .progress import Current, Progress
from .target import Target
from .trial import Trial

_SAVE_EVERY = 200
_INSTRUMENTED = ("tandem", "tandem_frontend", "tandem_loop_grpc", "tandem_router", "hpack")


class Child:
    """One target's inputs, from where the last process ended."""

    def __init__(self, target: Target, folder: Path, *, seed: int, until: int, seconds: float):
        """`until`: the number of the last input. `seconds`: the time there is."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._progress = Progress.load(folder, seed)
        self._current = Current(folder)
        self._until = until
        self._began = time.monotonic()
        self._before = self._progress.seconds
        self._seconds = seconds
        self._trial = Trial(target, Findings(folder, target.name))

    @property
    def over(self) -> bool:
        elapsed = time.monotonic() - self._began
        return self._progress.done >= self._until or elapsed > self._seconds

    @property
    def next(self) -> int:
        return self._progress.done

    def give(self, data: bytes) -> None:
        progress = self._progress
        self._current.set(progress.done, data)
        self._trial.give(data)
        progress.done += 1
        if progress.done % _SAVE_EVERY == 0:
            self._save()

    def close(self) -> None:
        self._trial.close()
        self._save()

    def _save(self) -> None:
        progress = self._progress
        progress.seconds = self._before + time.monotonic() - self._began
        progress.longest_ms = max(progress.longest_ms, self._trial.longest_ms)
        progress.save(self._folder)


def run(name: str, folder: Path, *, seed: int, until: int, seconds: float, guided: bool) -> None:
    """Until all inputs were given or the time is over."""
    logging.basicConfig(level=logging.ERROR, handlers=[logging.NullHandler()])
    if guided:
        _run_guided(name, folder, seed=seed, until=until, seconds=seconds)
        return
    target = find(name)
    child = Child(target, folder, seed=seed, until=until, seconds=seconds)
    corpus = target.corpus()
    while not child.over:
        child.give(target.input(seed, child.next, corpus))
    child.close()


def find(name: str) -> Target:
    """A target of ours by its name; others as "module:NAME"."""
    module, _, attribute = name.partition(":")
    if attribute:
        found: Target = getattr(importlib.import_module(module), attribute)
        return found
    return next(target for target in targets() if target.name == name)


def targets() -> Sequence[Target]:
    """All of ours. They are imported only now: before, coverage may have to be switched on."""
    found: Sequence[Target] = importlib.import_module("fuzzing.targets").TARGETS
    return found


def _run_guided(name: str, folder: Path, *, seed: int, until: int, seconds: float) -> None:
    """Atheris chooses what is spoilt next: whatever has reached new code. It ends the process."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=list(_INSTRUMENTED)):
        target = find(name)
    child = Child(target, folder, seed=seed, until=until, seconds=seconds)
    kept = folder / "corpus"
    kept.mkdir(exist_ok=True)
    for number, data in enumerate(target.corpus()):
        (kept / f"valid-{number}").write_bytes(data)

    def give(data: bytes) -> None:
        if child.over:
            child.close()
            sys.stdout.flush()
            os._exit(0)
        child.give(data)

    def spoil(data: bytes, most: int, number: int) -> bytes:
        return target.spoilt(data, Random(number))[:most]

    longest = 2 * max(map(len, target.corpus())) + 4096
    options = [f"-seed={(seed + child.next) % 2**31 + 1}", "-rss_limit_mb=0", "-timeout=0"]
    options += [f"-max_len={longest}", "-verbosity=0", "-print_final_stats=0"]
    atheris.Setup([name, *options, str(kept)], give, custom_mutator=spoil)
    atheris.Fuzz()
