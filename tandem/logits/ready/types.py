"""Types of arguments, with the bounds that keep one request from taking a worker's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from msgspec import Meta

from tandem.logits.forms.limits import MAX_TEXT
from tandem.logits.model import Model

MAX_TOKENS = 65_536
MAX_ITEMS = 1024

TokenId: TypeAlias = Annotated[int, Meta(ge=0)]
TokenIds: TypeAlias = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_TOKENS)]
Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]


def tokens_of(model: Model, token_ids: Sequence[int] | None, text: str | None) -> list[int]:
    """The tokens that an argument pair means. Raises ValueError unless exactly one is given."""
    if (token_ids is None) == (text is None):
        raise ValueError("give either token_ids or text")
    found = list(token_ids) if token_ids is not None else model.encode(text or "")
    model.check(found)
    return found


def ends_of(model: Model, eos_token_ids: Sequence[int] | None) -> list[int]:
    """The tokens that end a sequence: those given, or the model's. Raises ValueError for none."""
    found = sorted(model.eos_token_ids) if eos_token_ids is None else list(eos_token_ids)
    if not found:
        raise ValueError("this model has no end-of-sequence token: give eos_token_ids")
    model.check(found)
    return found
