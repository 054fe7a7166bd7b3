"""Whose a worker's time is: seconds of computing, of slots and of KV cache, by tenant.

Each second of a worker is divided among the sequences that it computes at the time, in proportion
to their weights; a second in which it computes none is idle. So the seconds of all tenants and the
idle ones are all of the worker's time, whatever ran beside what. A weight is how many tokens a
sequence brings into a step: those of its prompt that are not cached until its first output, one
while it generates, none while it waits for its KV cache, for a verdict or for its router.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from tandem.keys import OTHERS

CANARIES = "_canary"
"""The routers' own sequences."""


class LedgerAccount(Struct, eq=False):
    """What somebody takes of a worker now, and has taken up to the last look at it."""

    weight: int = 0
    slots: int = 0
    kv_tokens: int = 0
    """Tokens of the prompts. Generated tokens are added once their engine lets go of them."""
    seconds: float = 0.0
    """Seconds of the worker's computing."""
    slot_seconds: float = 0.0
    kv_token_seconds: float = 0.0
    share: float = 0.0
    """The ledger's share when this was looked at last, and the time."""
    at: float = 0.0


class Stay(LedgerAccount, kw_only=True):
    """One sequence's account, and its tenant's, which takes all that the sequence takes."""

    tenant: LedgerAccount


class Taken(NamedTuple):
    """The time of a worker in one phase, as divided among tenants."""

    idle: float
    """Seconds in which nothing was computed; where phases share a process, each has its part."""
    tenants: dict[str, tuple[float, float, float]]
    """Seconds of computing, of slots, and token-seconds of KV cache, by the tenant's name."""


class Ledger:
    """The accounts of one process. Its methods are told the time, by one clock, in order."""

    def __init__(self, *, accounts: int, phases: int = 1, portion: float = 1.0) -> None:
        """`accounts`: tenants with accounts of their own, at most, in a phase. `phases`: how many
        share this ledger. `portion`: of a second of the worker, which several processes have.
        """
        self._most = accounts
        self._phases = phases
        self._portion = portion
        self._weight = 0
        self._share = 0.0
        """Seconds of computing that a weight of one has had since the worker was idle last."""
        self._at: float | None = None
        self._idle = 0.0
        self._tenants: dict[tuple[int, str], LedgerAccount] = {}

    def begin(self, now: float, phase: int, tenant: str, *, weight: int, kv_tokens: int) -> Stay:
        """A sequence takes a slot."""
        key = phase, tenant
        if key not in self._tenants and len(self._tenants) >= self._most * self._phases:
            key = phase, OTHERS
        stay = Stay(tenant=self._tenants.setdefault(key, LedgerAccount()))
        self._change(now, stay, weight=weight, slots=1, kv_tokens=kv_tokens)
        return stay

    def weigh(self, now: float, stay: Stay, weight: int) -> None:
        """A sequence brings another number of tokens into a step from now on."""
        self._change(now, stay, weight=weight, slots=stay.slots, kv_tokens=stay.kv_tokens)

    def let_go(self, now: float, stay: Stay, *, generated: float) -> None:
        """The engine holds nothing of a sequence any more. `generated`: token-seconds of the KV of
        what the sequence generated, which its own account leaves out.
        """
        self._change(now, stay, weight=0, slots=stay.slots, kv_tokens=0)
        stay.tenant.kv_token_seconds += generated

    def end(self, now: float, stay: Stay) -> None:
        """A sequence gives its slot back."""
        self._change(now, stay, weight=0, slots=0, kv_tokens=0)

    def read(self, now: float, phase: int) -> Taken:
        """What has been taken in one phase, up to now."""
        self._pass(now)
        for account in self._tenants.values():
            self._look(account)
        tenants = {
            name: (each.seconds, each.slot_seconds, each.kv_token_seconds)
            for (of, name), each in self._tenants.items()
            if of == phase
        }
        return Taken(self._idle / self._phases, tenants)

    def taken(self, now: float, stay: Stay) -> Stay:
        """A sequence's account, brought up to now."""
        self._pass(now)
        self._look(stay)
        return stay

    def _change(self, now: float, stay: Stay, *, weight: int, slots: int, kv_tokens: int) -> None:
        self._pass(now)
        more = weight - stay.weight, slots - stay.slots, kv_tokens - stay.kv_tokens
        for account in (stay, stay.tenant):
            self._look(account)
            account.weight += more[0]
            account.slots += more[1]
            account.kv_tokens += more[2]
        self._weight += more[0]
        if not self._weight:
            self._share = 0.0  # nobody's time is measured by it now, and small numbers are exact

    def _pass(self, now: float) -> None:
        """Divide the time since the last call."""
        seconds = 0.0 if self._at is None else now - self._at
        self._at = now
        if self._weight:
            self._share += self._portion * seconds / self._weight
        else:
            self._idle += self._portion * seconds

    def _look(self, account: LedgerAccount) -> None:
        assert self._at is not None
        if account.weight:
            account.seconds += account.weight * (self._share - account.share)
        seconds = self._at - account.at
        account.slot_seconds += account.slots * seconds
        account.kv_token_seconds += account.kv_tokens * seconds
        account.share, account.at = self._share, self._at
