"""Applies the processors of a step's rows. User code is called here alone; whatever it does wrong
becomes a value.
"""

from __future__ import annotations

import logging
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.errors import ProcessorError
from tandem.logits import guard
from tandem.logits.history import TokenHistory

if TYPE_CHECKING:
    from tandem.logits.state import Part, RequestLogits

log = logging.getLogger(__name__)
NOWHERE = -1
"""`Part.due` of a processor whose state can be trusted at no position."""


def apply_rows(
    states: Sequence[RequestLogits], histories: Sequence[TokenHistory], logits: Any
) -> list[ProcessorError | None]:
    """Let each sequence's processors edit its row of `logits`, (rows, vocabulary), in place.

    Returns what went wrong, row by row: a processor raised, took too long or returned another row,
    or the processors left nothing that can be sampled (NaN, or every token forbidden). Such a row
    is all zero then, safe to sample; the engine must end the sequence with the error and show
    nothing of the step. Never raises.

    Processors of one place in their specs, and of one class, are called together where that class
    has a batched form.
    """
    for place in range(max((len(state.parts) for state in states), default=0)):
        for batch in _batches(states, place):
            _apply_batch(states, histories, logits, place, batch)
    _refuse_unusable(states, logits)
    for index, state in enumerate(states):
        if state.error is not None:
            logits[index][:] = 0.0
    return [state.error for state in states]


def _batches(states: Sequence[RequestLogits], place: int) -> list[list[int]]:
    """The rows that have a processor at `place`, those together that one call can edit."""
    batches: list[list[int]] = []
    of_class: dict[type, list[int]] = {}
    for index, state in enumerate(states):
        if state.error is not None or place >= len(state.parts):
            continue
        cls = type(state.parts[place].processor)
        if cls in of_class:
            of_class[cls].append(index)
            continue
        batches.append([index])
        if hasattr(cls, "apply_batch"):
            of_class[cls] = batches[-1]
    return batches


def _apply_batch(
    states: Sequence[RequestLogits],
    histories: Sequence[TokenHistory],
    logits: Any,
    place: int,
    batch: list[int],
) -> None:
    for index in batch:
        _catch_up(states[index], place, histories[index], logits[index])
    batch = [index for index in batch if states[index].error is None]
    if len(batch) > 1:
        if _together(states, histories, logits, place, batch):
            return
        for index in batch:  # the failed call may have moved their state
            states[index].parts[place].due = NOWHERE
            _catch_up(states[index], place, histories[index], logits[index])
    for index in batch:
        state = states[index]
        if state.error is None:
            part = state.parts[place]
            row = _in_its_library(part.processor, logits[index])
            state.error = _attempt(part.name, state.seconds, part.processor, histories[index], row)


def _catch_up(state: RequestLogits, place: int, history: TokenHistory, row: Any) -> None:
    """Make the processor at `place` ready for a call at `history`.

    One that keeps state may have been called for earlier positions in another process, or for one
    that an engine repeats.
    """
    part = state.parts[place]
    if part.keeps_state and part.due != history.position:
        row = _in_its_library(part.processor, row)
        state.error = _attempt(part.name, state.seconds, part.renew) or _attempt(
            part.name, state.seconds, part.replay, history, row
        )
    part.due = history.position + 1


def _together(
    states: Sequence[RequestLogits],
    histories: Sequence[TokenHistory],
    logits: Any,
    place: int,
    batch: list[int],
) -> bool:
    """One call for all rows of `batch`. False where it failed, and every row is as it was."""
    parts: list[Part] = [states[index].parts[place] for index in batch]
    cls: Any = type(parts[0].processor)
    total = getattr(cls, "batch_is_total", False)
    in_order = batch == list(range(len(states)))
    rows = _in_its_library(parts[0].processor, logits if in_order else logits[batch])
    edited = rows[list(range(len(batch)))] if in_order and not total else rows
    error = _attempt(
        parts[0].name,
        states[batch[0]].seconds,
        cls.apply_batch,
        [part.processor for part in parts],
        [histories[index] for index in batch],
        edited,
    )
    if error is not None and not (in_order and total):
        return False
    if error is not None:  # it said that this could not happen, so there is nothing to go back to
        for index in batch:
            states[index].error = error
    elif not in_order:
        logits[batch] = edited
    elif edited is not rows:
        rows[:] = edited
    return True


def _attempt(name: str, seconds: float, function: Any, *args: Any) -> ProcessorError | None:
    """One call of user code. A row is its last argument."""
    try:
        answer = guard.call(function, *args, seconds=seconds)
    except BaseException as error:  # noqa: BLE001 - user code becomes an outcome, also sys.exit()
        return _failed(name, guard.words(error, seconds), _place(error))
    if answer is not None and not (args and answer is args[-1]):
        return _failed(name, "returned a value: it must edit the row in place")
    return None


def _refuse_unusable(states: Sequence[RequestLogits], logits: Any) -> None:
    """One reduction over all rows sees NaN, +inf and a row without a single possible token."""
    maxima: Callable[[int], Any] = getattr(logits, "amax", None) or logits.max
    for state, highest in zip(states, maxima(1).tolist(), strict=True):
        if state.error is None and state.parts and not math.isfinite(highest):
            names = "', '".join(part.name for part in state.parts)
            state.error = _failed(names, "left no token to sample: the row's maximum is not finite")


def _in_its_library(processor: object, row: Any) -> Any:
    """The row as the processor's author knows rows: a torch tensor over the same memory where the
    engine has numpy arrays and the module of the processor works with torch.
    """
    if type(row).__module__ != "numpy":
        return row
    module = sys.modules.get(type(processor).__module__)
    torch = getattr(module, "torch", None)
    return row if torch is None else torch.from_numpy(row)


def _failed(name: str, what: str, place: str = "") -> ProcessorError:
    """Neither the exception's own text, which may quote the prompt or the output, nor the exception
    itself, whose traceback would keep the state of the whole batch alive.
    """
    log.warning(
        "logits processor failed", extra={"processor": name, "reason": f"{what} {place}".strip()}
    )
    return ProcessorError(f"logits processor '{name}' {what}")


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
