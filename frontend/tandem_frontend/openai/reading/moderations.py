"""Bodies of `/v1/moderations`, and the texts in them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tandem.errors import InvalidRequestError, UnknownModelError, UnsupportedError
from tandem_frontend.openai.decoding import Body, needed
from tandem_frontend.openai.reading.wire import Answered, ReadingOrder
from tandem_frontend.openai.strangers import FieldRules, KnownObject

OPENAI_MODELS: Final = ("omni-moderation-", "text-moderation-")
"""What names of OpenAI's models for this begin with. Programs have them built in."""
_TEXT: Final = "text"
_LONGEST_TYPE: Final = 64


class ModerationPart(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of an input: a text, or what no classifier can judge."""

    type: str
    text: str | None = None
    image_url: Any = None


class ModerationRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    input: str | list[str | ModerationPart]
    """A text, several, each with a result of its own, or the parts of one."""
    model: str | None = None


BODY: Final = Body.of(ModerationRequest, {}, input=KnownObject.of(ModerationPart, {}))


class ModerationTexts(msgspec.Struct, frozen=True, kw_only=True):
    """The texts of a body, and the fields beside them."""

    texts: list[str]
    """A result is wanted of each."""
    model: str | None
    extra_fields: str
    """Fields for classifiers, as a JSON object; empty: none."""


class ModerationReader:
    """Reads such bodies, whatever models there are."""

    def __init__(self, rules: FieldRules, *, most: int) -> None:
        """`most`: texts of one body."""
        self._rules = rules
        self._most = most

    def read(self, order: ReadingOrder) -> Answered:
        """Answers ModerationTexts in MessagePack. Raises RequestError."""
        request, ignored, extra_fields = BODY.decode(order.body, self._rules)
        given = ModerationTexts(
            texts=texts(request, most=self._most), model=request.model, extra_fields=extra_fields
        )
        return Answered(msgspec.msgpack.encode(given), ignored)


def check_model(model: str | None, classifiers: str) -> None:
    """`classifiers`: the name under which the classifiers answer. Raises UnknownModelError."""
    if model is None or model == classifiers or model.startswith(OPENAI_MODELS):
        return
    raise UnknownModelError(
        f"`model` names no classifiers: leave `model` out, or write {classifiers} or one of"
        " OpenAI's names, such as omni-moderation-latest",
        param="model",
    )


def texts(request: ModerationRequest, *, most: int) -> list[str]:
    """The texts that are to be judged, at most `most`: the parts of one are joined by line feeds.

    Raises InvalidRequestError, and UnsupportedError, with the part's position, for what is no text.
    """
    given = request.input
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidRequestError("`input` holds nothing to judge", param="input")
    if len(given) > most:
        raise InvalidRequestError(f"At most {most} inputs are judged at once", param="input")
    alone = [each for each in given if isinstance(each, str)]
    if len(alone) == len(given):
        return alone
    if alone:
        raise InvalidRequestError(
            "`input` takes texts, or parts of one input, but not both", param="input"
        )
    parts = [each for each in given if isinstance(each, ModerationPart)]
    return ["\n".join(_text(part, f"input[{at}]") for at, part in enumerate(parts))]


def _text(part: ModerationPart, param: str) -> str:
    if part.type != _TEXT or part.image_url is not None:
        kind = "image_url" if part.type == _TEXT else part.type[:_LONGEST_TYPE]
        raise UnsupportedError(
            f"`{param}` is of the type {kind!r}: classifiers judge texts alone", param=param
        )
    return needed(part.text, f"{param}.text")
