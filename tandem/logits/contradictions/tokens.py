"""Contradictions that it takes built processors and a model's tokens to see. Engines ask before
they take a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from tandem.errors import InvalidRequestError
from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.processor import LogitsProcessor, Need, needs_of
from tandem.logits.ready import is_ready_made
from tandem.logits.ready.form import Form
from tandem.logits.ready.lengths import MinNewTokens
from tandem.logits.ready.masks import Mask, MaskingProcessor
from tandem.logits.spec import PARAM
from tandem.sampling import MAX_INT32

MOST_POSITIONS = 1024
"""How many positions are looked at. A contradiction behind them is seen while the request runs."""
_STATIC = frozenset({Need.POSITION, Need.VOCABULARY})
Static: TypeAlias = Mapping[int, MaskingProcessor]
"""Processors whose masks follow from the position alone, by their places."""
_Sets: TypeAlias = dict[int, frozenset[int]]


def check(
    processors: Sequence[LogitsProcessor], model: Model, *, max_tokens: int = MAX_INT32
) -> None:
    """Raises InvalidRequestError, naming the place of a processor that cannot be beside another."""
    if len(processors) < 2:
        return
    forms = [each for each in processors if isinstance(each, Form)]
    static = {
        place: each
        for place, each in enumerate(processors)
        if isinstance(each, MaskingProcessor) and is_ready_made(each) and needs_of(each) <= _STATIC
    }
    end = min(max_tokens, MOST_POSITIONS)
    for place, said in (
        *_ending_too_soon(forms, static),
        *_without_token(static, model, end),
        *_outside_forms(forms, static, model, end),
    ):
        raise InvalidRequestError(said, param=f"{PARAM}[{place}]")


def _ending_too_soon(forms: Sequence[Form], static: Static) -> Iterator[tuple[int, str]]:
    for form in forms:
        for place, each in static.items():
            if isinstance(each, MinNewTokens) and each.count > _shortest(form, each.count):
                found = f"an answer of its form may have {form.shortest} tokens"
                yield place, f"at least {each.count} tokens are asked for, and {found}"


def _shortest(form: Form, unknown: int) -> int:
    return unknown if form.shortest is None else form.shortest


def _without_token(static: Static, model: Model, end: int) -> Iterator[tuple[int, str]]:
    """Positions below `end` at which they leave no token."""
    if len(static) < 2:
        return
    sets: _Sets = {}
    turns = {turn for each in static.values() for turn in each.turns() if turn < end}
    for position in sorted(turns):
        if (place := _emptied_by(_masks(static, position), model.vocabulary, sets)) is not None:
            yield place, f"no token may come at position {position}, after those before it"


def _masks(static: Static, position: int) -> list[tuple[int, Mask]]:
    history = TokenHistory.without_tokens(prompt_length=0, position=position)
    return [
        (place, mask) for place, each in static.items() if (mask := each.mask(history)) is not None
    ]


def _emptied_by(masks: Sequence[tuple[int, Mask]], vocabulary: int, sets: _Sets) -> int | None:
    """The place of the mask that takes the last token; None: some are left. What forces a token
    does so whatever was forbidden before it.
    """
    forced = [index for index, (_, mask) in enumerate(masks) if mask.kind == "force"]
    left: frozenset[int] | None = None
    banned: frozenset[int] = frozenset()
    for place, mask in masks[forced[-1] if forced else 0 :]:
        tokens = _tokens(mask, sets)
        if mask.kind == "never":
            banned |= tokens if left is None else frozenset()
            left = None if left is None else left - tokens
        else:
            left = tokens - banned if left is None else left & tokens
        if len(banned) >= vocabulary or (left is not None and not left):
            return place
    return None


def _tokens(mask: Mask, sets: _Sets) -> frozenset[int]:
    """Masks live as long as `sets`."""
    found = sets.get(id(mask))
    if found is None:
        found = sets[id(mask)] = frozenset(mask.token_ids.tolist())
    return found


def _outside_forms(
    forms: Sequence[Form], static: Static, model: Model, end: int
) -> Iterator[tuple[int, str]]:
    """Processors that force tokens with which no answer of a form begins."""
    for place, each in static.items() if forms else ():
        forced = list(_forced(each, end))
        if forced and not all(form.begins(forced, model) for form in forms):
            yield place, "no answer of the form begins with the tokens that it forces"


def _forced(processor: MaskingProcessor, end: int) -> Iterator[int]:
    """Tokens that it forces, from the first position on."""
    for position in processor.turns():
        mask: Any = None
        if position < end:
            mask = processor.mask(TokenHistory.without_tokens(prompt_length=0, position=position))
        if mask is None or mask.kind != "force":
            return
        yield int(mask.token_ids[0])
