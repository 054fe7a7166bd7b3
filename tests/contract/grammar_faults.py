"""Grammars that do otherwise on one of an engine's ranks. Schedulers load this as the module of a
logits processor, after Tandem has changed what SGLang does with grammars.

What a form is to do stands in its title: grammar_forms.py.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import logits_probe
from grammar_forms import AT
from sglang.srt.constrained.llguidance_backend import GuidanceGrammar

from tandem_sglang.guidance import BoundedBackend

_TITLE = re.compile(r"fault (\w+) (\w+) (-?\d+)")
_TAKEN = "_taken_in_test"


class Loads:
    """A processor that does nothing: it has this module imported."""

    def __call__(self, input_ids: Any, logits: Any) -> None:
        pass


def _here(serialized: str, where: str) -> str:
    """What kind of fault a form has here; empty: none."""
    found = _TITLE.search(serialized)
    if found is None or found[1] != where or int(found[3]) != logits_probe.this_rank():
        return ""
    return found[2]


def _spend() -> None:
    until = time.thread_time() + 0.15
    while time.thread_time() < until:
        pass


def _fill(original: Callable[..., None]) -> Callable[..., None]:
    def fill_vocab_mask(self: Any, mask: Any, row: int) -> None:
        original(self, mask, row)
        if getattr(self, _TAKEN, 0) != AT:
            return
        match _here(self.serialized_grammar, "fill"):
            case "raises":
                raise RuntimeError("the prompt was: secret")
            case "slow":
                _spend()
            case "nothing":
                mask[row].fill_(0)
            case "other":  # than the other rank: what that one may take
                mask[row].bitwise_not_()

    return fill_vocab_mask


def _accept(original: Callable[..., None]) -> Callable[..., None]:
    def accept_token(self: Any, token: int) -> None:
        taken = getattr(self, _TAKEN, 0) + 1
        setattr(self, _TAKEN, taken)
        kind = _here(self.serialized_grammar, "accept") if taken == AT else ""
        if kind == "raises":
            raise ValueError("the prompt was: secret")
        if kind == "slow":
            _spend()
        original(self, token)
        if kind == "ends":
            self.finished = True
            self.is_terminated = lambda: True

    return accept_token


def _dispatch(original: Callable[..., Any]) -> Callable[..., Any]:
    failed: set[str] = set()

    def dispatch_json(self: Any, key: str) -> Any:
        kind = _here(json.loads(key).get("title", ""), "compile")
        if kind == "slow":
            time.sleep(1)
        if kind == "raises" and key not in failed:
            failed.add(key)
            raise MemoryError("the prompt was: secret")
        return original(self, key)

    return dispatch_json


def _install() -> None:
    """Beneath what watches grammars."""
    GuidanceGrammar.fill_vocab_mask = _fill(GuidanceGrammar.fill_vocab_mask)
    GuidanceGrammar.accept_token = _accept(GuidanceGrammar.accept_token)
    BoundedBackend.dispatch_json = _dispatch(BoundedBackend.dispatch_json)


_upstream = sys.modules.get("sglang.srt.managers.scheduler")
if _upstream is not None and _upstream.Scheduler.__module__.startswith("tandem_sglang"):
    _install()
