"""The counters of hooks that run in several processes, added up."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.hooks.counters import HOOK_VERDICTS, CountedHook, HookCounters
from tandem.hooks.runner.processes.wire import AllCounted, Counted
from tandem.hooks.settings import HookEntry
from tandem.pool.frames import WireError


class PooledHook:
    """One hook of the chain, as the metrics read it: all processes together."""

    def __init__(self, entry: HookEntry) -> None:
        self.entry = entry
        self.counters = HookCounters()


class ProcessCounters:
    """What one process has counted so far. It stays counted when the process is gone."""

    def __init__(self, hooks: Sequence[PooledHook]) -> None:
        self._hooks = hooks
        self._counted = [_counted(HookCounters()) for _ in hooks]

    def update(self, counts: AllCounted) -> None:
        """Raises WireError."""
        if len(counts.hooks) != len(self._hooks):
            raise WireError("the counters of another chain")
        for hook, before, counted in zip(self._hooks, self._counted, counts.hooks, strict=True):
            _add(hook.counters, before, counted)
        self._counted = counts.hooks

    def gone(self) -> None:
        """What the process held at last, it holds no more."""
        for hook, counted in zip(self._hooks, self._counted, strict=True):
            hook.counters.held_tokens -= counted.held_tokens
            hook.counters.sequences -= counted.sequences
            counted.held_tokens = counted.sequences = 0


def counts_of(hooks: Sequence[CountedHook]) -> AllCounted:
    """The message with the counters of each hook."""
    return AllCounted([_counted(hook.counters) for hook in hooks])


def _counted(counters: HookCounters) -> Counted:
    return Counted(
        verdicts=list(counters.verdicts.values()),
        seconds=list(counters.seconds.counts),
        total_seconds=counters.seconds.total,
        held_tokens=counters.held_tokens,
        sequences=counters.sequences,
    )


def _add(counters: HookCounters, before: Counted, counted: Counted) -> None:
    seconds = counters.seconds
    if len(counted.seconds) != len(seconds.counts) or len(counted.verdicts) != len(HOOK_VERDICTS):
        raise WireError("the counters of another version")
    for verdict, old, new in zip(HOOK_VERDICTS, before.verdicts, counted.verdicts, strict=True):
        counters.verdicts[verdict] += new - old
    for place, (old, new) in enumerate(zip(before.seconds, counted.seconds, strict=True)):
        seconds.counts[place] += new - old
    seconds.total += counted.total_seconds - before.total_seconds
    counters.held_tokens += counted.held_tokens - before.held_tokens
    counters.sequences += counted.sequences - before.sequences
