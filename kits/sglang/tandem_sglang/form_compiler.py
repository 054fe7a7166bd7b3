"""Compiles forms as SGLang's scheduler will: with its own grammar backend, made as it makes it.

Runs in a process that compiles forms (tandem.logits.forms.process), never in the worker's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy

from tandem.logits.forms.compiler import (
    CompiledForm,
    Kind,
    closing_first,
    compile_form,
    rehearse,
    shortest_choice,
    special_tokens,
)
from tandem.logits.forms.tagged import Tags, blamed, lark
from tandem.logits.model import Model
from tandem_sglang.arguments import TAGGED_FIELDS

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
            tokenizer_path=f"{model_path}/tokenizer.json",
        )
        closing_first(self._model)  # what forks share
        self._backend: Any = None
        self._tagged_field = TAGGED_FIELDS[backend]
        if backend == "llguidance":
            self._backend = _llguidance(tokenizer_path, vocabulary, eos_token_ids, any_whitespace)
            self._write_tags = _lark(self._backend, self._model)
        elif backend == "xgrammar":
            self._backend = _xgrammar(
                tokenizer_path, vocabulary, eos_token_ids, any_whitespace, max_whitespace
            )
            self._write_tags = _structural_tag(self._model, any_whitespace)

    def compile(self, kind: Kind, source: str) -> CompiledForm:
        """What a choice or tags become; any other form goes to SGLang as it was written."""
        if kind == "choice":
            answers = compile_form(kind, source, self._model)
            return CompiledForm(answers, shortest_choice(answers))
        if self._backend is None:
            raise ValueError("this deployment's engine has no grammars")
        field: str = kind
        written = source
        if kind == "tagged":
            field, written = self._tagged_field, self._write_tags(Tags.of(source))
        compilers: dict[str, Callable[[str], Any]] = {
            "json_schema": self._backend.dispatch_json,
            "regex": self._backend.dispatch_regex,
            "ebnf": self._backend.dispatch_ebnf,
            "structural_tag": self._backend.dispatch_structural_tag,
        }
        if "\0" in source or "\\u0000" in source:
            raise ValueError("a form must not have NUL characters")
        grammar = compilers[field](written)
        message = getattr(grammar, "error_message", None)
        if message is not None:
            if "bad_alloc" in message:
                raise MemoryError
            told = words(message)
            raise ValueError(blamed(told) if kind == "tagged" else told)
        shortest = rehearse(lambda: _Steps(grammar.copy(), self._model), self._model)
        return CompiledForm(written.encode() if kind == "tagged" else b"", shortest)


class _Steps:
    """The steps of an answer by SGLang's grammar."""

    def __init__(self, grammar: Any, model: Model) -> None:
        import torch

        self._grammar = grammar
        self._model = model
        # Not by the backend, which would pin it: a fork must not touch CUDA.
        self._mask = torch.full((1, -(-model.vocabulary // 32)), -1, dtype=torch.int32)
        self._words = self._mask.numpy().view(numpy.uint8)[0]

    def allowed(self) -> Any:
        self._mask.fill_(-1)
        self._grammar.fill_vocab_mask(self._mask, 0)
        return numpy.unpackbits(self._words, bitorder="little")[: self._model.vocabulary]

    def take(self, token: int) -> bool:
        self._grammar.accept_token(token)
        return token in self._model.eos_token_ids or self._grammar.is_terminated()


def words(error: str) -> str:
    """What xgrammar says of a form, for the client."""
    return _PLACE.sub("", error).strip()


def _llguidance(tokenizer_path: str, vocabulary: int, eos: list[int], any_whitespace: bool) -> Any:
    """The backend, as SGLang's create_grammar_backend makes it."""
    from sglang.srt.utils.hf_transformers_utils import get_tokenizer

    from tandem_sglang.guidance import BoundedBackend

    return BoundedBackend(
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
    """Likewise."""
    from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend
    from sglang.srt.utils.hf_transformers_utils import get_tokenizer

    return XGrammarGrammarBackend(
        get_tokenizer(tokenizer_path),
        vocab_size=vocabulary,
        model_eos_token_ids=eos,
        any_whitespace=any_whitespace,
        max_whitespace_cnt=max_whitespace,
    )


def _lark(backend: Any, model: Model) -> Callable[[Tags], str]:
    """How the backend is told of calls between tags."""
    special = special_tokens(model, backend.llguidance_tokenizer.is_special_token)
    return lambda tags: lark(tags, special)


def _structural_tag(model: Model, any_whitespace: bool) -> Callable[[Tags], str]:
    """Likewise."""
    from tandem_sglang.structural_tags import structural_tag

    special = special_tokens(model, lambda _: True)
    return lambda tags: structural_tag(tags, special, any_whitespace=any_whitespace)
