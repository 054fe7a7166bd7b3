"""Runs in SGLang's scheduler process: applies the logits processors that requests name.

SGLang builds an instance of the class below for each batch and drops it with the batch, so nothing
is kept on it: a sequence's processors live on its own request object and go with it (S3-090,
S3-093). An exception here would end the scheduler with every request it holds, so each becomes the
end of one row.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

from tandem.engine.sglang.outcomes import PROCESSOR_ERROR_TYPE
from tandem.engine.sglang.requests import SPEC_KEY
from tandem.errors import ProcessorError, RequestError, StartError
from tandem.logits.processor import TokenHistory
from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec
from tandem.logits.state import RequestLogits

_STATE = "_tandem_logits"
_SERVER_ERROR = 500


class TandemLogitProcessor(CustomLogitProcessor):
    """Pickled by reference: a request carries this class's import path, never code."""

    def __call__(
        self, logits: Any, custom_param_list: Sequence[Mapping[str, Any]] | None = None
    ) -> Any:
        """Edits `logits`, (rows, vocabulary) float32, in place: row i belongs to
        `custom_param_list[i]`, whose "__req__" is SGLang's request."""
        for row, params in zip(logits, custom_param_list or (), strict=True):
            _apply(params, row)
        return logits


def _apply(params: Mapping[str, Any], row: Any) -> None:
    request = params["__req__"]
    if request.to_finish is not None or request.finished():
        return
    # Not len(output_ids): under overlap scheduling it is one token behind.
    position = request.kv.kv_committed_len - len(request.origin_input_ids)
    if position < len(request.output_ids):
        return  # a middle chunk of a (repeated) prefill: SGLang throws its sample away
    error = _edit(request, params[SPEC_KEY], position, row)
    if error is not None:
        request.to_finish = FINISH_ABORT(error.message, _SERVER_ERROR, PROCESSOR_ERROR_TYPE)


def _edit(request: Any, spec: str, position: int, row: Any) -> ProcessorError | None:
    try:
        state = getattr(request, _STATE, None)
        if state is None:
            state = _create(spec)
            setattr(request, _STATE, state)
    except (RequestError, ProcessorError, StartError) as error:
        row.zero_()
        return ProcessorError(f"a logits processor could not be built in the scheduler: {error}")
    return state.apply(_history(request, position), row)


def _create(encoded: str) -> RequestLogits:
    content = json.loads(encoded)
    spec = LogitsProcessorSpec(
        tuple(LogitsProcessorEntry(name, args) for name, args in content["processors"])
    )
    return RequestLogits.create(_registry(tuple(sorted(content["import_paths"].items()))), spec)


@functools.lru_cache(maxsize=64)
def _registry(paths: tuple[tuple[str, str], ...]) -> Registry:
    return Registry.from_import_paths(dict(paths))


def _history(request: Any, position: int) -> TokenHistory:
    """The tokens too, where they are exact: not under plain overlap scheduling."""
    if len(request.output_ids) == position:
        return TokenHistory(request.origin_input_ids, request.output_ids)
    return TokenHistory.without_tokens(
        prompt_length=len(request.origin_input_ids), position=position
    )
