"""What an engine promises about logits processors: which may be named, and what they are given."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping

from tandem.engine.base import Role
from tandem.engine.sglang import arguments
from tandem.engine.sglang.options import Options
from tandem.errors import StartError, UnsupportedError
from tandem.logits.processor import Need, needs_of
from tandem.logits.registry import PARAM, Registry
from tandem.logits.spec import LogitsProcessorSpec


class Processors:
    """The registry of a worker, as SGLang can run it."""

    def __init__(self, registry: Registry, role: Role, options: Options) -> None:
        """Raises StartError for a processor that SGLang would pass over, or cannot import."""
        self._registry = registry
        self._speculative = arguments.speculative(options)
        added = sorted(set(registry.names()) - set(Registry.builtin().names()))
        if self._speculative and added:
            raise StartError(
                f"speculative decoding skips logits processors ({', '.join(added)}): "
                "drop speculative_algorithm from server_args, or the processors"
            )
        self.import_paths: Mapping[str, str] = registry.import_paths()
        overlap = not options.disable_overlap_schedule
        self.delay_sampling = overlap and role is not Role.PREFILL and self._want_history()
        """Let sampling wait for the tokens before it: overlap scheduling shows them a step late."""
        exact = role is Role.PREFILL or not overlap or self.delay_sampling
        self._available = frozenset(Need) if exact else frozenset(Need) - {Need.HISTORY}

    @property
    def enabled(self) -> bool:
        """Whether SGLang has to accept processors at all (S3-086)."""
        return bool(self.import_paths) and not self._speculative

    def check(self, spec: LogitsProcessorSpec | None, vocabulary: int) -> None:
        """Raises RequestError for a spec that cannot be run, naming the processor."""
        if spec is None:
            return
        if not self.enabled:
            raise UnsupportedError("this worker runs no logits processors", param=PARAM)
        if any(entry.factory is not None for entry in spec.entries):
            raise UnsupportedError(
                "a live Python object cannot reach SGLang's scheduler: register its class",
                param=PARAM,
            )
        self._registry.check(spec, available=self._available, vocabulary=vocabulary)

    def _want_history(self) -> bool:
        classes = map(pkgutil.resolve_name, self.import_paths.values())
        return any(Need.HISTORY in needs_of(cls) for cls in classes)
