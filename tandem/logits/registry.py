"""The logits processors a worker knows, by name.

The deployment decides which classes exist: built in, or named by import path in the worker's
configuration. A request can only name one of them and give JSON arguments; no code ever comes with
a request (S3-094).
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tandem.errors import (
    InvalidRequestError,
    LoadError,
    ProcessorError,
    StartError,
    UnsupportedError,
)
from tandem.hooks.loader import load_object
from tandem.logits.builtin import BUILTIN
from tandem.logits.processor import INTERFACE_VERSION, LogitsProcessor, Need, needs_of
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec

PARAM = "logits_processors"
_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,63}")


@dataclass(slots=True, frozen=True)
class _Known:
    """A class that was found fit when it was registered."""

    cls: type[LogitsProcessor]
    signature: inspect.Signature
    types: Mapping[str, Any]


class Registry:
    """Names and their processor classes. Filled at start, then only read."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    @staticmethod
    def builtin() -> Registry:
        """The processors that every worker has."""
        registry = Registry()
        for name, cls in BUILTIN.items():
            registry.register(name, cls)
        return registry

    @staticmethod
    def from_import_paths(paths: Mapping[str, str]) -> Registry:
        """The registry that `import_paths` described, in another process."""
        registry = Registry()
        for name, path in paths.items():
            registry.load(name, path)
        return registry

    def register(self, name: str, cls: type[LogitsProcessor]) -> None:
        """Raises LoadError where the class is no processor, the name is taken, or the interface
        version is another.
        """
        if not _NAME.fullmatch(name):
            raise LoadError(
                f"{name!r} cannot name a logits processor: "
                "use lower-case letters, digits, _ . - (at most 64)"
            )
        if name in self._known and self._known[name].cls is not cls:
            raise LoadError(f"a logits processor named {name!r} is registered already")
        self._known[name] = _examined(name, cls)

    def load(self, name: str, path: str) -> None:
        """Register the class at `path`, "module:Class". Raises LoadError, which says what is wrong
        with the path.
        """
        found = load_object(path)
        if not isinstance(found, type):
            raise LoadError(f"logits processor {name!r}: {path} is not a class")
        self.register(name, found)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._known))

    def import_paths(self) -> dict[str, str]:
        """Name to "module:Class", for a process that must build the same registry (an engine's
        scheduler).

        Raises StartError for a class that another process cannot import.
        """
        return {name: _import_path(name, known.cls) for name, known in self._known.items()}

    def create(self, entry: LogitsProcessorEntry) -> LogitsProcessor:
        """A fresh processor for one sequence.

        Raises InvalidRequestError for an unknown name or an argument that does not fit, naming
        which; ProcessorError where the constructor itself fails.
        """
        if entry.factory is not None:
            return entry.factory()
        known = self._known.get(entry.name)
        if known is None:
            raise InvalidRequestError(
                f"unknown logits processor {entry.name!r}; "
                f"this deployment knows: {', '.join(self.names())}",
                param=PARAM,
            )
        arguments = _arguments(entry, known)
        try:
            return known.cls(**arguments)
        except ValueError as error:
            raise InvalidRequestError(
                f"logits processor {entry.name!r}: {error}", param=PARAM
            ) from error
        except Exception as error:
            raise ProcessorError(
                f"logits processor {entry.name!r} could not be built: {type(error).__name__}"
            ) from error

    def check(
        self,
        spec: LogitsProcessorSpec,
        *,
        available: Collection[Need],
        vocabulary: int | None = None,
    ) -> None:
        """Admission: every processor can be built, gets what it needs, and fits a vocabulary of
        that size (S3-092).

        Raises InvalidRequestError or UnsupportedError, naming the processor.
        """
        for entry in spec.entries:
            processor = self.create(entry)
            if missing := needs_of(processor) - set(available):
                words = ", ".join(sorted(need.value for need in missing))
                raise UnsupportedError(
                    f"logits processor {entry.name!r} needs {words}, "
                    "which this engine does not give",
                    param=PARAM,
                )
            if vocabulary is not None:
                _check_vocabulary(entry.name, processor, vocabulary)


def _check_vocabulary(name: str, processor: LogitsProcessor, size: int) -> None:
    check = getattr(processor, "check_vocabulary", None)
    if check is None:
        return
    try:
        check(size)
    except ValueError as error:
        raise InvalidRequestError(f"logits processor {name!r}: {error}", param=PARAM) from error


def _examined(name: str, cls: type[LogitsProcessor]) -> _Known:
    """Raises LoadError where `cls` cannot serve; what passes here fails later only by its
    arguments.
    """
    version = getattr(cls, "interface_version", INTERFACE_VERSION)
    if version != INTERFACE_VERSION:
        raise LoadError(
            f"logits processor {name!r} ({cls.__qualname__}) was written for interface version "
            f"{version}; this worker has version {INTERFACE_VERSION}"
        )
    if not any("__call__" in vars(base) for base in cls.__mro__):
        raise LoadError(f"logits processor {name!r}: {cls.__qualname__} has no __call__ method")
    unknown = [need for need in getattr(cls, "needs", ()) if not isinstance(need, Need)]
    if unknown:
        raise LoadError(
            f"logits processor {name!r}: `needs` holds {unknown[0]!r}, which is no Need"
        )
    signature = inspect.signature(cls)
    try:
        hints = typing.get_type_hints(cls.__init__)
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
    return _Known(cls, signature, types)


def _check_type(name: str, parameter: str, kind: Any) -> None:
    info = msgspec.inspect.type_info(kind)
    if isinstance(info, msgspec.inspect.CustomType):
        raise LoadError(
            f"logits processor {name!r}: argument {parameter!r} is a {info.cls.__qualname__}, "
            "which JSON cannot give"
        )


def _arguments(entry: LogitsProcessorEntry, known: _Known) -> dict[str, Any]:
    """Arguments as the constructor's annotations say. Raises InvalidRequestError naming processor
    and argument.
    """
    try:
        bound = known.signature.bind(**entry.args)
    except TypeError as error:
        raise InvalidRequestError(
            f"logits processor {entry.name!r}: {error}", param=PARAM
        ) from error
    converted = {}
    for parameter, value in bound.arguments.items():
        try:
            converted[parameter] = msgspec.convert(value, known.types[parameter])
        except msgspec.ValidationError as error:
            raise InvalidRequestError(
                f"logits processor {entry.name!r}, argument {parameter!r}: {error}", param=PARAM
            ) from error
    return converted


def _import_path(name: str, cls: type[LogitsProcessor]) -> str:
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        raise StartError(
            f"logits processor {name!r}: another process cannot import {cls.__qualname__}; "
            "put the class at the top of a module"
        )
    return f"{cls.__module__}:{cls.__qualname__}"
