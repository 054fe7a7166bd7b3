"""Builds one sequence's processor. A deployment's constructors are called here alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tandem.errors import InvalidRequestError, ProcessorError
from tandem.logits import backlog
from tandem.logits.model import Model
from tandem.logits.processor import LogitsProcessor
from tandem.logits.spec import PARAM
from tandem.usercode.call import Caller, Failed

DEFAULT_SECONDS = 1.0
"""The limit of one call of a processor."""
_CALLS = 5
"""Building a processor may take as long as this many calls of one."""


def build(
    name: str,
    make: Callable[..., Any],
    args: Mapping[str, Any],
    model: Model | None,
    *,
    seconds: float,
) -> LogitsProcessor:
    """A fresh processor, prepared for `model`; None: for no model. `seconds`: the limit of one call
    of a processor.

    Raises InvalidRequestError where it says that its arguments do not fit (ValueError), and
    ProcessorError where it fails otherwise.
    """
    caller = Caller(seconds * _CALLS, by_cpu_time=True, backlog=backlog.here())
    processor: LogitsProcessor | Failed = caller.call(_built, (make, args, model))
    if not isinstance(processor, Failed):
        return processor
    error = processor.error
    if isinstance(error, ValueError):
        raise InvalidRequestError(
            f"logits processor {name!r}: {processor.text}", param=PARAM
        ) from error
    raise ProcessorError(
        f"logits processor {name!r} could not be built: it {what_failed(processor, caller)}"
    ) from error


def what_failed(failed: Failed, caller: Caller) -> str:
    """What a processor did, in words for its client."""
    if failed.overdue:
        return f"took longer than {caller.seconds * 1000:g} ms"
    return f"raised {failed.kind}"


def _built(given: tuple[Callable[..., Any], Mapping[str, Any], Model | None]) -> Any:
    make, args, model = given
    processor = make(**args)
    if model is not None and (prepare := getattr(processor, "prepare", None)) is not None:
        prepare(model)
    return processor
