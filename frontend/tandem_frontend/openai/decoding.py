"""Bytes of a body to a request, or to an error that names the field at fault."""

from __future__ import annotations

import functools
import operator
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from tandem.errors import InvalidRequestError, RequestError, UnsupportedError
from tandem_frontend.openai.foreign import LEFT_OUT, VALUES, Foreign
from tandem_frontend.openai.strangers import FieldRules, KnownObject, Strangers, without_version

T = TypeVar("T", bound=msgspec.Struct)
V = TypeVar("V")

_UNKNOWN = "Object contains unknown field"
_AT_PATH = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?$", re.DOTALL)
_FIELD = re.compile(r"^Object (?:contains unknown|missing required) field `(?P<name>[^`]*)`$")
_VALUE = re.compile(r"^Invalid (?:enum )?value '(?P<value>\w*)'")
_OFFER = re.compile(
    r"^Invalid enum value '.*' - at `\$\.tools\[\d+\](\.tools\[\d+\])?\.type`$", re.DOTALL
)
"""A tool of a type that this dialect does not have."""
_LONGEST_PARAM = 100


def needed(value: V | None, param: str) -> V:
    """The value of a field that a request must have. Raises InvalidRequestError."""
    if value is None:
        raise InvalidRequestError(f"`{param}` is required", param=param)
    return value


class Decoded(NamedTuple, Generic[T]):
    """A request, and what its body has beside it."""

    request: T
    ignored: tuple[str, ...] = ()
    """Names of the body's fields, and of tools, that were passed over."""
    extra_fields: str = ""
    """What classifiers are given, as a JSON object; empty: nothing."""


@dataclass(frozen=True)
class Body(Generic[T]):
    strict: msgspec.json.Decoder[T]
    lenient: msgspec.json.Decoder[T]
    """Reads the same, and passes over fields that it does not know."""
    kind: KnownObject

    @staticmethod
    def of(strict: type[T], foreign: Mapping[str, Foreign], **inner: KnownObject) -> Body[T]:
        """`inner`: what fields hold in which there may be unknown fields too."""
        kind = KnownObject.of(strict, foreign, **inner)
        twins: dict[Any, Any] = {each.struct: _twin(each.struct) for each in kind.walk()}
        for struct, twin in twins.items():
            hints = get_type_hints(struct, include_extras=True)
            twin.__annotations__ = {name: _holding(twins, hint) for name, hint in hints.items()}
        decoders = msgspec.json.Decoder(strict), msgspec.json.Decoder(twins[strict])
        return Body(*decoders, kind)

    def decode(self, body: bytes, rules: FieldRules) -> Decoded[T]:
        """Raises InvalidRequestError or UnsupportedError with `param`."""
        try:
            return self._decode(body, rules)
        except msgspec.ValidationError as error:
            raise _explain(str(error)) from None
        except msgspec.DecodeError as error:
            raise InvalidRequestError(f"The body is not valid JSON: {error}") from None
        except UnicodeDecodeError:
            raise InvalidRequestError("The body is not valid UTF-8") from None
        except RecursionError:
            raise InvalidRequestError("The body is nested too deeply") from None

    def _decode(self, body: bytes, rules: FieldRules) -> Decoded[T]:
        try:
            return Decoded(self.strict.decode(body))
        except msgspec.ValidationError as error:
            value = _VALUE.match(str(error))
            left_out = value is not None and without_version(value["value"]) in LEFT_OUT
            if not (left_out or _OFFER.search(str(error)) or str(error).startswith(_UNKNOWN)):
                raise
        strangers = Strangers(rules)
        left = strangers.check(body, self.kind)
        return Decoded(self.lenient.decode(left), strangers.ignored, strangers.extra_fields)


def _twin(struct: type[msgspec.Struct]) -> Any:
    """The same type without `forbid_unknown_fields`. msgspec reads its annotations later."""
    options = {"forbid_unknown_fields": False, "kw_only": True}
    return types.new_class(struct.__name__, (struct,), options)


def _holding(twins: Mapping[Any, Any], hint: Any) -> Any:
    """A type with the twins of types in the place of those."""
    if (twin := twins.get(hint)) is not None:
        return twin
    arguments = get_args(hint)
    held = tuple(_holding(twins, each) for each in arguments)
    if held == arguments:
        return hint
    if get_origin(hint) is Annotated:
        return Annotated[(held[0], *hint.__metadata__)]
    if get_origin(hint) in (Union, types.UnionType):
        return functools.reduce(operator.or_, held)
    return get_origin(hint)[held]


def _explain(message: str) -> RequestError:
    match = _AT_PATH.match(message)
    what, path = (match["what"], match["path"] or "") if match else (message, "")
    field, value = _FIELD.match(what), _VALUE.match(what)
    param = path[:_LONGEST_PARAM]
    if value is not None and (reason := VALUES.get(without_version(value["value"]))):
        return UnsupportedError(f"`{param}` is not supported: {reason}", param=param)
    if field is None:
        return InvalidRequestError(f"{what}: `{param}`" if param else what, param=param)
    name = field["name"][:_LONGEST_PARAM]
    param = f"{path}.{name}" if path else name
    if what.startswith(_UNKNOWN):
        return InvalidRequestError(f"Unknown field `{param}`", param=param)
    return InvalidRequestError(f"`{param}` is required", param=param)
