"""The bounded queue of sequences that wait for a pair: by model, then priority, then arrival."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterator

from router.core.sequences import Sequence


class _Line:
    """The sequences of one model. Levels are kept in rising order of -priority."""

    def __init__(self) -> None:
        self.levels: dict[int, OrderedDict[Sequence, None]] = {}
        self.order: list[int] = []

    def add(self, sequence: Sequence, *, first: bool) -> None:
        rank = -sequence.request.submit.priority
        level = self.levels.get(rank)
        if level is None:
            level = self.levels[rank] = OrderedDict()
            bisect.insort(self.order, rank)
        level[sequence] = None
        if first:
            level.move_to_end(sequence, last=False)

    def remove(self, sequence: Sequence) -> None:
        rank = -sequence.request.submit.priority
        level = self.levels[rank]
        del level[sequence]
        if not level:
            del self.levels[rank]
            self.order.remove(rank)

    def head(self) -> Sequence:
        return next(iter(self.levels[self.order[0]]))


class Waiting:
    """Holds at most what its owner lets in: `len` is the number of sequences over all models."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        for line in self._lines.values():
            for rank in line.order:
                yield from line.levels[rank]

    def models(self) -> list[str]:
        """The models that something waits for."""
        return list(self._lines)

    def add(self, sequence: Sequence, *, first: bool = False) -> None:
        """`first`: before all others of its priority, for a sequence that has waited already."""
        line = self._lines.setdefault(sequence.request.submit.model, _Line())
        line.add(sequence, first=first)
        self._count += 1

    def remove(self, sequence: Sequence) -> None:
        model = sequence.request.submit.model
        line = self._lines[model]
        line.remove(sequence)
        self._count -= 1
        if not line.levels:
            del self._lines[model]

    def head(self, model: str) -> Sequence | None:
        """Who is next."""
        line = self._lines.get(model)
        return None if line is None else line.head()

    def of(self, model: str) -> list[Sequence]:
        """All that wait for a model, in order."""
        line = self._lines.get(model)
        if line is None:
            return []
        return [sequence for rank in line.order for sequence in line.levels[rank]]
