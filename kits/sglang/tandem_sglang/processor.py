"""Runs in SGLang's scheduler process: the class through which SGLang applies logits processors.

SGLang builds an instance of it for each batch and drops it with the batch, so what all have in
common is this process's. An exception here would end the scheduler with every request it holds, so
each becomes the end of one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

from tandem_sglang import failures
from tandem_sglang.rows import RowEditor

_editor: RowEditor | None = None


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
        verdicts = _editor.edit(logits, custom_param_list or ())
        if verdicts is not None:
            failures.note(
                verdicts.codes,
                lambda codes, step: replace(verdicts, codes=codes).tell(failures.end, step),
            )
        return logits
