"""The logits processors a worker knows, by name.

The deployment decides which classes exist: ready-made, or named in the worker's configuration. A
request can only name one of them and give JSON arguments; no code ever comes with a request
(S3-094).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tandem.errors import (
    InternalError,
    InvalidRequestError,
    LoadError,
    ProcessorError,
    RequestError,
    UnsupportedError,
)
from tandem.logits.arguments import Schema
from tandem.logits.building import DEFAULT_SECONDS, build
from tandem.logits.contradictions import tokens as contradictions
from tandem.logits.loader import examine, import_path, load_class
from tandem.logits.model import Model
from tandem.logits.processor import EVERYTHING, LogitsProcessor, Need, comes_first, needs_of
from tandem.logits.ready import READY
from tandem.logits.ready.form import Form
from tandem.logits.settings import ProcessorSettings
from tandem.logits.spec import (
    PARAM,
    Entry,
    LogitsProcessorEntry,
    LogitsProcessorSpec,
    PythonProcessorSpec,
)
from tandem.sampling import MAX_INT32

_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,63}")
DEFAULT_MOST = 16


@dataclass(slots=True, frozen=True)
class _Known:
    """A class that was found fit when it was registered."""

    cls: type[LogitsProcessor]
    schema: Schema
    settings: ProcessorSettings


class Registry:
    """Names and their processor classes. Filled at start, then only read."""

    def __init__(self, *, seconds: float = DEFAULT_SECONDS, most: int = DEFAULT_MOST) -> None:
        """`seconds`: how long one call of a processor may take. `most`: how many processors one
        request may name.
        """
        self.seconds = seconds
        self.most = most
        self._known: dict[str, _Known] = {}

    @staticmethod
    def builtin() -> Registry:
        """The processors that every worker has."""
        return Registry.from_settings({})

    @staticmethod
    def from_settings(
        processors: Mapping[str, ProcessorSettings],
        *,
        seconds: float = DEFAULT_SECONDS,
        most: int = DEFAULT_MOST,
    ) -> Registry:
        """The ready-made ones and a deployment's own. Raises LoadError, naming the processor."""
        registry = Registry(seconds=seconds, most=most)
        for name in READY:
            registry.load(name, processors.get(name, name))
        for name, settings in processors.items():
            if name not in READY:
                registry.load(name, settings)
        return registry

    @staticmethod
    def from_portable(content: Mapping[str, Any]) -> Registry:
        """The registry that `portable` described, in another process. Raises LoadError."""
        registry = Registry(seconds=content["seconds"], most=content["most"])
        for name, (path, args) in content["processors"].items():
            registry.load(name, ProcessorSettings(use=path, args=args))
        return registry

    def portable(self) -> dict[str, Any]:
        """All that another process needs to build the same processors (an engine's scheduler), as
        JSON values. Raises LoadError for a class that another process cannot import.
        """
        return {
            "seconds": self.seconds,
            "most": self.most,
            "processors": {
                name: [path, dict(self._known[name].settings.args)]
                for name, path in self.import_paths().items()
            },
        }

    def register(
        self,
        name: str,
        cls: type[LogitsProcessor],
        settings: ProcessorSettings | None = None,
    ) -> None:
        """Raises LoadError where the class is no processor, the name is taken, the default
        arguments do not fit, or the interface version is another.
        """
        if not _NAME.fullmatch(name):
            raise LoadError(
                f"{name!r} cannot name a logits processor: "
                "use lower-case letters, digits, _ . - (at most 64)"
            )
        if name in self._known and self._known[name].cls is not cls:
            raise LoadError(f"a logits processor named {name!r} is registered already")
        examine(name, cls)
        schema = Schema.of(name, cls)
        settings = settings or ProcessorSettings(use=name)
        schema.check_defaults(name, settings.args)
        self._known[name] = _Known(cls, schema, settings)

    def load(self, name: str, use: str | ProcessorSettings) -> None:
        """Register what `use` means: an import path, a ready-made processor, an entry point.

        Raises LoadError, which says what is wrong with it.
        """
        settings = ProcessorSettings(use=use) if isinstance(use, str) else use
        self.register(name, load_class(name, settings.use), settings)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._known))

    def offered(self) -> tuple[str, ...]:
        """The processors that requests may name, where the frontend lets them."""
        return tuple(name for name in self.names() if self._known[name].settings.clients != "none")

    def classes(self) -> dict[str, type[LogitsProcessor]]:
        return {name: known.cls for name, known in self._known.items()}

    def import_paths(self) -> dict[str, str]:
        """Name to "module:Class". Raises LoadError for a class that no other process can import."""
        return {name: import_path(name, known.cls) for name, known in self._known.items()}

    def always(self) -> tuple[LogitsProcessorEntry, ...]:
        """What every request gets, after its own."""
        return tuple(
            LogitsProcessorEntry(name)
            for name, known in self._known.items()
            if known.settings.always
        )

    def check_always(self, model: Model) -> None:
        """Check that every request's processors can be built for this model. Raises LoadError: else
        every request would fail.
        """
        try:
            self.check(LogitsProcessorSpec(self.always()), available=EVERYTHING, model=model)
        except (RequestError, ProcessorError) as error:
            raise LoadError(f"{error.message}; it is set to be applied always") from error

    def create(self, entry: Entry, model: Model) -> LogitsProcessor:
        """A fresh processor for one sequence.

        Raises InvalidRequestError for an unknown name or an argument that does not fit, naming
        which; ProcessorError where the class itself fails.
        """
        if isinstance(entry, PythonProcessorSpec):
            return build(entry.name, entry.factory, {}, model, seconds=self.seconds)
        if entry.ready is not None:
            return entry.ready.fresh()
        return self._built(entry, model)

    def check(
        self,
        spec: LogitsProcessorSpec,
        *,
        available: Collection[Need],
        model: Model,
        max_tokens: int = MAX_INT32,
    ) -> tuple[LogitsProcessor, ...]:
        """Admission: clients may ask for this, every processor can be built, gets what it needs
        (S3-092), and leaves a token beside the others. Returns what was built.

        Raises InvalidRequestError or UnsupportedError, naming the processor and, as `param`, its
        place.
        """
        self._check_count(spec)
        built = []
        for place, entry in enumerate(spec.entries):
            try:
                built.append(self._admitted(place, entry, available, model))
            except RequestError as error:
                error.param = f"{PARAM}[{place}]"
                raise
        contradictions.check(built, model, max_tokens=max_tokens)
        return tuple(built)

    def form_places(self, spec: LogitsProcessorSpec) -> list[int]:
        """Where a spec has forms of answers that clients ask for: they may only be used once they
        were compiled elsewhere. Raises InvalidRequestError for more processors than may be.
        """
        self._check_count(spec)
        return [place for place, entry in enumerate(spec.entries) if self._is_clients_form(entry)]

    def form(self, spec: LogitsProcessorSpec, place: int) -> Form:
        """One of them, not compiled yet. Raises as `check`, for what can be told before."""
        entry = spec.entries[place]
        assert isinstance(entry, LogitsProcessorEntry)
        try:
            self._check_client(entry)
            made = self._built(entry, None)
        except RequestError as error:
            error.param = f"{PARAM}[{place}]"
            raise
        assert isinstance(made, Form)
        return made

    def _built(self, entry: LogitsProcessorEntry, model: Model | None) -> LogitsProcessor:
        known = self._lookup(entry.name)
        args = known.schema.convert(entry.name, {**known.settings.args, **entry.args})
        return build(entry.name, known.cls, args, model, seconds=self.seconds)

    def _is_clients_form(self, entry: Entry) -> bool:
        if not isinstance(entry, LogitsProcessorEntry) or not entry.from_client:
            return False
        known = self._known.get(entry.name)
        return known is not None and issubclass(known.cls, Form)

    def _check_count(self, spec: LogitsProcessorSpec) -> None:
        asked = sum(getattr(entry, "from_client", False) for entry in spec.entries)
        if asked > self.most:
            raise InvalidRequestError(
                f"{asked} logits processors: a request may name at most {self.most}",
                param=PARAM,
            )

    def _admitted(
        self, place: int, entry: Entry, available: Collection[Need], model: Model
    ) -> LogitsProcessor:
        if isinstance(entry, LogitsProcessorEntry) and entry.from_client:
            self._check_client(entry)
            if entry.ready is None and self._is_clients_form(entry):
                raise InternalError(f"the form {entry.name!r} was not compiled")
        processor = self.create(entry, model)
        if place and comes_first(processor):
            raise InvalidRequestError(
                f"logits processor {entry.name!r} must be the first of a request, because an "
                "engine applies its grammar before all others"
            )
        if missing := needs_of(processor) - set(available):
            words = ", ".join(sorted(need.value for need in missing))
            raise UnsupportedError(
                f"logits processor {entry.name!r} needs {words}, which this engine does not give"
            )
        return processor

    def _check_client(self, entry: LogitsProcessorEntry) -> None:
        clients = self._lookup(entry.name).settings.clients
        if clients == "none":
            raise UnsupportedError(f"logits processor {entry.name!r} is not for requests to name")
        if clients == "select" and entry.args:
            raise UnsupportedError(
                f"logits processor {entry.name!r} takes no arguments from requests"
            )

    def _lookup(self, name: str) -> _Known:
        known = self._known.get(name)
        if known is None:
            raise InvalidRequestError(
                f"unknown logits processor {name!r}; "
                f"this deployment knows: {', '.join(self.names())}",
                param=PARAM,
            )
        return known
