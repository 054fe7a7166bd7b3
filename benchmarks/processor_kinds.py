"""The ready-made logits processors that run in SGLang's scheduler, with arguments for benchmarks,
and requests that ask for them.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tandem.logits.spec import LogitsProcessorEntry, write_entries
from tandem_sglang.requests import HISTORY_KEY, SPEC_KEY

TOKENIZER = Path(__file__).resolve().parent.parent / "model" / "tandem-tiny" / "tokenizer.json"
KINDS: Mapping[str, Mapping[str, Any]] = {
    "forced_sequence": {"token_ids": list(range(5, 1000))},
    "allowed_tokens": {"token_ids": list(range(1000, 2000))},
    "banned_tokens": {"token_ids": list(range(1000, 1100))},
    "banned_sequences": {"sequences": [[5 + n, 6 + n, 7 + n] for n in range(50)]},
    "bias": {"bias": {str(n): 1.0 for n in range(1000, 1100)}},
    "min_new_tokens": {"count": 1000},
    "repetition_penalty": {"penalty": 1.2},
    "no_repeat_ngram": {"size": 3},
    "temperature_schedule": {"points": [[0, 1.0], [500, 0.5]]},
    "thinking_budget": {"budget": 10, "end_token_ids": [9, 10]},
    "stop_at_sentence": {"after": 10},
    "watermark": {"key": "benchmark"},
    "choice": {"token_ids": [[5, 6, 7], [8, 9]]},
}
"""json_schema, regex, ebnf and tagged are missing: on SGLang its own grammar does their work."""


class Request(SimpleNamespace):
    """The part of SGLang's request that processors read."""

    def finished(self) -> bool:
        return False

    def grow(self, token_id: int) -> None:
        """Add a token to the sequence, as a step does."""
        self.output_ids.append(token_id)
        self.kv.kv_committed_len += 1


def request(name: str, args: Mapping[str, Any]) -> Request:
    """One whose prompt has 512 tokens, and nothing generated yet."""
    params = {SPEC_KEY: write_entries((LogitsProcessorEntry(name, args),)), HISTORY_KEY: True}
    made = Request(
        kv=SimpleNamespace(kv_committed_len=512),
        origin_input_ids=array("q", [(7 * n) % 900 + 100 for n in range(512)]),
        output_ids=array("q"),
        to_finish=None,
        sampling_params=SimpleNamespace(custom_params=params),
    )
    made.params = params | {"__req__": made}
    return made
