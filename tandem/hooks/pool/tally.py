"""The tallies of hooks that run in several processes, added up."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.hooks.pool.wire import Tallies, TallyState, WireError
from tandem.hooks.settings import HookEntry
from tandem.hooks.tally import COUNTED, HookTally, Tallied


class PooledHook:
    """One hook of the chain, as the metrics read it: all processes together."""

    def __init__(self, entry: HookEntry) -> None:
        self.entry = entry
        self.tally = HookTally()


class ProcessTally:
    """What one process has counted so far. It stays counted when the process is gone."""

    def __init__(self, hooks: Sequence[PooledHook]) -> None:
        self._hooks = hooks
        self._states = [_state(HookTally()) for _ in hooks]

    def update(self, tallies: Tallies) -> None:
        """Raises WireError."""
        if len(tallies.hooks) != len(self._hooks):
            raise WireError("the tallies of another chain")
        for hook, before, state in zip(self._hooks, self._states, tallies.hooks, strict=True):
            _add(hook.tally, before, state)
        self._states = tallies.hooks

    def gone(self) -> None:
        """What the process held at last, it holds no more."""
        for hook, state in zip(self._hooks, self._states, strict=True):
            hook.tally.held_tokens -= state.held_tokens
            hook.tally.sequences -= state.sequences
            state.held_tokens = state.sequences = 0


def tallies_of(hooks: Sequence[Tallied]) -> Tallies:
    """As they travel."""
    return Tallies([_state(hook.tally) for hook in hooks])


def _state(tally: HookTally) -> TallyState:
    return TallyState(
        verdicts={str(counted): count for counted, count in tally.verdicts.items()},
        buckets=list(tally.seconds.counts),
        seconds=tally.seconds.total,
        held_tokens=tally.held_tokens,
        sequences=tally.sequences,
    )


def _add(tally: HookTally, before: TallyState, state: TallyState) -> None:
    for counted in COUNTED:
        tally.verdicts[counted] += state.verdicts.get(counted, 0) - before.verdicts.get(counted, 0)
    if len(state.buckets) != len(tally.seconds.counts):
        raise WireError("the buckets of another version")
    for place, count in enumerate(state.buckets):
        tally.seconds.counts[place] += count - before.buckets[place]
    tally.seconds.total += state.seconds - before.seconds
    tally.held_tokens += state.held_tokens - before.held_tokens
    tally.sequences += state.sequences - before.sequences
