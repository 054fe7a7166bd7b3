"""Runs in SGLang's scheduler process: the class through which SGLang applies logits processors.

SGLang builds an instance of it for each batch and drops it with the batch, so what all have in
common is this process's. An exception here would end the scheduler with every request it holds, so
each becomes the end of one row.

Which rows ended so is read with the step's tokens, after the same copy, and never before: a host
that asks a GPU earlier waits for the whole step, and overlap scheduling is lost.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from sglang.srt.utils.common import async_d2h

from tandem.engine.sglang.chunks import PROCESSOR_ERROR_TYPE
from tandem.engine.sglang.rows import RowEditor, Verdicts
from tandem.errors import ProcessorError

_SERVER_ERROR = 500
_VERDICTS = "_tandem_verdicts"
_editor: RowEditor | None = None
_latest: Verdicts | None = None
"""What became of the step that was sampled last, until its result has it."""


def use(editor: RowEditor) -> None:
    """The processors of this process. Call it before the scheduler starts."""
    global _editor
    _editor = editor


class TandemLogitProcessor(CustomLogitProcessor):
    """Pickled by reference: a request carries this class's import path, never code."""

    def __call__(
        self, logits: Any, custom_param_list: Sequence[Mapping[str, Any]] | None = None
    ) -> Any:
        """Edits `logits`, (rows, vocabulary) float32, in place."""
        assert _editor is not None, "the scheduler was started without processors"
        global _latest
        _latest = _editor.edit(logits, custom_param_list or ())
        return logits


def read_with_results() -> None:
    """Have requests end where the tokens of their step are taken in. Call it before the scheduler
    starts.
    """
    copy = GenerationBatchResult.copy_to_cpu
    take_in = Scheduler.process_batch_result

    @functools.wraps(copy)
    def copy_to_cpu(self: Any, *args: Any, **kwargs: Any) -> None:
        if (verdicts := _taken()) is not None:
            setattr(self, _VERDICTS, replace(verdicts, codes=async_d2h(verdicts.codes)))
        copy(self, *args, **kwargs)  # and then records the event that is awaited below

    @functools.wraps(take_in)
    def process_batch_result(self: Any, batch: Any, result: Any) -> None:
        _tell(result)
        take_in(self, batch, result)

    GenerationBatchResult.copy_to_cpu = copy_to_cpu
    Scheduler.process_batch_result = process_batch_result


def _tell(result: Any) -> None:
    """SGLang's loops keep a result for longer; what it says of rows is not to be kept with it."""
    verdicts = vars(result).pop(_VERDICTS, None) or _taken()  # without overlap nothing is copied
    if verdicts is not None:
        if result.copy_done is not None:
            result.copy_done.synchronize()
        verdicts.tell(_fail)


def _taken() -> Verdicts | None:
    global _latest
    taken, _latest = _latest, None
    return taken


def _fail(request: Any, error: ProcessorError) -> None:
    request.to_finish = FINISH_ABORT(error.message, _SERVER_ERROR, PROCESSOR_ERROR_TYPE)
