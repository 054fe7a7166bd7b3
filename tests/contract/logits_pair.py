"""A sequence with logits processors through a prefill and a decode worker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from logits_cases import LENGTH, PROMPT
from worker_pair import Pair, Sequence_

from tandem.v1 import common_pb2


def spec_of(*given: Any) -> common_pb2.LogitsSpec:
    return common_pb2.LogitsSpec(
        processors=[
            common_pb2.LogitsProcessor(name=name, args_json=json.dumps(args))
            for name, args in given
        ]
    )


async def start(
    pair: Pair,
    *given: Any,
    bias: common_pb2.EmbeddingBias | None = None,
    shown: Sequence[int] = (),
    **fields: Any,
) -> Sequence_:
    task: dict[str, Any] = {
        "prompt_text": "",
        "prompt_token_ids": PROMPT,
        "want_token_ids": True,
        "embedding_bias": bias,
        "shown_special_tokens": shown,
    }
    return await pair.start(
        task={**task, "logits": spec_of(*given)},
        **{"max_tokens": LENGTH, "ignore_eos": False, **fields},
    )


def tokens_of(sequence: Sequence_) -> list[int]:
    """Where every open sequence wants its token ids, as all do here."""
    found: list[int] = []
    for columns in (*sequence.pair.prefill.told.columns, *sequence.pair.decode.told.columns):
        place = 0
        for number, count in zip(columns.sequence, columns.token_count, strict=True):
            if number == sequence.number:
                found += columns.token_id[place : place + count]
            place += count
    return found
