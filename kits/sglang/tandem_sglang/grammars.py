"""What Tandem changes of grammars in SGLang's scheduler, where one request's must not cost another.

- A step that one takes too long for ends its request. A form that passed its check was rehearsed
  for its first tokens alone, and xgrammar has no limits for a step, as llguidance has.
- One that raises or allows no token ends its request, and its row is sampled freely once more: an
  exception, or a row of nothing, would end the scheduler. Both are the client's own fault, whose
  form it is.
- Ranks that share a sequence end it alike. A grammar that has failed is only marked, and with each
  step, in the order of the device's work, the ranks agree on those that have, and on those that
  have come to their end on some of them alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import thread_time
from typing import Any

import torch

from tandem.errors import ContradictionError, ProcessorError
from tandem_sglang import failures, ranks
from tandem_sglang.additions import Additions
from tandem_sglang.tensors import on_device

log = logging.getLogger(__name__)
_STEP_SECONDS = 0.1
"""CPU time for one token of one sequence."""
_TOO_SLOW = f"the answer's form takes more than {_STEP_SECONDS * 1000:g} ms of CPU time for a token"
_ELSEWHERE = "the answer's form failed on another rank of its engine, whose log says how"
_AT_ODDS = "the ranks of an engine are at odds about where the answer's form ends"
_FAILURE = "_tandem_failure"
_GOES_ON, _TERMINATED, _FAILED = range(3)


_device = "cpu"
_agree: Callable[[Any], None] | None = None


def end_alike(additions: Additions) -> None:
    """End the requests of grammars that have failed, where the tokens of a step are taken in. Call
    it before the scheduler starts.
    """
    global _agree, _device
    _agree, _device = ranks.agree_of(additions), additions.device


class Watched:
    """For a kind of grammar of SGLang's: one that takes too long, raises or leaves no token is
    marked, and its row left free.
    """

    def copy(self) -> Any:
        """SGLang makes one of its own kind."""
        made = super().copy()  # type: ignore[misc]
        made.__class__ = type(self)
        return made

    @staticmethod
    def fill_vocab_mask_batched(entries: Sequence[Any], vocab_mask: Any) -> None:
        """A step's rows, whose grammars have not come to their end. Row by row: llguidance would
        fill all at once, and not say whose grammar failed.
        """
        for each in entries:
            each.grammar.fill_vocab_mask(vocab_mask, each.row)
        states = [_TERMINATED] * len(vocab_mask)
        for each in entries:
            states[each.row] = _state_of(each.grammar)
        _note(states, _device, _agree)

    def fill_vocab_mask(self, vocab_mask: Any, idx: int) -> None:
        if failure_of(self):
            return
        filled = _tried(self, super().fill_vocab_mask, vocab_mask, idx)  # type: ignore[misc]
        if not filled or not vocab_mask[idx].any():
            _fail(self, "the answer's form allows no further token")
            vocab_mask[idx].fill_(-1)

    def accept_token(self, token: int) -> None:
        """SGLang would end a request on the rank that raises."""
        # One that was only late goes on until its request has ended: where a stage of a pipeline
        # is late that does not sample, none is told of it, and the others count on its end.
        if failure_of(self) in ("", _TOO_SLOW):
            _tried(self, super().accept_token, token)  # type: ignore[misc]

    def rollback(self, tokens: int) -> None:
        """SGLang takes back what it tried of drafts. One that has failed took no token, and its
        request ends.
        """
        _tried(self, super().rollback, tokens)  # type: ignore[misc]


def note_failures(
    grammars: Sequence[Any], device: Any, agree: Callable[[Any], None] | None
) -> None:
    """Those of a step's rows, None where a row has none."""
    _note([_state_of(each) for each in grammars], device, agree)


def _note(states: list[int], device: Any, agree: Callable[[Any], None] | None) -> None:
    if agree is None:
        if _FAILED not in states:
            return
        device = "cpu"
    # The largest and, negated, the least of all ranks.
    codes = on_device([states, [-state for state in states]], torch.int32, device)
    if agree is not None:
        agree(codes)
    failures.note(codes, tell)


def tell(codes: Any, requests: Sequence[Any]) -> None:
    """End what has failed by the codes of a step, whose requests these are, row by row."""
    for request, most, negated in zip(requests, *codes.tolist(), strict=True):
        if most == _FAILED:
            _end(request, failure_of(request.grammar) or _ELSEWHERE)
        elif most != -negated:
            _end(request, _AT_ODDS)


def _state_of(grammar: Any) -> int:
    if grammar is None:
        return _GOES_ON
    if failure_of(grammar):
        return _FAILED
    return _TERMINATED if grammar.is_terminated() else _GOES_ON


def _end(request: Any, why: str) -> None:
    """In a middle chunk of a prefill nothing is decided yet: what failed is told again later."""
    if not request.finished() and request.inflight_middle_chunks <= 0:
        kind = ProcessorError if why == _AT_ODDS else ContradictionError
        failures.end(request, kind(why))


def failure_of(grammar: Any) -> str:
    """Why a request's grammar ends it; empty: it does not."""
    return getattr(grammar, _FAILURE, "")


def _tried(grammar: Any, act: Callable[..., object], *given: Any) -> bool:
    """Whether what SGLang's own grammar does has not raised. Late it may have been."""
    began = thread_time()
    try:
        act(*given)
    except Exception as error:  # noqa: BLE001 - of a library: it would end the scheduler
        _fail(grammar, f"the answer's form cannot go on ({type(error).__name__})")
        return False
    if thread_time() - began > _STEP_SECONDS:
        _fail(grammar, _TOO_SLOW)
    return True


def _fail(grammar: Any, why: str) -> None:
    """What failed first stays the reason."""
    if failure_of(grammar):
        return
    log.warning("the form of an answer failed", extra={"reason": why})
    setattr(grammar, _FAILURE, why)
