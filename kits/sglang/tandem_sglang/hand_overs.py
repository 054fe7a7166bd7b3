"""Runs in a decode engine's scheduler processes: when a hand-over by NIXL has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_WRITTEN = "_tandem_written"


class AwaitsAllRanks:
    """For SGLang's NixlKVManager: a hand-over has come when every rank of prefill that writes of it
    has written all. SGLang waits for the KV of each of them, but for the metadata of one alone,
    which all of them write. The others' would come into a slot that another sequence may have by
    then. And where nobody asks NIXL any more, as on CPUs, whose engines have no thread for that,
    their writes are not acknowledged: prefill keeps the sequence, and a core busy, until decode
    asks about another one.

    Until 0.5.23 is the oldest, which asks nobody to handle notifications: there each rank of
    prefill says itself when it has written all.
    """

    transfer_statuses: Any

    def _handle_aux_notification(self, room: int, components: Sequence[str]) -> None:
        super()._handle_aux_notification(room, components)  # type: ignore[misc]
        status = self.transfer_statuses[room]
        written = getattr(status, _WRITTEN, 0) + 1
        setattr(status, _WRITTEN, written)
        status.received_aux = written >= status.num_pp_ranks_expected
