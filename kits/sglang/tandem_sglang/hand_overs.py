"""Runs in SGLang's scheduler processes: SGLang's classes of hand-overs, with what Tandem adds to
them, in the packages from which SGLang takes them for each engine.

- A prefill engine that does not answer keeps no sequence waiting but its own.
- What another engine sends that cannot be read or used ends nothing but its own hand-overs.
- A hand-over has come when all ranks of prefill have written of it.
"""

from __future__ import annotations

from sglang.srt.disaggregation import mooncake, nixl

from tandem_sglang.arrivals import AwaitsAllRanks
from tandem_sglang.layouts import AsksBeside, KnowsRoutes
from tandem_sglang.mooncake import NAME as MOONCAKE
from tandem_sglang.peers import MooncakeGates, NixlGates


class OwnNixlManager(NixlGates, AwaitsAllRanks, AsksBeside, nixl.NixlKVManager):
    """Tandem's NixlKVManager."""


class OwnNixlReceiver(KnowsRoutes, nixl.NixlKVReceiver):
    """Tandem's NixlKVReceiver."""


class OwnMooncakeManager(MooncakeGates, AsksBeside, mooncake.MooncakeKVManager):
    """Tandem's MooncakeKVManager."""


class OwnMooncakeReceiver(KnowsRoutes, mooncake.MooncakeKVReceiver):
    """Tandem's MooncakeKVReceiver."""


def put_in_place(transfer_backend: str) -> None:
    """Call it before the scheduler starts. `transfer_backend`: by SGLang's name."""
    if transfer_backend == MOONCAKE:
        mooncake.MooncakeKVManager = OwnMooncakeManager
        mooncake.MooncakeKVReceiver = OwnMooncakeReceiver
    else:
        nixl.NixlKVManager = OwnNixlManager
        nixl.NixlKVReceiver = OwnNixlReceiver
