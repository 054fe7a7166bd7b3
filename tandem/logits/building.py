"""Builds one sequence's processor. A deployment's constructors are called here alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tandem.errors import InvalidRequestError, ProcessorError
from tandem.logits.model import Model
from tandem.logits.processor import LogitsProcessor
from tandem.logits.spec import PARAM
from tandem.usercode.deadline import Guard

DEFAULT_SECONDS = 1.0
"""The limit of one call of a processor."""
_CALLS = 5
"""Building a processor may take as long as this many calls of one."""


def build(
    name: str, make: Callable[..., Any], args: Mapping[str, Any], model: Model, *, seconds: float
) -> LogitsProcessor:
    """A fresh processor, prepared for `model`. `seconds`: the limit of one call of a processor.

    Raises InvalidRequestError where it says that its arguments do not fit (ValueError), and
    ProcessorError where it fails otherwise.
    """
    guard = Guard(seconds * _CALLS)

    def built() -> Any:
        processor = make(**args)
        prepare = getattr(processor, "prepare", None)
        if prepare is not None:
            prepare(model)
        return processor

    try:
        processor: LogitsProcessor = guard.call(built)
    except ValueError as error:
        raise InvalidRequestError(f"logits processor {name!r}: {error}", param=PARAM) from error
    except BaseException as error:
        raise ProcessorError(
            f"logits processor {name!r} could not be built: it {guard.words(error)}"
        ) from error
    return processor
