"""Runs in SGLang's scheduler processes: the grammar backends that Tandem registers there in place
of SGLang's own of the same names. Their grammars are watched, and what they keep is bounded: SGLang
would keep all for ever.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import Any

from sglang.srt.constrained.base_grammar_backend import register_grammar_backend
from sglang.srt.constrained.llguidance_backend import GuidanceGrammar
from sglang.srt.constrained.xgrammar_backend import (
    GrammarCompiler,
    XGrammarGrammar,
    XGrammarGrammarBackend,
)
from sglang.srt.runtime_context import get_serving

from tandem_sglang.additions import Additions
from tandem_sglang.grammar_queue import KeptAlike
from tandem_sglang.grammars import Watched
from tandem_sglang.guidance import BoundedBackend

_ANY_GRAMMAR = 'root ::= "a"'


class WatchedGuidance(Watched, GuidanceGrammar):
    """A form by llguidance."""


class WatchedXgrammar(Watched, XGrammarGrammar):
    """A form by xgrammar."""


class OwnGuidanceBackend(KeptAlike, BoundedBackend):
    """Tandem's llguidance."""

    kind = WatchedGuidance

    def __init__(self, max_bytes: int, **given: Any) -> None:
        """It keeps `max_bytes` of grammars at most."""
        super().__init__(**given)
        self.cache: Any = GrammarCache(max_bytes)
        self.compiled = {}


class OwnXgrammarBackend(KeptAlike, XGrammarGrammarBackend):
    """Tandem's xgrammar."""

    grammar_compiler: Any

    def __init__(self, max_bytes: int, **given: Any) -> None:
        """Half of `max_bytes` is for grammars, by which the form of a later request is found, half
        for xgrammar's own cache, by which sequences that come together share a compilation.
        """
        super().__init__(**given)
        half = max_bytes // 2
        self.cache: Any = GrammarCache(half)
        self.compiled = {}
        made = self.grammar_compiler.compile_grammar(_ANY_GRAMMAR)
        self.grammar_compiler = GrammarCompiler(made.tokenizer_info, cache_limit_bytes=half)

    def _from_context(self, *given: Any) -> Any:
        made = super()._from_context(*given)
        made.__class__ = WatchedXgrammar
        return made


def register(additions: Additions) -> None:
    """Call it before the scheduler starts."""
    max_bytes = additions.grammar_cache_bytes
    register_grammar_backend("llguidance", functools.partial(_guidance, max_bytes))
    register_grammar_backend("xgrammar", functools.partial(_xgrammar, max_bytes))


def _guidance(max_bytes: int, _args: Any, tokenizer: Any, vocabulary: int, eos: Any) -> Any:
    return OwnGuidanceBackend(
        max_bytes,
        tokenizer=tokenizer,
        any_whitespace=not get_serving().constrained_json_disable_any_whitespace,
        n_vocab=vocabulary,
        eos_token_ids=eos,
    )


def _xgrammar(max_bytes: int, _args: Any, tokenizer: Any, vocabulary: int, eos: Any) -> Any:
    return OwnXgrammarBackend(
        max_bytes,
        tokenizer=tokenizer,
        vocab_size=vocabulary,
        model_eos_token_ids=list(eos) if eos else None,
        any_whitespace=not get_serving().constrained_json_disable_any_whitespace,
        max_whitespace_cnt=get_serving().constrained_json_max_whitespace_cnt,
    )


_ENTRY_BYTES = 64 * 1024
"""Taken of a grammar that does not say how large it is."""


class GrammarCache(OrderedDict[Any, Any]):
    """SGLang's cache of a backend, by key. The least recently used goes first."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._bytes = 0

    def get(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            return default
        self.move_to_end(key)
        return self[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if key in self:
            del self[key]
        self._bytes += _size(value)
        super().__setitem__(key, value)
        while self._bytes > self._max_bytes and len(self) > 1:
            del self[next(iter(self))]

    def __delitem__(self, key: Any) -> None:
        self._bytes -= _size(self[key])
        super().__delitem__(key)

    def clear(self) -> None:
        super().clear()
        self._bytes = 0


def _size(grammar: Any) -> int:
    compiled = getattr(grammar, "ctx", None)
    return _ENTRY_BYTES if compiled is None else int(compiled.memory_size_bytes)
