"""The output hooks of a worker, wherever they run."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.hooks.chain import Chain
from tandem.hooks.contract import Phase
from tandem.hooks.deferred import DeferredHooks, Deliver
from tandem.hooks.settings import parse
from tandem.hooks.tally import Tallied
from tandem.worker.config import WorkerConfig


class WorkerHooks:
    """In this process and at once, where no hook is async; else deferred."""

    def __init__(self, runs: Chain | DeferredHooks, tallied: Sequence[Tallied]) -> None:
        self.runs = runs
        self.tallied = tallied

    @classmethod
    def load(cls, phase: Phase, config: WorkerConfig) -> WorkerHooks | None:
        """None: this worker has no hook. Raises ConfigError or LoadError."""
        model = config.model_name()
        settings = parse(config.hook, config.hooks).for_worker(phase, model)
        if not settings.chain:
            return None
        if settings.workers:
            from tandem.hooks.pool import HookPool

            pool = HookPool(settings, phase=phase, model=model)
            return cls(pool, pool.hooks)
        chain = Chain.build(settings, phase=phase, model=model)
        if chain.is_async:
            from tandem.hooks.host import ChainHost

            return cls(ChainHost(chain), chain.hooks)
        return cls(chain, chain.hooks)

    async def start(self, deliver: Deliver) -> None:
        """`deliver` gets what deferred hooks ruled. Raises LoadError or StartError."""
        if isinstance(self.runs, Chain):
            await self.runs.startup()
        else:
            await self.runs.start(deliver)

    async def close(self) -> None:
        """In bounded time."""
        if isinstance(self.runs, Chain):
            await self.runs.shutdown()
        else:
            await self.runs.close()
