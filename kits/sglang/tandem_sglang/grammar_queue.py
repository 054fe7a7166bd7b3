"""Requests of SGLang's scheduler whose grammars are being compiled, and what becomes of those.

- Ranks that share a sequence keep the same grammars: one that finds a grammar does not wait for it,
  as another would that has to compile it, and the two would no longer run the same steps. So what
  one of them could not compile ends its request on all of them, and none keeps it.
- A grammar of a request that goes on behind another engine's tokens is given them first.
- Load snapshots count them. SGLang would, if it had metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang.srt.constrained.base_grammar_backend import InvalidGrammarObject
from sglang.srt.constrained.grammar_manager import GrammarManager
from torch import distributed

from tandem.errors import ProcessorError
from tandem_sglang import rows
from tandem_sglang.chunks import ERROR_TYPES

_SERVER_ERROR = 500
_HERE = "the answer's form, which passed its check, could not be compiled"
_ELSEWHERE = f"{_HERE} on another rank of its engine"


class KeptAlike:
    """For a backend of SGLang's: what was compiled is kept once all ranks have it."""

    compiled: dict[Any, Any]

    def set_cache(self, key: Any, value: Any) -> None:
        if not isinstance(value, InvalidGrammarObject):
            self.compiled[key] = value


class OwnGrammarManager(GrammarManager):
    """Tandem's GrammarManager."""

    def process_req_with_grammar(self, req: Any) -> bool:
        waits: bool = super().process_req_with_grammar(req)
        if not waits:
            _catch_up(req)
        _count(self)
        return waits

    def get_ready_grammar_requests(self) -> Any:
        wanted = {id(req) for req in self.grammar_queue if req.to_finish is None}
        found = super().get_ready_grammar_requests()
        compiled = self.grammar_backend.compiled
        for req, ended in zip(found, _ended_anywhere(self, found), strict=True):
            if not ended:
                if (grammar := compiled.get(req.grammar_key)) is not None:
                    self.grammar_backend.cache[req.grammar_key] = grammar
                _catch_up(req)
            elif id(req) in wanted:
                _end(req)
        compiled.clear()
        _count(self)
        return found


class ManagesGrammars:
    """For SGLang's Scheduler."""

    grammar_manager: Any

    def init_grammar_manager(self) -> None:
        super().init_grammar_manager()  # type: ignore[misc]
        self.grammar_manager.__class__ = OwnGrammarManager


def _count(manager: Any) -> None:
    manager.scheduler.metrics_reporter.stats.num_grammar_queue_reqs = len(manager.grammar_queue)


def _ended_anywhere(manager: Any, requests: Sequence[Any]) -> list[bool]:
    """Whether each ended on any rank, in the same order on all. They wait for each other only where
    a grammar was compiled.
    """
    own = [request.to_finish is not None for request in requests]
    if not own or manager.grammar_sync_size == 1:
        return own
    of_ranks: list[Any] = [None] * manager.grammar_sync_size
    distributed.all_gather_object(of_ranks, own, group=manager.grammar_sync_group)
    return [any(each) for each in zip(*of_ranks, strict=True)]


def _end(request: Any) -> None:
    message = _ELSEWHERE if request.to_finish is None else _HERE
    request.set_finish_with_abort(message, _SERVER_ERROR, ERROR_TYPES[ProcessorError])


def _catch_up(req: Any) -> None:
    made = rows.made_of(req)
    if not made or req.grammar is None or req.finished() or req.to_finish is not None:
        return
    for token in req.origin_input_ids[-made:]:
        req.grammar.accept_token(token)
    # Decode takes a grammar that has read a token for one that has read prefill's too.
    req.grammar.current_token = None
