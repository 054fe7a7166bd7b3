"""The queue of sequences that wait for a pair: by model, then priority, then arrival."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from operator import attrgetter

from router.core.fleet import Pair
from router.core.sequences import Sequence

_RANK = attrgetter("rank")


class Waiting:
    """Holds at most what its owner lets in: `len` is the number of sequences over all models."""

    def __init__(self) -> None:
        self._lines: dict[str, list[Sequence]] = {}
        """One for each model that something waits for, in rising order of rank."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        for line in self._lines.values():
            yield from line

    def models(self) -> list[str]:
        """The models that something waits for."""
        return list(self._lines)

    def add(self, sequence: Sequence) -> None:
        """A sequence that waits again takes the place that its arrival gave it."""
        line = self._lines.setdefault(sequence.request.submit.model, [])
        bisect.insort(line, sequence, key=_RANK)
        self._count += 1

    def remove(self, sequence: Sequence) -> None:
        model = sequence.request.submit.model
        line = self._lines[model]
        del line[bisect.bisect_left(line, sequence.rank, key=_RANK)]
        self._count -= 1
        if not line:
            del self._lines[model]

    def head(self, model: str, *, passing: Pair | None = None) -> Sequence | None:
        """Who is next, but for the sequences that avoid the pair `passing`."""
        line = self._lines.get(model, ())
        return next((each for each in line if passing is None or each.avoided != passing), None)

    def of(self, model: str) -> list[Sequence]:
        """All that wait for a model, in order."""
        return list(self._lines.get(model, ()))
