"""Processors that a test deployment adds. They make what is generated a matter of the processors
alone, so that the same spec must give the same tokens on every engine and in every mode.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any, ClassVar, Literal

import numpy

from tandem.logits import BaseLogitsProcessor, Need, Row, TokenHistory
from tandem.logits.arrays import like
from tandem.logits.callbacks import batched_callback, callback

SETTINGS = {
    name: f"logits_probe:{found}"
    for name, found in {
        "probe": "Probe",
        "counted": "Counted",
        "fault": "Fault",
        "rank_fault": "RankFault",
        "count_calls": "count_calls",
        "count_rows": "count_rows",
    }.items()
}
FLAGS = ("--logits-processors=" + ",".join(f"{name}={use}" for name, use in SETTINGS.items()),)
ONE_CALL, ONE_ROW = 601, 301
_calls: Counter[tuple[int, int]] = Counter()


class Probe(BaseLogitsProcessor):
    """Instead of the model: a row that the position and all tokens so far decide. A position or a
    history that is wrong by one gives other tokens from there on.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HISTORY, Need.VOCABULARY})
    keeps_state: ClassVar[bool] = False

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        seed = (self._seed, input_ids.position, len(input_ids), sum(input_ids), input_ids[-1])
        values: Any = numpy.random.default_rng(seed).normal(size=len(logits)) * 3
        logits[:] = like(logits, values.astype(numpy.float32))


class Counted(BaseLogitsProcessor):
    """Forces its tokens by a counter of its own, as many processors are written, and declares
    nothing.
    """

    def __init__(self, token_ids: list[int]) -> None:
        self._token_ids = token_ids
        self._next = 0

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        logits[:] = -math.inf
        logits[self._token_ids[self._next % len(self._token_ids)]] = 0.0
        self._next += 1


class Fault(BaseLogitsProcessor):
    """Does something wrong at one position."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.POSITION})
    keeps_state: ClassVar[bool] = False

    def __init__(
        self, kind: Literal["raise", "exit", "nan", "all", "shape", "answer", "slow"], at: int
    ) -> None:
        self._kind, self._at = kind, at

    def __call__(self, input_ids: TokenHistory, logits: Row) -> Any:
        if input_ids.position != self._at:
            return None
        match self._kind:
            case "raise":
                raise KeyError("the prompt was: secret")
            case "exit":
                raise SystemExit(3)
            case "nan":
                logits[7] = math.nan
            case "all":
                logits[:] = -math.inf
            case "shape":
                logits[:] = logits[:5]
            case "answer":
                return logits[:5]
            case "slow":
                until = time.monotonic() + 60
                while time.monotonic() < until:
                    pass
        return None


class RankFault(BaseLogitsProcessor):
    """Forces its token, but for one position at which one of an engine's ranks does otherwise."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.POSITION})
    keeps_state: ClassVar[bool] = False

    def __init__(
        self,
        kind: Literal["build", "raise", "nan", "slow", "other", "none"],
        rank: int = 0,
        at: int = 0,
        token: int = 300,
        instead: int = 1,
    ) -> None:
        """`instead`: the token that "other" forces."""
        self._kind, self._at = kind, at
        self._token, self._instead = token, instead
        self._here = this_rank() == rank
        if kind == "build" and self._here:
            raise KeyError("the prompt was: secret")

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        odd = self._here and input_ids.position == self._at
        if odd and self._kind == "raise":
            raise KeyError("the prompt was: secret")
        if odd and self._kind == "slow":
            time.sleep(30)
        _force(logits, self._instead if odd and self._kind == "other" else self._token)
        if odd and self._kind == "nan":
            logits[7] = math.nan


def this_rank() -> int:
    """Of this scheduler; -1 in another process, such as the worker's own, which checks requests."""
    from torch import distributed

    return distributed.get_rank() if distributed.is_initialized() else -1


@callback
def count_calls(
    req_id: int, logits: Any, token_ids: Any, stream_ptr: int | None, client_id: int | None
) -> None:
    """The token says how often this process was called for the request at its position."""
    assert (client_id, len(token_ids), stream_ptr) == (req_id + 1, 1, None)
    place = (req_id, len(token_ids[0]))
    _force(logits, ONE_CALL + _calls[place])
    _calls[place] += 1


@batched_callback
def count_rows(
    req_ids: list[int],
    logits: list[Any],
    token_ids: list[list[list[int]]],
    stream_ptr: int | None,
    client_ids: list[int | None],
) -> None:
    """The token says for how many requests this one call was."""
    assert client_ids == [number + 1 for number in req_ids]
    assert len(token_ids) == len(req_ids)
    for row in logits:
        _force(row, ONE_ROW - 1 + len(req_ids))


def _force(logits: Any, token: int) -> None:
    logits[:] = -math.inf
    logits[..., token] = 0.0
