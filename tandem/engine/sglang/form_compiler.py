"""Compiles forms as SGLang's scheduler will: with its own grammar backend, made as it makes it.

Runs in a process that compiles forms (tandem.logits.forms.process), never in the worker's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from tandem.logits.forms.compiler import NO_ANSWER, REHEARSED_TOKENS, Kind, compile_form
from tandem.logits.model import Model

_PLACE = re.compile(r"^\[[\d:]+\] \S+: ")
"""Where in xgrammar's code a message comes from."""


class SglangCompiler:
    """Compiles, and then rehearses an answer: a form that allows no token would leave SGLang's
    sampler a row of nothing.
    """

    def __init__(
        self,
        *,
        backend: str,
        model_path: str,
        tokenizer_path: str,
        vocabulary: int,
        eos_token_ids: list[int],
        any_whitespace: bool,
        max_whitespace: int | None,
    ) -> None:
        self._model = Model(
            vocabulary=vocabulary,
            eos_token_ids=eos_token_ids,
            tokenizer_path=Path(model_path) / "tokenizer.json",
        )
        self._backend = _BACKENDS[backend](
            tokenizer_path, vocabulary, eos_token_ids, any_whitespace, max_whitespace
        )

    def compile(self, kind: Kind, source: str) -> bytes:
        """Nothing but what a choice becomes: a grammar goes to SGLang as it was written."""
        if kind == "choice":
            return compile_form(kind, source, self._model)
        if self._backend is None:
            raise ValueError("this deployment's engine has no grammars")
        compilers: dict[str, Callable[[str], Any]] = {
            "json_schema": self._backend.dispatch_json,
            "regex": self._backend.dispatch_regex,
            "ebnf": self._backend.dispatch_ebnf,
        }
        if "\0" in source or "\\u0000" in source:
            raise ValueError("a form must not have NUL characters")
        grammar = compilers[kind](source)
        message = getattr(grammar, "error_message", None)
        if message is not None:
            if "bad_alloc" in message:
                raise MemoryError
            raise ValueError(_PLACE.sub("", message).strip())
        self._rehearse(grammar)
        return b""

    def _rehearse(self, grammar: Any) -> None:
        """Take some tokens of an answer. Raises ValueError where there are none."""
        import torch

        size = self._model.vocabulary
        # Not by the backend, which would pin it: a fork must not touch CUDA.
        mask = torch.full((1, -(-size // 32)), -1, dtype=torch.int32)
        words = mask.numpy().view(numpy.uint8)[0]
        for _ in range(REHEARSED_TOKENS):
            mask.fill_(-1)
            grammar.fill_vocab_mask(mask, 0)
            allowed = numpy.flatnonzero(numpy.unpackbits(words, bitorder="little")[:size])
            if not len(allowed):
                raise ValueError(NO_ANSWER)
            token = int(allowed[len(allowed) // 2])
            grammar.accept_token(token)
            if token in self._model.eos_token_ids or grammar.is_terminated():
                return


def _none(*_: Any) -> None:
    return None


def _llguidance(
    tokenizer_path: str, vocabulary: int, eos: list[int], any_whitespace: bool, _: int | None
) -> Any:
    from sglang.srt.constrained.llguidance_backend import GuidanceBackend
    from sglang.srt.utils.hf_transformers_utils import get_tokenizer

    from tandem.engine.sglang.guidance import bound_steps

    bound_steps()
    return GuidanceBackend(
        tokenizer=get_tokenizer(tokenizer_path),
        any_whitespace=any_whitespace,
        n_vocab=vocabulary,
        eos_token_ids=set(eos),
    )


def _xgrammar(
    tokenizer_path: str,
    vocabulary: int,
    eos: list[int],
    any_whitespace: bool,
    max_whitespace: int | None,
) -> Any:
    from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend
    from sglang.srt.utils.hf_transformers_utils import get_tokenizer

    return XGrammarGrammarBackend(
        get_tokenizer(tokenizer_path),
        vocab_size=vocabulary,
        model_eos_token_ids=eos,
        any_whitespace=any_whitespace,
        max_whitespace_cnt=max_whitespace,
    )


_BACKENDS: dict[str, Callable[..., Any]] = {
    "none": _none,
    "llguidance": _llguidance,
    "xgrammar": _xgrammar,
}
"""As sglang.srt.constrained.base_grammar_backend.create_grammar_backend makes them."""
