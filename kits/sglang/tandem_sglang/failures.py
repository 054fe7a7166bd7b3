"""Runs in SGLang's scheduler process: ends requests that a step has failed for, where the tokens of
that step are taken in, and nothing of it is shown.

Which ones failed is read once the step's tokens have been copied, and never before: a host that
asks a GPU earlier waits for the whole step, and overlap scheduling is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sglang.srt.managers.schedule_batch import FINISH_ABORT

from tandem.errors import TandemError
from tandem_sglang.additions import Additions
from tandem_sglang.chunks import ERROR_TYPES

_SERVER_ERROR = 500
_NOTED = "_tandem_failures"
Tell = Callable[[Any, Sequence[Any]], None]
"""Ends what has failed, by codes that are on the host, and the step's requests, row by row."""


@dataclass(frozen=True, slots=True)
class Noted:
    """What a step may have failed for."""

    codes: Any
    """A tensor, beside the step's logits."""
    tell: Tell


_latest: list[Noted] = []
"""Failures noted for the step that is sampled now, until the step's result takes them."""
_at_once = False


def tell_at_once(_: Additions) -> None:
    """Where nothing keeps with a step what was noted for it (isolation.py): tell it as it is noted,
    which waits for the GPU.
    """
    global _at_once
    _at_once = True


def note(codes: Any, tell: Tell) -> None:
    """Have `tell` called with `codes`, a tensor, before the tokens that are sampled now are taken
    in.
    """
    if _at_once:
        tell(codes, ())
    else:
        _latest.append(Noted(codes, tell))


def end(request: Any, error: TandemError) -> None:
    """End a request with an error of ERROR_TYPES instead of its next token."""
    request.to_finish = FINISH_ABORT(error.message, _SERVER_ERROR, ERROR_TYPES[type(error)])


def taken() -> list[Noted]:
    """What was noted since, for the step that has been sampled."""
    noted = _latest.copy()
    _latest.clear()
    return noted


def keep(result: Any, noted: Sequence[Noted]) -> None:
    """With the result of the step that they were noted for: other steps may be on their way, and
    under pipeline parallelism another's result is taken in next.
    """
    if noted:
        setattr(result, _NOTED, noted)


def kept(result: Any) -> Sequence[Noted]:
    """What was noted for that result, which has it no longer: SGLang's loops keep results, and what
    is said of rows is not to be kept with them.
    """
    return vars(result).pop(_NOTED, ())  # type: ignore[no-any-return]


def tell(batch: Any, result: Any) -> None:
    """End what was noted for a result, before the tokens of its batch are taken in."""
    noted = kept(result)
    if noted and result.copy_done is not None:
        result.copy_done.synchronize()
    for each in noted:
        each.tell(each.codes, batch.reqs)
