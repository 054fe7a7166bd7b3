"""State for each request, forgotten in `close`: ends an answer that turns in a circle.

hooks:
  chain:
    - path: examples.stop_repetition:StopRepetition
      config: {times: 4}
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.hooks.contract import Chunk, Verdict, emit, terminate


@dataclass(slots=True)
class Lines:
    """What is remembered of one request: bounded, however long the answer is."""

    line: str = ""
    """The line that is being written."""
    last: str = ""
    times: int = 0
    """How often in a row the last one came."""


class StopRepetition:
    """Terminates when the same line comes `times` times in a row; stop_reason is "repetition"."""

    longest = 1000
    """Characters: a longer line is never taken for a repetition."""

    def __init__(self, times: int = 4) -> None:
        self._times = times
        self._requests: dict[int, Lines] = {}

    def __call__(self, chunk: Chunk) -> Verdict:
        lines = self._requests.setdefault(chunk.request_id, Lines())
        shown = 0
        for part in chunk.text_diff.splitlines(keepends=True):
            shown += len(part)
            lines.line = (lines.line + part)[: self.longest + 1]
            if part.endswith("\n") and self._repeated(lines):
                return terminate("repetition", text=chunk.text_diff[:shown])
        return emit(chunk.text_diff)

    def close(self, request_id: int) -> None:
        """Called once for each sequence, however it ended; its last call may be long before, or
        never have come.
        """
        self._requests.pop(request_id, None)

    def _repeated(self, lines: Lines) -> bool:
        line, lines.line = lines.line, ""
        if line.isspace():
            return False
        lines.times = lines.times + 1 if line == lines.last else 1
        lines.last = line if len(line) <= self.longest else ""
        return lines.times >= self._times
