"""Faults on demand: what the sim engine does wrong, and to which of its requests."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass

from tandem import ranges
from tandem.config import setting
from tandem.errors import ConfigError

CRASH_STATUS = 70
"""Exit status of a process that a crash fault ended."""


class Fault(enum.StrEnum):
    DROP = "drop"
    WITHHOLD = "withhold"
    CORRUPT = "corrupt"
    STALE = "stale"
    REUSED = "reused"
    BELATED = "belated"
    DOUBLED = "doubled"
    TENANT = "tenant"
    ADAPTER = "adapter"
    DELAY = "delay"
    STALL = "stall"
    SLOW = "slow"
    CRASH = "crash"
    FAIL = "fail"


class Selector(str):
    """Which requests a fault hits: "never", "always", "nth:N" (the Nth submitted to this engine,
    from 1), "every:N" (each Nth), "after:N" (each after the Nth), or "p:X" (each with probability
    X, decided by the seed).
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Selector:
        """Raises ValueError for a text that is none of these forms."""
        kind, _, number = text.partition(":")
        if kind in ("nth", "every", "after"):
            good = number.isdecimal() and int(number) >= 1
        elif kind == "p":
            good = 0.0 <= float(number or "nan") <= 1.0
        else:
            good = text in ("never", "always")
        if not good:
            raise ValueError("use never, always, nth:N, every:N, after:N or p:X")
        return super().__new__(cls, text)

    def hits(self, index: int, *, salt: str) -> bool:
        """Whether request `index`, counted from 1, is hit. The same for the same arguments."""
        kind, _, number = self.partition(":")
        if kind == "nth":
            return index == int(number)
        if kind == "every":
            return index % int(number) == 0
        if kind == "after":
            return index > int(number)
        if kind == "p":
            digest = hashlib.blake2b(f"{salt}:{index}".encode(), digest_size=8).digest()
            return int.from_bytes(digest, "big") / 2**64 < float(number)
        return kind == "always"


_NEVER = Selector("never")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Each fault with the requests it hits. As options of the engine their names begin "fault_"."""

    drop: Selector = setting(_NEVER, "PREFILL computes, but never hands over.")
    withhold: Selector = setting(_NEVER, "PREFILL hands over without writing the last KV page.")
    corrupt: Selector = setting(_NEVER, "PREFILL damages one byte of KV after its checksum.")
    stale: Selector = setting(_NEVER, "PREFILL hands over what its pages held before the prompt.")
    reused: Selector = setting(
        _NEVER, "PREFILL gives the prompt's pages to another prompt before they are handed over."
    )
    belated: Selector = setting(
        _NEVER, "PREFILL says that KV has landed, and writes it `fault_delay_ms` later."
    )
    doubled: Selector = setting(
        _NEVER, "PREFILL writes and says all of a hand-over again, `fault_delay_ms` later."
    )
    tenant: Selector = setting(_NEVER, "PREFILL hands over the KV of another cache salt.")
    adapter: Selector = setting(_NEVER, "PREFILL hands over the KV of another LoRA adapter.")
    delay: Selector = setting(_NEVER, "PREFILL hands over `fault_delay_ms` late.")
    delay_ms: float = setting(200.0, "Delay of what comes late or again, ms.", at_least=0)
    stall: Selector = setting(
        _NEVER, "The engine computes nothing for `fault_stall_seconds` when the request's turn is."
    )
    stall_seconds: float = setting(
        0.0, "Time for which the engine stalls, s. 0: for ever.", at_least=0
    )
    slow: Selector = setting(_NEVER, "Steps with the request in them take `fault_slow_ms` longer.")
    slow_ms: float = setting(100.0, "Time that a slow step takes longer, ms.", at_least=0)
    fail: Selector = setting(_NEVER, "The engine fails the request as soon as the request comes.")
    crash: Selector = setting(_NEVER, "The process exits at once, at `fault_crash_at`.")
    crash_at: str = setting(
        "decode",
        "Where the process exits: prefill (before computing), transfer (PREFILL: the write has"
        " begun; DECODE: pages are offered) or decode (before the second token).",
    )
    seed: int = setting(0, "Seed of the random choice that p:X makes.")

    def __post_init__(self) -> None:
        if self.crash_at not in ("prefill", "transfer", "decode"):
            raise ConfigError("fault_crash_at must be prefill, transfer or decode")
        ranges.check(self, owner="engine option fault_")

    def active(self) -> tuple[tuple[Fault, Selector], ...]:
        """The switches that can hit anything."""
        switches = ((fault, getattr(self, fault.value)) for fault in Fault)
        return tuple((fault, selector) for fault, selector in switches if selector != _NEVER)
