"""The output hooks of a worker, wherever they run."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tandem.hooks.audit import AuditLog
from tandem.hooks.audit import parse as parse_audit
from tandem.hooks.chain import Chain
from tandem.hooks.contract import Phase
from tandem.hooks.counters import CountedHook
from tandem.hooks.deferred import DeferredHooks
from tandem.hooks.runner import in_this_process
from tandem.hooks.runner.processes.pool import HookPool
from tandem.hooks.settings import HookSettings, parse
from tandem.worker.config import WorkerConfig


class WorkerHooks:
    """A worker's hooks, their processes, and their counters."""

    def __init__(
        self,
        runs: DeferredHooks,
        counted: Sequence[CountedHook],
        audit: AuditLog | None = None,
    ) -> None:
        self.runs = runs
        self.counted = counted
        self.audit = audit
        """What this process writes; those of a pool write themselves."""

    @classmethod
    def load(cls, phase: Phase, config: WorkerConfig) -> WorkerHooks | None:
        """None: this worker has no hook. Raises ConfigError or LoadError."""
        model, settings = config.model_name(), _settings(phase, config)
        if not settings.chain:
            return None
        if settings.workers:
            pool = HookPool(
                settings,
                phase=phase,
                model=model,
                log_format=config.log_format,
                log_level=config.log_level,
            )
            return cls(pool, pool.hooks)
        chain = Chain.build(settings, phase=phase, model=model)
        return cls(in_this_process(chain), chain.hooks, chain.audit)

    @staticmethod
    def check(phase: Phase, config: WorkerConfig) -> None:
        """Build the chain in this process, wherever it is to run. Raises ConfigError or
        LoadError.
        """
        Chain.build(_settings(phase, config), phase=phase, model=config.model_name())

    @property
    def pool(self) -> HookPool | None:
        """None: no process but this one runs hooks."""
        return self.runs if isinstance(self.runs, HookPool) else None


def _settings(phase: Phase, config: WorkerConfig) -> HookSettings:
    """What this worker runs. Raises ConfigError."""
    return replace(
        parse(config.hook, config.hooks).for_worker(phase, config.model_name()),
        audit=parse_audit(config.audit),
        worker=config.worker_name(phase),
    )
