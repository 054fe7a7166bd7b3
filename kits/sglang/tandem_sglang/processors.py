"""What an engine promises about logits processors: which may be named, and what they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tandem.errors import StartError, UnsupportedError
from tandem.logits import embedding_bias
from tandem.logits.model import Model
from tandem.logits.processor import EVERYTHING, Need, deterministic, needs_of
from tandem.logits.ready import READY
from tandem.logits.ready.choice import Choice
from tandem.logits.ready.grammar import GrammarProcessor
from tandem.logits.ready.tagged import Tagged
from tandem.logits.registry import Registry
from tandem.logits.spec import PARAM, LogitsProcessorEntry, LogitsProcessorSpec
from tandem.sampling import MAX_INT32
from tandem.v1 import common_pb2
from tandem_sglang import arguments
from tandem_sglang.options import Options
from tandem_sglang.units import Withheld

_NONE = "this worker has none"
_DRAFTED = "this worker decodes speculatively, and what verifies drafts skips them"
_STAGED = "this worker runs a model in parts, of which only the last would see one fail"


@dataclass(slots=True, frozen=True)
class Steering:
    """A request's processors as SGLang runs them."""

    spec: tuple[LogitsProcessorEntry, ...] = ()
    """The processors that run in the scheduler, in order."""
    reads_history: bool = False
    bias: common_pb2.EmbeddingBias | None = None
    """Applied after them."""
    grammar: Mapping[str, str] = field(default_factory=dict)
    """What SGLang's own grammar does instead: at most one field of its sampling parameters."""


class Processors:
    """The registry of a worker, as SGLang can run it."""

    def __init__(
        self, registry: Registry, options: Options, model: Model, ranks: int = 1, stages: int = 1
    ) -> None:
        """`ranks`: how many run each of them. `stages`: parts of the model that have some of its
        layers each. Raises StartError for a processor that SGLang would pass over, that it cannot
        import, or that several ranks would not agree on.
        """
        self._registry = registry
        self._model = model
        backend = arguments.grammar_backend(options)
        self._tagged_field = arguments.TAGGED_FIELDS[backend]
        always = {entry.name for entry in registry.always()}
        added = sorted(always | set(registry.names()) - set(READY))
        own = [name for name in added if not self._is_form(name)]
        speculative = arguments.speculative(options)
        if speculative and own:
            raise StartError(
                f"speculative decoding skips logits processors ({', '.join(own)}): "
                "drop speculative_algorithm from server_args, or the processors"
            )
        if stages > 1 and own:
            raise StartError(
                f"logits processors ({', '.join(own)}) run in the last part of a model alone, and"
                " the others would not see one fail: set pipeline_parallel to 1, or drop them"
            )
        self._obstacle = _obstacle(registry, speculative=speculative, stages=stages)
        self.no_forms = arguments.without_grammars(options)
        """Why no answer can be given a form; empty: some can."""
        self._no_histories = ""
        if self.no_forms and (forms := sorted(filter(self._is_form, always))):
            raise StartError(
                f"{self.no_forms}, and every request is to have a form ({', '.join(forms)}): drop"
                " speculative_algorithm from server_args, or the forms"
            )
        if ranks > 1:
            _check_deterministic(registry)
        registry.check_always(model)
        tagged = [name for name in always if issubclass(registry.classes()[name], Tagged)]
        if tagged and backend != "llguidance":
            raise StartError(
                f"logits processor {tagged[0]!r} is set to be applied always, which needs the "
                f"grammar backend llguidance, not {backend}"
            )
        self.portable: Mapping[str, Any] = registry.portable()
        """For the scheduler's process: what `Registry.from_portable` takes."""

    @property
    def enabled(self) -> bool:
        """Whether SGLang has to accept processors at all (S3-086)."""
        return not self._obstacle

    def withhold(self, what: Withheld, why: str) -> None:
        """Refuse what a started engine turned out to lack a unit for. Raises StartError where every
        request is to have a processor of that kind.
        """
        if what in (Withheld.FORMS, Withheld.ALL):
            self.no_forms = self.no_forms or why
        if what is Withheld.HISTORIES:
            self._no_histories = why
        if what is Withheld.ALL:
            self._obstacle = self._obstacle or why
        always = {entry.name for entry in self._registry.always()}
        if never := sorted(always & self.refused()):
            raise StartError(
                f"{why}, and every request is to have {', '.join(never)}: drop the logits"
                " processors, or install a release of SGLang that this Tandem names"
            )

    def refused(self) -> frozenset[str]:
        """The processors of the registry that requests cannot have here."""
        return frozenset(
            name
            for name, cls in self._registry.classes().items()
            if (self.no_forms if self._is_form(name) else self._why_not(cls))
        )

    def _why_not(self, processor: object) -> str:
        """Why a processor that is no form, or its class, does not run here; empty: it does."""
        reads = Need.HISTORY in needs_of(processor)
        return self._obstacle or (self._no_histories if reads else "")

    def steering(
        self,
        spec: LogitsProcessorSpec | None,
        bias: common_pb2.EmbeddingBias | None = None,
        *,
        max_tokens: int = MAX_INT32,
    ) -> Steering | None:
        """Raises RequestError for a spec that cannot be run, naming the processor. `max_tokens`: of
        the answer.
        """
        if bias is not None:
            self._check_applied(embedding_bias.PARAM)
        if spec is None:
            return None if bias is None else Steering(bias=bias)
        named = spec.named()
        built = self._registry.check(
            spec, available=EVERYTHING, model=self._model, max_tokens=max_tokens
        )
        engines: dict[str, str] = {}
        own: list[LogitsProcessorEntry] = []
        reads_history = False
        for place, (entry, processor) in enumerate(zip(named, built, strict=True)):
            if isinstance(processor, GrammarProcessor):
                self._check_forms(f"{PARAM}[{place}]")
                field = self._tagged_field if processor.kind == "tagged" else processor.kind
                engines[field] = processor.for_engine
                continue
            self._check_applied(f"{PARAM}[{place}]", entry.name, processor)
            if isinstance(processor, Choice):  # the scheduler would tokenise it on its loop
                entry = replace(entry, args=processor.in_tokens(), ready=None)
            own.append(entry)
            reads_history |= Need.HISTORY in needs_of(processor)
        return Steering(tuple(own), reads_history, bias, engines)

    def _is_form(self, name: str) -> bool:
        """SGLang applies it itself, as a grammar."""
        return issubclass(self._registry.classes()[name], GrammarProcessor)

    def _check_applied(self, param: str, name: str = "", processor: object = None) -> None:
        """For whatever is none of SGLang's grammars. `processor`: of that name."""
        if why := self._why_not(processor) if name else self._obstacle:
            asked = f" ({name})" if name else ""
            raise UnsupportedError(f"no logits processors{asked}: {why}", param=param)

    def _check_forms(self, param: str) -> None:
        if self.no_forms:
            raise UnsupportedError(f"no answers of a form: {self.no_forms}", param=param)


def _obstacle(registry: Registry, *, speculative: bool, stages: int) -> str:
    """Why no logits processors run; empty: they do."""
    if not registry.names():
        return _NONE
    if speculative:
        return _DRAFTED
    return _STAGED if stages > 1 else ""


def _check_deterministic(registry: Registry) -> None:
    for name, cls in registry.classes().items():
        if not deterministic(cls):
            raise StartError(
                f"logits processor {name!r} is not deterministic, and every tensor-parallel rank "
                "runs it: set tensor_parallel to 1, or drop the processor"
            )
