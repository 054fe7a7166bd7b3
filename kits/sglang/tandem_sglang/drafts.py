"""Runs in SGLang's scheduler processes under speculative decoding: what grammars.py says of the
rows of a step holds where drafts are verified, too.

SGLang tries the drafts of a step with the grammar of their request, fills a row of the mask for
each that fits, and takes them back. A grammar that fails meanwhile leaves the rows from there on
free. Ranks that share a sequence free the same ones before anybody is asked for tokens: otherwise
they would accept other drafts, and no longer have the same KV.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.speculative import spec_utils

from tandem_sglang import grammars, ranks
from tandem_sglang.additions import Additions
from tandem_sglang.tensors import on_device


def end_alike(additions: Additions) -> None:
    """End the requests of grammars that have failed with the tokens of that step, as
    `grammars.end_alike` does. Call it before the scheduler starts.
    """
    agree, device = ranks.agree_of(additions), additions.device
    fill = spec_utils.generate_token_bitmask

    @functools.wraps(fill)
    def generate_token_bitmask(reqs: Sequence[Any], *tree: Any) -> tuple[Any, Any]:
        mask, any_grammar = fill(reqs, *tree)
        if mask is not None:
            of_rows = [each.grammar for each in reqs]
            if agree is not None:
                mask = _freed_alike(mask.to(device, non_blocking=True), of_rows, agree)
            grammars.note_failures(of_rows, device, agree)
        return mask, any_grammar

    spec_utils.generate_token_bitmask = generate_token_bitmask


def _freed_alike(mask: Any, of_rows: Sequence[Any], agree: Callable[[Any], None]) -> Any:
    """`mask`, (rows times drafts, words), without what it says of rows that any rank failed in."""
    failed = on_device(
        [bool(grammars.failure_of(each)) for each in of_rows], torch.int32, mask.device
    )
    agree(failed)
    drafts = len(mask) // len(of_rows)
    return mask.masked_fill(failed.bool().repeat_interleave(drafts)[:, None], -1)
