"""A hook for tests whose behaviour the test chooses by the request's trace id, and that writes down
every call.

The last two digits of the trace id choose: see BEHAVIOURS. The phase that it applies to is the
digit before: 1 prefill, 2 decode, 3 both; any other: none. Calls go to the file named by
SWITCH_HOOK_LOG, one JSON object a line.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import defaultdict

from tandem.hooks.contract import Chunk, Verdict, emit, suppress, terminate

BEHAVIOURS = tuple(f"{number:02x}" for number in range(10))
(
    PASS,
    UPPER,
    SUPPRESS,
    SUPPRESS_SECOND,
    TERMINATE_THIRD,
    RAISE_SECOND,
    NONSENSE,
    TERMINATE_FIRST,
    FAIL_FIRST,
    REDACT,
) = BEHAVIOURS
_CHOSEN = "0" * 16
_numbers = itertools.count(1)
_PHASES = {"1": ("prefill",), "2": ("decode",), "3": ("prefill", "decode")}
REASON = "switched off"


def trace(behaviour: str, phase: str) -> str:
    """A fresh trace id that makes the hook behave so in `phase` (or "both")."""
    digit = {"prefill": "1", "decode": "2", "both": "3"}[phase]
    return f"{_CHOSEN}{next(_numbers):013x}{digit}{behaviour}"


class SwitchHook:
    def __init__(self) -> None:
        self._calls: dict[tuple[int, int], int] = defaultdict(int)
        self._log = open(os.environ["SWITCH_HOOK_LOG"], "a", buffering=1)  # noqa: SIM115

    def __call__(self, chunk: Chunk) -> Verdict:
        key = (chunk.request_id, chunk.output_index)
        self._calls[key] += 1
        number = self._calls[key]
        if chunk.is_final:
            del self._calls[key]
        self._write(chunk)
        chosen = chunk.trace_id.startswith(_CHOSEN)  # others are the frontend's own
        applies = chosen and chunk.phase in _PHASES.get(chunk.trace_id[-3], ())
        return self._verdict(chunk, chunk.trace_id[-2:] if applies else PASS, number)

    def _verdict(self, chunk: Chunk, behaviour: str, number: int) -> Verdict:
        if behaviour == UPPER:
            return emit(chunk.text_diff.upper())
        if behaviour == REDACT:
            return emit(chunk.text_diff.upper(), show_tokens=False)
        if behaviour == SUPPRESS or (behaviour == SUPPRESS_SECOND and number == 2):
            return suppress()
        if (behaviour == TERMINATE_THIRD and number == 3) or behaviour == TERMINATE_FIRST:
            return terminate(REASON)
        if (behaviour == RAISE_SECOND and number == 2) or behaviour == FAIL_FIRST:
            raise RuntimeError("the hook of this test fails on purpose")
        if behaviour == NONSENSE:
            return "yes"  # type: ignore[return-value]
        return emit(chunk.text_diff)

    def _write(self, chunk: Chunk) -> None:
        entry = {
            "phase": chunk.phase,
            "hook": f"{os.getpid()} {id(self)}",
            "request_id": chunk.request_id,
            "output_index": chunk.output_index,
            "trace_id": chunk.trace_id,
            "text_diff": chunk.text_diff,
            "text": chunk.text,
            "token_ids": list(chunk.token_ids_diff),
            "is_final": chunk.is_final,
            "aborted": chunk.aborted,
            "streaming": chunk.streaming,
            "model": chunk.model,
            "lora_adapter": chunk.lora_adapter,
        }
        self._log.write(json.dumps(entry) + "\n")
