"""Part of sglang_scheduler_side.py: what decode makes of notifications, by SGLang's own manager."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from sglang.srt.disaggregation.nixl import conn
from sglang_units import OwnNixlManager

ROOM = 5
CASES = {
    "one rank": (1, ["5_kv_0_1_0", "5_aux"]),
    "two ranks": (2, ["5_kv_0_1_0", "5_aux", "5_kv_0_1_1", "5_aux"]),
    "the second writes its metadata first": (2, ["5_aux", "5_aux", "5_kv_0_1_1", "5_kv_0_1_0"]),
    "in two chunks": (
        2,
        ["5_kv_0_0_0", "5_kv_0_0_1", "5_kv_1_1_1", "5_kv_1_1_0", "5_aux", "5_aux"],
    ),
    "the second had all cached": (2, ["5_kv_0_1_0", "5_aux", "5_aux_nokv_1_0"]),
}


def hand_overs_by_what_has_come() -> Any:
    """After which notification each of them counts as come, from 1; 0: after none. None: this
    SGLang reads no notifications.
    """
    if not hasattr(conn, "TransferStatus"):
        return None
    return {name: _come_after(ranks, said) for name, (ranks, said) in CASES.items()}


def _come_after(ranks: int, said: Sequence[str]) -> int:
    manager: Any = OwnNixlManager.__new__(OwnNixlManager)
    manager.transfer_statuses = defaultdict(conn.TransferStatus)
    manager.required_prefill_response_num_table = {ROOM: ranks}
    manager.enable_staging = False
    for count, message in enumerate(said, start=1):
        notifications = {"prefill": [message.encode()]}
        manager.agent = SimpleNamespace(get_new_notifs=lambda said=notifications: said)
        manager.update_transfer_status()
        if manager.transfer_statuses[ROOM].is_done():
            return count
    return 0
