"""The fleet that a trace is replayed on, as its file describes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from tandem.errors import ConfigError
from tandem_router.core.values import Disaggregate
from tandem_tools.trace_replay import times
from tandem_tools.trace_replay.times import Times

MOST_WORKERS = 10_000
"""Workers of a role: each reports once a virtual second to each router."""
RESTART_SECONDS = 5.0
"""From a router's death until the one in its place takes requests."""
LEAST_KILL_SECONDS = 2 * RESTART_SECONDS
FRESH_MS, KNOWN_MS = 1.2, 0.035
"""CPU of reading 1,000 tokens of a prompt, by whether an earlier prompt began with them. Measured
by benchmarks/long_turns.py at commit 8769d1cf, 30 November 2026, on an Intel Xeon with 2 cores that
had much other work."""
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_WORKERS)]
_Slots = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class ReplayedPool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Equal workers with one role."""

    workers: _Count = 0
    slots: _Slots = 256
    """Sequences open at once, of one worker: its `max_sequences`."""
    kv_tokens: _Tokens = 0
    """What its KV cache holds: a prompt and its output, from when they are let in to their end.
    Prefill does not use it. 0: room for all.
    """
    cache_tokens: _Tokens = 0
    """What it keeps of prompts that are done. Decode does not use it. 0: nothing."""
    chunk_tokens: Annotated[int, msgspec.Meta(ge=1)] = 8192
    """AGGREGATED: between so many tokens of prompts, those that run get a token each."""


class Frontends(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Equal frontends, and what reading a prompt costs them: parse, render, tokenise, hash. The
    costs are those that benchmarks/long_turns.py prints; see docs/replay.md.
    """

    workers: _Count = 0
    """0: reading takes no time."""
    processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    """Each frontend's `read_processes`."""
    store_mb: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 128
    """Each frontend's `prefix_store_mb`."""
    sticky: bool = False
    """A session's requests all go to one frontend; else any frontend gets each."""
    fresh_ms: _Milliseconds = FRESH_MS
    """CPU of 1,000 tokens that are read."""
    known_ms: _Milliseconds = KNOWN_MS
    """CPU of 1,000 tokens that an earlier prompt began with."""


class FleetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fleet as its YAML file describes it."""

    times: Times | str
    """The table, or the path of its file, from this file's folder."""
    prefill: ReplayedPool = ReplayedPool()
    decode: ReplayedPool = ReplayedPool()
    aggregated: ReplayedPool = ReplayedPool()
    frontends: Frontends = Frontends()
    routers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    router_kill_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """How often one of the routers is killed, each in its turn. 0: never; else 10 or more, so that
    the one in its place is there before the next is killed.
    """
    early_reports_per_second: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 10.0
    """The workers' setting with that name."""
    disaggregate: Disaggregate = "auto"
    """As the routers' setting of that name."""
    max_queue: Annotated[int, msgspec.Meta(ge=1)] = 1024
    """The routers' setting with that name."""
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 600.0
    """A request that takes longer has failed."""

    def __post_init__(self) -> None:
        if bool(self.prefill.workers) is not bool(self.decode.workers):
            raise ValueError("prefill and decode make pairs: there are workers of both, or of none")
        if 0 < self.router_kill_seconds < LEAST_KILL_SECONDS:
            raise ValueError(f"`router_kill_seconds` is 0, or {LEAST_KILL_SECONDS:.0f} or more")
        if not (self.prefill.workers or self.aggregated.workers):
            raise ValueError("a fleet needs workers")

    @property
    def table(self) -> Times:
        """The table of times, once the file was read by `read`."""
        assert isinstance(self.times, Times)
        return self.times

    @property
    def workers(self) -> int:
        """How many workers the fleet has in all roles."""
        return self.prefill.workers + self.decode.workers + self.aggregated.workers

    @property
    def cache_tokens(self) -> int:
        """What all caches of prompts hold together."""
        return sum(each.workers * each.cache_tokens for each in (self.prefill, self.aggregated))

    @property
    def name(self) -> str:
        """The fleet's name, such as 2:1 for pairs, 3 aggregated, or 2:1 + 1 aggregated."""
        pairs = f"{self.prefill.workers}:{self.decode.workers}" if self.prefill.workers else ""
        alone = f"{self.aggregated.workers} aggregated" if self.aggregated.workers else ""
        return " + ".join(filter(None, (pairs, alone)))

    def with_workers(self, prefill: int, decode: int, aggregated: int = 0) -> FleetFile:
        """The fleet with other numbers of workers. Raises ConfigError for one that cannot be."""
        values = msgspec.to_builtins(self)
        values["prefill"]["workers"] = prefill
        values["decode"]["workers"] = decode
        values["aggregated"]["workers"] = aggregated
        try:
            return msgspec.convert(values, FleetFile)
        except ValueError as error:
            raise ConfigError(f"{prefill}:{decode}:{aggregated}: {error}") from error


def read(path: Path) -> FleetFile:
    """A fleet with its table of times. Raises ConfigError where a file cannot be read, or is none
    of the kind.
    """
    found = times.decoded(path, FleetFile)
    if isinstance(found.times, Times):
        return found
    return msgspec.structs.replace(found, times=times.read(path.parent / found.times))
