"""A hook whose verdicts depend on all that it was shown before, chunk by chunk."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tandem.hooks.contract import Chunk, Verdict, emit, suppress
from tandem.hooks.sequences import Sequences

_LOG = os.environ.get("CHEQUERED_LOG", "")


class Chequered:
    """Shows every third chunk in capitals, holds every fifth back, and adds how many there were."""

    resumable = True

    def __init__(self) -> None:
        self._counts: Sequences[list[int]] = Sequences(lambda: [0])

    def __call__(self, chunk: Chunk) -> Verdict:
        count = self._counts.of(chunk)
        count[0] += 1
        if _LOG:
            line = {"trace_id": chunk.trace_id, "replay": chunk.replay, "text": chunk.text_diff}
            with Path(_LOG).open("a") as log:
                log.write(json.dumps(line) + "\n")
        if chunk.is_final:
            return emit(f"{chunk.text_diff}[{count[0]}]")
        if count[0] % 5 == 0:
            return suppress(hold_tokens=len(chunk.token_ids_diff))
        if count[0] % 3 == 0:
            return emit(chunk.text_diff.upper())
        return emit(chunk.text_diff)

    def close(self, request_id: int) -> None:
        self._counts.close(request_id)


class Undeclared(Chequered):
    """The same, but nobody may show it an output again."""

    resumable = False


class Forgetful(Chequered):
    """Declares what is not so: where it is shown an output again it judges otherwise."""

    def __call__(self, chunk: Chunk) -> Verdict:
        verdict = super().__call__(chunk)
        return emit(chunk.text_diff + "!") if chunk.replay else verdict
