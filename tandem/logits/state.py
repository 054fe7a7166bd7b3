"""The processors of one sequence while it runs.

An engine keeps one RequestLogits on its own request object, so that the state is gone with the
request: there is no map to prune and no id to collide (S3-090, S3-093, S3-095). User code is called
here alone; whatever it does wrong becomes a value.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Sequence
from pathlib import Path

from tandem.errors import ProcessorError
from tandem.logits.processor import LogitsProcessor, Need, Row, TokenHistory, needs_of
from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorSpec

log = logging.getLogger(__name__)


class RequestLogits:
    """Fresh processors for one sequence, applied in the order of its spec (S1-042)."""

    __slots__ = ("_named", "error")

    error: ProcessorError | None
    """What ended the use of the processors; once set it stays."""

    def __init__(self, named: Sequence[tuple[str, LogitsProcessor]]) -> None:
        self._named = tuple(named)
        self.error = None

    @staticmethod
    def create(registry: Registry, spec: LogitsProcessorSpec) -> RequestLogits:
        """Raises RequestError, as `Registry.create`."""
        return RequestLogits([(entry.name, registry.create(entry)) for entry in spec.entries])

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset[Need]().union(*(needs_of(processor) for _, processor in self._named))

    def apply(self, history: TokenHistory, row: Row) -> ProcessorError | None:
        """Let each processor edit `row`, (vocabulary,), in place.

        Returns what went wrong: a processor raised, returned another row, or left nothing that can
        be sampled (NaN, or every token forbidden). The row is then all zero, safe to sample; the
        engine must end the sequence with the error and show nothing of the step. Never raises.
        """
        if self.error is None:
            for name, processor in self._named:
                self.error = _apply_one(name, processor, history, row)
                if self.error is not None:
                    break
        if self.error is not None:
            row[:] = 0.0
        return self.error


def _apply_one(
    name: str, processor: LogitsProcessor, history: TokenHistory, row: Row
) -> ProcessorError | None:
    try:
        answer: object = processor(history, row)  # type: ignore[func-returns-value]
        # One reduction sees NaN, +inf and a row without a single possible token.
        usable = math.isfinite(float(row.max()))
    except Exception as error:  # noqa: BLE001 - user code becomes an outcome here
        return _failed(name, f"raised {type(error).__name__}", _place(error), error)
    if answer is not None and answer is not row:
        return _failed(name, "returned a value: it must edit the row in place")
    if not usable:
        return _failed(name, "left no token to sample: the row's maximum is not finite")
    return None


def _failed(
    name: str, what: str, place: str = "", cause: Exception | None = None
) -> ProcessorError:
    """The exception's own text is left out: it may quote the prompt or the output."""
    log.warning(
        "logits processor failed", extra={"processor": name, "reason": f"{what} {place}".strip()}
    )
    error = ProcessorError(f"logits processor {name!r} {what}")
    error.__cause__ = cause
    return error


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
