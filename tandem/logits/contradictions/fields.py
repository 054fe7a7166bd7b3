"""Contradictions that names and arguments show, without a model: frontends, executors and workers
ask alike. Imports no numpy, which frontends do not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tandem.errors import InvalidRequestError
from tandem.logits.ready import FORMS
from tandem.logits.spec import PARAM, LogitsProcessorEntry, LogitsProcessorSpec

MINIMUM = "min_new_tokens"
"""The processor behind `min_tokens`."""
_BUDGET = "thinking_budget"
_ENDS_AFTER = {"max_new_tokens": "count", "stop_at_sentence": "after"}
"""Processors that end an answer, by the argument from which on they may."""


def check(spec: LogitsProcessorSpec | None, *, max_tokens: int, fields: Sequence[str] = ()) -> None:
    """Raises InvalidRequestError, whose `param` is what `fields` call the processor that cannot be
    beside another; without `fields`, its place in `spec`.
    """
    for place, name, said in _found(spec, max_tokens):
        param = fields[place] if fields else f"{PARAM}[{place}]"
        raise InvalidRequestError(f"{fields[place] if fields else name}: {said}", param=param)


def least_tokens(spec: LogitsProcessorSpec | None) -> int:
    """How many tokens come before any end of an answer."""
    return max((_count(args, "count") for _, _, args in _named(spec, MINIMUM)), default=0)


def _found(spec: LogitsProcessorSpec | None, max_tokens: int) -> Iterator[tuple[int, str, str]]:
    """The place and the name of the processor of each contradiction, and what is wrong."""
    for place, name, args in _named(spec, MINIMUM):
        least = _count(args, "count")
        if least > max_tokens:
            yield place, name, f"at least {least} tokens are asked for, and at most {max_tokens}"
        for _, other, its in _named(spec, *_ENDS_AFTER):
            if least > (most := _count(its, _ENDS_AFTER[other])):
                said = f"at least {least} tokens are asked for, and {other!r} may end at {most}"
                yield place, name, said
    for place, name, args in _named(spec, _BUDGET):
        for _, form, its in _named(spec, *FORMS):
            thinks = its.get("before") or its.get("triggers")
            if _count(args, "budget") < max_tokens and not thinks:
                yield place, name, f"an answer of the form {form!r} has no reasoning to end"


def _named(
    spec: LogitsProcessorSpec | None, *names: str
) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Places, names and arguments of processors that are called so."""
    for place, entry in enumerate(() if spec is None else spec.entries):
        if isinstance(entry, LogitsProcessorEntry) and entry.name in names:
            yield place, entry.name, entry.args


def _count(args: Mapping[str, Any], name: str) -> int:
    """0 for what is no number: whoever builds the processor says so."""
    found = args.get(name)
    return found if isinstance(found, int) else 0
