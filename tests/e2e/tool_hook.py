"""A hook for test_tools.py: it reads what the model writes, as it writes it."""

from __future__ import annotations

from tandem.hooks.contract import Chunk, Verdict, emit, terminate

FORBIDDEN = "forbidden tool"
CUT = "enough"


class ToolGuard:
    """Ends an answer that calls `delete`, before its arguments are shown; hides a password wherever
    it stands; ends one that says so itself.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], str] = {}

    def __call__(self, chunk: Chunk) -> Verdict:
        key = chunk.request_id, chunk.output_index
        seen = self._seen[key] = self._seen.get(key, "") + chunk.text_diff
        if chunk.is_final:
            del self._seen[key]
        if '<tool_call>\n{"name": "delete"' in seen:
            return terminate(FORBIDDEN)
        if "ENOUGH" in seen:
            return terminate(CUT)
        return emit(chunk.text_diff.replace("7", "*"))
