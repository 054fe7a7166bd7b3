"""What the hooks of a process did. Plain numbers: the metrics read them when they are scraped."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

from tandem.histogram import Histogram
from tandem.hooks.settings import HookEntry
from tandem.metrics import HOOK_SECONDS

HookVerdict = Literal["emit", "rewrite", "suppress", "terminate", "error", "timeout"]
HOOK_VERDICTS: tuple[HookVerdict, ...] = get_args(HookVerdict)


class HookCounters:
    """What one hook did, for the metrics."""

    __slots__ = ("held_tokens", "seconds", "sequences", "verdicts")

    def __init__(self) -> None:
        self.verdicts: dict[HookVerdict, int] = dict.fromkeys(HOOK_VERDICTS, 0)
        self.seconds = Histogram(HOOK_SECONDS)
        """How long each call took."""
        self.held_tokens = 0
        """Tokens that wait for a later verdict, now."""
        self.sequences = 0
        """Sequences that the hook was told of and not yet told the end of, now."""


class CountedHook(Protocol):
    """A hook of the chain, wherever it runs, for the metrics."""

    @property
    def entry(self) -> HookEntry: ...

    @property
    def counters(self) -> HookCounters: ...
