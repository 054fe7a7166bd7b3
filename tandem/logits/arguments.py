"""A processor's arguments: the annotations of its constructor are their schema.

Annotations may carry bounds: `Annotated[int, msgspec.Meta(ge=0)]`. Values are JSON's, checked
without conversion: "3" is no number, 1.5 is no integer, true is no number.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tandem.errors import InvalidRequestError, LoadError
from tandem.logits.spec import PARAM


@dataclass(slots=True, frozen=True)
class Schema:
    """The arguments that a constructor takes."""

    signature: inspect.Signature
    types: Mapping[str, Any]

    @staticmethod
    def of(name: str, cls: type[Any]) -> Schema:
        """Raises LoadError where JSON could not give the arguments of `cls`, named `name`."""
        signature = inspect.signature(cls)
        try:
            hints = typing.get_type_hints(cls.__init__, include_extras=True)
        except NameError as error:
            raise LoadError(
                f"logits processor {name!r}: cannot read its annotations: {error}"
            ) from error
        for parameter in signature.parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise LoadError(
                    f"logits processor {name!r}: its constructor must name every argument; "
                    f"{parameter} does not"
                )
        types = {parameter: hints.get(parameter, Any) for parameter in signature.parameters}
        for argument, kind in types.items():
            _check_type(name, argument, kind)
        return Schema(signature, types)

    def convert(self, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """`args` as the annotations say. Raises InvalidRequestError, naming the processor and the
        argument.
        """
        try:
            bound = self.signature.bind(**args)
        except TypeError as error:
            raise InvalidRequestError(
                f"logits processor {name!r}: {error}; it takes {self.words()}", param=PARAM
            ) from error
        return {
            argument: self._value(name, argument, value)
            for argument, value in bound.arguments.items()
        }

    def check_defaults(self, name: str, args: Mapping[str, Any]) -> None:
        """Check that a deployment's default arguments fit. Raises LoadError."""
        for argument, value in args.items():
            if argument not in self.types:
                raise LoadError(
                    f"logits processor {name!r} has no argument {argument!r}; "
                    f"it takes {self.words()}"
                )
            try:
                self._value(name, argument, value)
            except InvalidRequestError as error:
                raise LoadError(error.message) from error

    def words(self) -> str:
        """The arguments for people, those that must be given marked."""
        parts = [
            name if parameter.default is not parameter.empty else f"{name} (required)"
            for name, parameter in self.signature.parameters.items()
        ]
        return ", ".join(parts) or "no arguments"

    def _value(self, name: str, argument: str, value: Any) -> Any:
        try:
            return msgspec.convert(value, self.types[argument], str_keys=True)
        except msgspec.ValidationError as error:
            raise InvalidRequestError(
                f"logits processor {name!r}, argument {argument!r}: {error}", param=PARAM
            ) from error


def _check_type(name: str, argument: str, kind: Any) -> None:
    info = msgspec.inspect.type_info(kind)
    if isinstance(info, msgspec.inspect.CustomType):
        raise LoadError(
            f"logits processor {name!r}: argument {argument!r} is a {info.cls.__qualname__}, "
            "which JSON cannot give"
        )
