"""All classifiers of a worker: registered once, judging every output together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from tandem.errors import LoadError
from tandem.hooks.classifiers.contract import ExternalClassifierHook, ScoringContext
from tandem.hooks.classifiers.counters import Decision
from tandem.hooks.classifiers.loader import load_classifier, load_plugin
from tandem.hooks.classifiers.runner import ClassifierRunner
from tandem.hooks.classifiers.scores import AS_BEFORE, ClassifierAnswer
from tandem.hooks.classifiers.settings import ClassifierSettings, Resampling
from tandem.usercode.loader import check_takes_one, is_async


@dataclass(slots=True, frozen=True, kw_only=True)
class Judgement:
    """What all classifiers together made of an output."""

    blocked_by: str | None = None
    """The first blocking classifier, in the order of registration, that blocked or failed
    (S4-109). None: the output may be shown.
    """
    replacement: str = ""
    """Where it is blocked, the text to show instead."""
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    """Each classifier's decision, by the classifier's name."""
    scores: Mapping[str, Any] = field(default_factory=dict)
    """external_scores: what each answered, by its name."""
    regenerate: bool | None = None
    """Whether the classifier that blocks asks for another try; None: it does not say."""
    sampling: Resampling = AS_BEFORE
    """How it asks for that to be sampled."""
    seconds: float = 0.0

    @property
    def blocked(self) -> bool:
        return self.blocked_by is not None

    @property
    def failed(self) -> bool:
        """Whether the output is blocked because a blocking classifier could not judge it."""
        return self.blocked_by is not None and self.decisions.get(self.blocked_by) != "block"


class ClassifierSet:
    """Classifiers in the order of their registration: those of the settings, then those that
    plugins register.
    """

    def __init__(self, settings: ClassifierSettings, *, model: str) -> None:
        self.settings = settings
        self.model = model
        """What clients call the served model; a plugin may register other classifiers for it."""
        self._runners: dict[str, ClassifierRunner] = {}

    @classmethod
    def build(cls, settings: ClassifierSettings, *, model: str) -> ClassifierSet:
        """With everything that the settings name for this model. Raises LoadError."""
        built = cls(settings, model=model)
        for entry in settings.entries:
            if entry.applies(model):
                built.register_external_classifier_hook(load_classifier(entry))
        for plugin in settings.plugins:
            load_plugin(plugin)(built)
        return built

    def __len__(self) -> int:
        return len(self._runners)

    @property
    def runners(self) -> tuple[ClassifierRunner, ...]:
        """In order; each with `.name` and `.counters`."""
        return tuple(self._runners.values())

    @property
    def blocks(self) -> bool:
        """Whether some classifier may block an output."""
        return any(runner.blocking for runner in self._runners.values())

    @property
    def resumable(self) -> bool:
        """Whether all may judge again what another worker's classifiers have judged."""
        return all(
            getattr(runner.hook, "resumable", False) is True for runner in self._runners.values()
        )

    def register_external_classifier_hook(self, hook: ExternalClassifierHook) -> None:
        """Let a classifier judge the outputs that begin from now on. One that has a `startup` is
        registered before the worker's. Raises LoadError: the hook lacks something, its `score` is
        synchronous (S4-116), or its name is taken (S4-108).
        """
        name = checked(hook)
        if name in self._runners:
            raise LoadError(f"there are two classifiers named {name!r}: give each its own name")
        self._runners[name] = ClassifierRunner(hook, self.settings)

    async def startup(self) -> None:
        """Run the classifiers' own. Raises LoadError."""
        for runner in self._runners.values():
            await runner.startup()

    async def shutdown(self) -> None:
        """Run the classifiers' own, in bounded time."""
        for runner in reversed(self._runners.values()):
            await runner.shutdown()

    async def judge(
        self, ctx: ScoringContext, runners: Sequence[ClassifierRunner] | None = None
    ) -> Judgement:
        """Ask all at once; it takes as long as the slowest (S4-099), and no longer than the longest
        timeout. Raises nothing but this task's own cancellation, which cancels them all (S4-115).
        `runners`: those that were registered when the output began; None: all there are.
        """
        began = perf_counter()
        asked = self.runners if runners is None else runners
        answers = await asyncio.gather(*(runner.run(ctx) for runner in asked))
        names = [runner.name for runner in asked]
        return self._joined(dict(zip(names, answers, strict=True)), perf_counter() - began)

    def _joined(self, answers: Mapping[str, ClassifierAnswer], seconds: float) -> Judgement:
        scores = {name: answer.scores for name, answer in answers.items()}
        decisions = {name: answer.decision for name, answer in answers.items()}
        for name, answer in answers.items():
            if answer.blocks:
                replacement = answer.replacement
                return Judgement(
                    blocked_by=name,
                    replacement=self.settings.refusal if replacement is None else replacement,
                    decisions=decisions,
                    scores=scores,
                    regenerate=answer.regenerate,
                    sampling=answer.sampling,
                    seconds=seconds,
                )
        return Judgement(decisions=decisions, scores=scores, seconds=seconds)


def checked(hook: Any) -> str:
    """The name of a hook that has all it needs. Raises LoadError."""
    kind = type(hook).__name__
    name = getattr(hook, "name", None)
    if not isinstance(name, str) or not name:
        raise LoadError(f"classifier {kind} needs a name, not {name!r}")
    blocking = getattr(hook, "blocking", None)
    if not isinstance(blocking, bool):
        raise LoadError(f"classifier {name!r}: blocking must be true or false, not {blocking!r}")
    timeout: Any = getattr(hook, "timeout_ms", None)
    if type(timeout) not in (int, float) or not 0 < timeout <= 3_600_000:
        raise LoadError(f"classifier {name!r}: timeout_ms must be above 0, not {timeout!r}")
    score = getattr(hook, "score", None)
    if not callable(score):
        raise LoadError(f"classifier {name!r} has no method score(self, ctx)")
    if not is_async(score):
        raise LoadError(f"classifier {name!r}: its score must be async: write `async def score`")
    check_takes_one(score, f"classifier {name!r}: its score must take the context alone")
    return name
