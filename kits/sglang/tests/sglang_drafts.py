"""What Tandem does with grammars where SGLang verifies drafts: of sglang_scheduler_side.py."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.speculative import spec_utils
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import _RESERVED_ALIASES
from sglang.srt.utils.hf_transformers_utils import get_tokenizer
from sglang_units import agreeing

from tandem_sglang import arguments, drafts, failures, options, server_arguments
from tandem_sglang.grammar_backends import OwnGuidanceBackend

MODEL = Path(__file__).resolve().parents[3] / "model" / "tandem-tiny"
VOCABULARY, END = 2048, 1
FREE = "free"
# After the token that is verified: one draft, one behind it, the end behind that; one beside it.
NEXT, BESIDE = [1, 2, 3, -1, -1], [-1, 4, -1, -1, -1]


class Broken(SimpleNamespace):
    """As a matcher that cannot go on, and cannot go back."""

    def is_error(self) -> bool:
        return True

    def get_error(self) -> str:
        return "secret"

    def rollback(self, tokens: int) -> None:
        raise RuntimeError("secret")


def forms_where_drafts_are_verified() -> Any:
    """What may follow each draft of three requests, the form of the second of which fails and the
    third of which has none; why they end; and whether the first's form stands where it stood. Of
    one rank, and of two, on the other of which nothing has failed, or the first's form alone.
    """
    tokenizer = get_tokenizer(str(MODEL))
    a, b = (tokenizer.encode(text, add_special_tokens=False)[-1] for text in "ab")
    backend = OwnGuidanceBackend(1, tokenizer=tokenizer, n_vocab=VOCABULARY, eos_token_ids={END})
    tree = [torch.tensor([row] * 3) for row in (NEXT, BESIDE, [a, b, END, a, a])]
    original = spec_utils.generate_token_bitmask
    nothing = {1: torch.tensor([0, 0, 0]), 2: torch.tensor([[0, 0, 0], [0, 0, 0]])}
    the_first = {1: torch.tensor([1, 0, 0]), 2: torch.tensor([[2, 0, 0], [-2, 0, 0]])}
    found = []
    for elsewhere in (None, nothing, the_first):
        agree = functools.partial(_agree, elsewhere) if elsewhere else None
        spec_utils.generate_token_bitmask = original
        drafts.end_alike(agreeing(agree))
        good, bad = backend.dispatch_regex("ab"), backend.dispatch_regex("ab")
        good.accept_token(a)
        bad.ll_matcher = Broken()
        reqs = [_request(each) for each in (good, bad, None)]
        mask, _ = spec_utils.generate_token_bitmask(reqs, *tree, VOCABULARY)
        (noted,) = failures.taken()
        noted.tell(noted.codes, reqs)
        now = torch.full_like(mask, -1)
        good.fill_vocab_mask(now, 0)
        found.append(
            [
                [[_allowed(row) for row in rows] for rows in mask.view(3, 5, -1)],
                [each.to_finish and each.to_finish.message for each in reqs],
                _allowed(now[0]) == [b],
            ]
        )
    spec_utils.generate_token_bitmask = original
    return [[b], [END], *found]


def ways_to_draft_that_apply_no_grammars() -> Any:
    names = {each.name for each in SpeculativeAlgorithm} | _RESERVED_ALIASES
    names -= {SpeculativeAlgorithm.NONE.name, *_refused()}
    return sorted(
        name
        for name in names
        if arguments.without_grammars(
            options.parse({"server_args": f'{{"speculative_algorithm": "{name}"}}'})
        )
    )


def _refused() -> set[str]:
    values = server_arguments.REFUSED_VALUES.values()
    return {value for pairs in values for name, value in pairs if name == "speculative_algorithm"}


def _agree(elsewhere: dict[int, Any], codes: Any) -> None:
    torch.maximum(codes, elsewhere[codes.ndim], out=codes)


def _request(grammar: Any) -> Any:
    return SimpleNamespace(
        grammar=grammar, to_finish=None, finished=lambda: False, inflight_middle_chunks=0
    )


def _allowed(words: Any) -> Any:
    bits = (words[:, None] >> torch.arange(32, dtype=torch.int32)) & 1
    found = bits.flatten()[:VOCABULARY].nonzero().flatten().tolist()
    return FREE if len(found) == VOCABULARY else found
