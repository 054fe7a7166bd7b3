"""What Tandem changes of grammars in SGLang's scheduler, where one request's must not cost another.

- What is kept of them is bounded: SGLang would keep all for ever.
- A step that one takes too long for ends its request. A form that passed its check was rehearsed
  for its first tokens alone, and xgrammar has no limits for a step, as llguidance has.
- One of a request that goes on behind another engine's tokens is given them first.
- One that raises or allows no token ends its request, and its row is sampled freely once more: an
  exception, or a row of nothing, would end the scheduler.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from time import thread_time
from typing import Any

from sglang.srt.constrained import (
    base_grammar_backend,
    llguidance_backend,
    xgrammar_backend,
)
from sglang.srt.constrained.grammar_manager import GrammarManager

from tandem.engine.sglang import guidance, rows

_ENTRY_BYTES = 64 * 1024
"""Taken of a grammar that does not say how large it is."""
_STEP_SECONDS = 0.1
"""CPU time for one token of one sequence."""
_TOO_SLOW = f"the answer's form takes more than {_STEP_SECONDS * 1000:g} ms of CPU time for a token"
_FAILURE = "_tandem_failure"


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


def bound(max_bytes: int) -> None:
    """What SGLang and xgrammar keep comes to `max_bytes` at most, half of it each: the one finds
    the form of a later request, the other lets sequences that come together share a compilation.
    Call it before the scheduler starts.
    """
    half = max_bytes // 2
    made = base_grammar_backend.BaseGrammarBackend.__init__

    @functools.wraps(made)
    def make(backend: Any) -> None:
        made(backend)
        backend.cache = GrammarCache(half)

    base_grammar_backend.BaseGrammarBackend.__init__ = make
    xgrammar_backend.GrammarCompiler = functools.partial(
        xgrammar_backend.GrammarCompiler, cache_limit_bytes=half
    )


def watch() -> None:
    """End requests whose grammar takes too long, raises or leaves no token. Call it before the
    scheduler starts."""
    guidance.bound_steps()
    for kind in (xgrammar_backend.XGrammarGrammar, llguidance_backend.GuidanceGrammar):
        kind.fill_vocab_mask = _watched_fill(kind.fill_vocab_mask)
        kind.accept_token = _watched_accept(kind.accept_token)
    # llguidance would fill all rows at once, and not say whose grammar failed.
    llguidance_backend.GuidanceGrammar.fill_vocab_mask_batched = staticmethod(
        base_grammar_backend.BaseGrammarObject.fill_vocab_mask_batched
    )


def catch_up() -> None:
    """Give a grammar what another engine has made of its request, once it is ready. Call it before
    the scheduler starts.
    """
    process = GrammarManager.process_req_with_grammar
    ready = GrammarManager.get_ready_grammar_requests

    @functools.wraps(process)
    def process_req_with_grammar(self: Any, req: Any) -> bool:
        waits: bool = process(self, req)
        if not waits:
            _catch_up(req)
        return waits

    @functools.wraps(ready)
    def get_ready_grammar_requests(self: Any) -> Any:
        found = ready(self)
        for req in found:
            _catch_up(req)
        return found

    GrammarManager.process_req_with_grammar = process_req_with_grammar
    GrammarManager.get_ready_grammar_requests = get_ready_grammar_requests


def _catch_up(req: Any) -> None:
    made = rows.made_of(req)
    if not made or req.grammar is None or req.finished() or req.to_finish is not None:
        return
    try:
        for token in req.origin_input_ids[-made:]:
            req.grammar.accept_token(token)
    except ValueError:
        req.set_finish_with_abort("the tokens so far do not fit the answer's form")
    # Decode takes a grammar that has read a token for one that has read prefill's too.
    req.grammar.current_token = None


def _watched_fill(fill: Callable[..., None]) -> Callable[..., None]:
    def fill_vocab_mask(self: Any, vocab_mask: Any, idx: int) -> None:
        began = thread_time()
        try:
            fill(self, vocab_mask, idx)
        except Exception as error:  # noqa: BLE001 - of a library: it would end the scheduler
            setattr(self, _FAILURE, f"the answer's form cannot go on ({type(error).__name__})")
            vocab_mask[idx].fill_(-1)
            return
        if thread_time() - began > _STEP_SECONDS:
            setattr(self, _FAILURE, _TOO_SLOW)
        if not vocab_mask[idx].any():
            setattr(self, _FAILURE, "the answer's form allows no further token")
            vocab_mask[idx].fill_(-1)

    return fill_vocab_mask


def _watched_accept(accept: Callable[..., None]) -> Callable[..., None]:
    def accept_token(self: Any, token: int) -> None:
        if failed := failure_of(self):
            raise ValueError(failed)  # SGLang ends the request
        began = thread_time()
        accept(self, token)
        if thread_time() - began > _STEP_SECONDS:
            setattr(self, _FAILURE, _TOO_SLOW)

    return accept_token


def failure_of(grammar: Any) -> str:
    """Why a request's grammar ended it; empty: it did not."""
    return getattr(grammar, _FAILURE, "")


def _size(grammar: Any) -> int:
    compiled = getattr(grammar, "ctx", None)
    return _ENTRY_BYTES if compiled is None else int(compiled.memory_size_bytes)
