"""What a program has of engines in its own process alone: its functions edit logits there, its
classifiers judge outputs, and it is given logits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tandem.errors import LoadError
from tandem.hooks.classifiers.classifier_set import ClassifierSet, checked
from tandem.hooks.classifiers.contract import ExternalClassifierHook, ScoringContext
from tandem.logits.callbacks import Callback, batched_callback, callback, with_client_id
from tandem.logits.registry import Registry
from tandem.logits.tap import LogitsTap, Tapped
from tandem_executor.config import LogitsPostProcessorConfig
from tandem_executor.requests import Request

OF_REQUEST = "logits_post_processor"
"""The processor that calls the function of the request itself."""
_LEAVES_NOT = "a function cannot leave its process: register it with the workers, and name it"
_STAY = "logits do not leave the engine's process"
_HOOKED = "logits would show output that hooks and classifiers withhold"
ELSEWHERE = {
    "logits_post_processor_config": _LEAVES_NOT,
    OF_REQUEST: _LEAVES_NOT,
    "return_context_logits": _STAY,
    "return_generation_logits": _STAY,
}
"""What is refused of engines in another process, and why, by the name of the argument."""
HOOKED = dict.fromkeys(("return_context_logits", "return_generation_logits"), _HOOKED)
"""What is refused where hooks or classifiers judge output."""
LoopOf = Callable[[], asyncio.AbstractEventLoop | None]


class LiveClassifier:
    """A program's classifier as workers run it: what it starts and ends is the program's own."""

    def __init__(self, hook: ExternalClassifierHook, loop: LoopOf) -> None:
        """Raises LoadError for what is no classifier."""
        self.name = checked(hook)
        self.blocking, self.timeout_ms = hook.blocking, hook.timeout_ms
        self._hook, self._loop = hook, loop

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        """By the program's event loop, where it has one. Cancelling it cancels the call there."""
        loop = self._loop()
        if loop is None:
            return await self._hook.score(ctx)
        call = self._call(ctx)
        try:
            future = asyncio.run_coroutine_threadsafe(call, loop)
        except RuntimeError:  # the loop is closed
            call.close()
            raise
        return await asyncio.wrap_future(future)

    async def _call(self, ctx: ScoringContext) -> dict[str, Any]:
        return await self._hook.score(ctx)


class LiveCode:
    """Functions and classifiers of one executor: by name for all requests, or a request's own."""

    def __init__(self, given: LogitsPostProcessorConfig | None) -> None:
        """Raises LoadError, naming the function, for one that has not the form of a callback."""
        self.tap = LogitsTap()
        self._functions: dict[int, Callable[..., Any]] = {}
        given = given or LogitsPostProcessorConfig()
        classes: dict[str, type[Callback]] = {OF_REQUEST: callback(self._call)}
        for name, function in (given.processor_map or {}).items():
            with _naming(f"processor_map[{name!r}]"):
                classes[name] = callback(function)
        if given.processor_batched is not None:
            with _naming("processor_batched"):
                batched = batched_callback(given.processor_batched)
            classes[Request.BATCHED_POST_PROCESSOR_NAME] = batched
        self._classes = classes
        self._classifiers: ClassifierSet | None = None
        self.early: list[LiveClassifier] = []
        """Classifiers that were registered before the worker started."""

    @property
    def judged(self) -> bool:
        """Whether there is a classifier, of the settings or the program's own."""
        found = self._classifiers
        return bool(self.early) or (found is not None and len(found) > 0)

    def add_classifier(self, classifier: LiveClassifier) -> None:
        """In the thread of the engines, once they are there. Raises LoadError."""
        if self._classifiers is None:
            self.early.append(classifier)
        else:
            self._classifiers.register_external_classifier_hook(classifier)

    def take_classifiers(self, classifiers: ClassifierSet) -> None:
        """Take the worker's classifiers, to which the program may add. Raises LoadError."""
        self._classifiers = classifiers
        for early in self.early:
            classifiers.register_external_classifier_hook(early)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._classes)

    def register(self, registry: Registry) -> None:
        """Let requests of a worker in this process name them. Raises LoadError where a name cannot
        be, or is taken.
        """
        for name, processor in self._classes.items():
            registry.register(name, processor)

    @contextmanager
    def held(self, request_id: int, trace_id: str, request: Request) -> Iterator[Tapped | None]:
        """Within the block the request's function is called, and its logits are kept in what is
        yielded; None: it asks for none.
        """
        function, output = request.logits_post_processor, request.output_config
        context, generation = output.return_context_logits, output.return_generation_logits
        with ExitStack() as held:
            if function is not None:
                self._functions[request_id] = with_client_id(function)
                held.callback(self._functions.pop, request_id)
            tapped = None
            if context or generation:
                tapped = Tapped(context=context, generation=generation)
                held.enter_context(self.tap.opened(trace_id, tapped))
            yield tapped

    def _call(
        self,
        request_id: int,
        logits: Any,
        token_ids: list[list[int]],
        stream: int | None,
        client_id: int | None,
    ) -> Any:
        """A request that was given up may still be in a step: it is not touched."""
        function = self._functions.get(request_id)
        if function is None:
            return None
        return function(request_id, logits, token_ids, stream, client_id)


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """Within the block a function that cannot be loaded is called by the field that it is in."""
    try:
        yield
    except LoadError as error:
        raise LoadError(f"logits_post_processor_config.{field}: {error}") from error
