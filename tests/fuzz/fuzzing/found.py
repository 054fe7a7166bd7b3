"""What was found: a file with the input, and one that says what it did and how to see it again."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable
from pathlib import Path

from .target import KINDS, FoundError, Kind


class Findings:
    """Those of one target. The same thing found again is not kept again."""

    def __init__(self, folder: Path, target: str) -> None:
        self._folder = folder / "found"
        self._target = target

    def add(
        self, kind: Kind, what: str, data: bytes, *, detail: Callable[[], str] = lambda: ""
    ) -> None:
        """`what` is the same for each input that does the same; `detail` need not be."""
        digest = hashlib.sha256(f"{kind} {what}".encode()).hexdigest()[:10]
        path = self._folder / f"{kind}-{digest}.input"
        if path.exists():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        command = f"python tests/fuzz/run.py --replay {path} {self._target}"
        path.with_suffix(".txt").write_text(f"{kind}: {what}\n{command}\n\n{detail()}\n")
        print(f"{self._target}: {kind}: {what}\n  {command}", flush=True)

    def add_error(self, error: BaseException, data: bytes) -> None:
        """Something that an input raised or logged."""

        def detail() -> str:
            return "".join(traceback.format_exception(error))

        if isinstance(error, FoundError):
            self.add(error.kind, str(error), data, detail=detail)
        else:
            self.add("fault", f"{type(error).__name__} at {_place(error)}", data, detail=detail)

    def count(self, kind: Kind) -> int:
        return len(list(self._folder.glob(f"{kind}-*.input")))

    def __len__(self) -> int:
        return sum(map(self.count, KINDS))


def _place(error: BaseException) -> str:
    """Where it was raised."""
    places = list(traceback.walk_tb(error.__traceback__))
    if not places:
        return "nowhere"
    frame, line = places[-1]
    return f"{Path(frame.f_code.co_filename).name}:{line}"
