"""A hook whose behaviour the trace id's last digit chooses; it applies in decode alone, but for
PREFILL_TERMINATES.
"""

from __future__ import annotations

from collections import defaultdict

from tandem.hooks.contract import Chunk, Verdict, emit, suppress, terminate

PASS, UPPER, SUPPRESS, TERMINATE_SECOND, RAISE_SECOND, PREFILL_TERMINATES, PREFILL_RAISES = range(7)


def trace(behaviour: int, unique: int) -> str:
    return f"{unique:031x}{behaviour}"


class ContractHook:
    def __init__(self) -> None:
        self._calls: dict[tuple[int, int], int] = defaultdict(int)

    def __call__(self, chunk: Chunk) -> Verdict:
        key = (chunk.request_id, chunk.output_index)
        self._calls[key] += 1
        number = self._calls[key]
        if chunk.is_final:
            del self._calls[key]
        behaviour = int(chunk.trace_id[-1])
        if chunk.aborted:
            return emit("")
        if chunk.phase == "prefill":
            return self._prefill(behaviour, chunk)
        if behaviour == UPPER:
            return emit(chunk.text_diff.upper())
        if behaviour == SUPPRESS:
            return suppress()
        if behaviour == TERMINATE_SECOND and number == 2:
            return terminate("guard")
        if behaviour == RAISE_SECOND and number == 2:
            raise RuntimeError("on purpose")
        return emit(chunk.text_diff)

    def _prefill(self, behaviour: int, chunk: Chunk) -> Verdict:
        if behaviour == PREFILL_TERMINATES:
            return terminate("guard")
        if behaviour == PREFILL_RAISES:
            raise RuntimeError("on purpose")
        return emit(chunk.text_diff)
