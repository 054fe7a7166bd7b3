"""What becomes of messages about hand-overs: checks of sglang_scheduler_side.py, by the threads of
SGLang that read them, on sockets of the test."""

from __future__ import annotations

import logging
import queue
import struct
import threading
from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.nixl.conn import GUARD
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang_units import OwnMooncakeManager, OwnNixlManager

from tandem_sglang import once

SECONDS = 60.0
ENDPOINT = (b"10.0.0.9", b"77")


class Closed(Exception):
    """No message comes any more."""


class Socket:
    def __init__(self, messages: Sequence[Sequence[bytes]]) -> None:
        self._messages: queue.Queue[Sequence[bytes]] = queue.Queue()
        for each in messages:
            self._messages.put(each)

    def recv_multipart(self) -> Sequence[bytes]:
        try:
            return self._messages.get_nowait()
        except queue.Empty:
            raise Closed from None


def _read(manager: Any, start: str, messages: Sequence[Sequence[bytes]]) -> list[str]:
    """What the thread ended by that has read them."""
    ended: list[str] = []
    before, hook = set(threading.enumerate()), threading.excepthook
    threading.excepthook = lambda died: ended.append(died.exc_type.__name__)
    try:
        manager.server_socket = Socket(messages)
        getattr(manager, start)()
        for thread in set(threading.enumerate()) - before:
            thread.join(SECONDS)
    finally:
        threading.excepthook = hook
    return ended


def _manager(kind: type, rooms: Sequence[int], **more: Any) -> Any:
    manager: Any = kind.__new__(kind)
    manager.__dict__.update(
        kv_args=SimpleNamespace(engine_rank=0, kv_item_lens=[1] * 6, kv_layer_ids=[]),
        request_status=dict.fromkeys(rooms, KVPoll.Bootstrapping),
        failure_lock=threading.Lock(),
        failure_records={},
        transfer_infos={},
        req_to_decode_prefix_len={},
        decode_kv_args_table={},
        is_mla_backend=True,
        is_hybrid_mla_backend=False,
        enable_staging=False,
        enable_deferred_decode_kv_release=False,
        dcp_size=1,
        dcp_rank=0,
        attn_tp_size=1,
        _kv_replica_factor=1,
        prefill_response_tracker=defaultdict(set),
        required_prefill_response_num_table={},
        server_args=SimpleNamespace(enable_pd_role_switch=False),
        _stopped=False,
        _worker_threads=[],
        told=[],
        **more,
    )
    manager.send_kv_status_message = lambda **said: manager.told.append(
        [said["bootstrap_room"], *said["targets"][0]]
    )
    return manager


def _rooms(manager: Any) -> dict[str, str]:
    names = {getattr(KVPoll, name): name for name in ("Failed", "Bootstrapping", "WaitingForInput")}
    return {str(room): names[status] for room, status in manager.request_status.items()}


class Agent:
    """As NIXL's, which is busy when it is given the first of "shy"."""

    def __init__(self) -> None:
        self.busy = True

    def add_remote_agent(self, metadata: bytes) -> None:
        if metadata == b"shy" and self.busy:
            self.busy = False
            raise RuntimeError("NIXL is busy")

    def remove_remote_agent(self, name: str) -> None:
        raise RuntimeError("it is not there")


def _nixl_registers(name: bytes, regions: int) -> list[bytes]:
    pointers = struct.pack(f"{regions}Q", *range(regions))
    kinds = b",".join([b"VRAM"] * regions)
    lengths = struct.pack(f"{regions}Q", *[1] * regions)
    numbers = [b"0", b"1", b"0", b"1", b"", b"", b"", b"", b"10"]
    rest = [pointers, b"", b"", *numbers, kinds, lengths, b"", b"", b"1", b"0"]
    return [GUARD, b"None", *ENDPOINT, name, name, *rest]


def _nixl_asks(name: bytes, room: int) -> list[bytes]:
    indices = struct.pack("2i", 3, 4)
    return [GUARD, str(room).encode(), *ENDPOINT, name, indices, b"0", b"1", b"", b"0", b"0"]


class Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.reasons.append(vars(record)["reason"])


def messages_of_decode_engines() -> Any:
    """Strangers', those of an engine with fewer regions of KV, of one that fits, and of one whom
    NIXL cannot take at first.
    """
    manager = _manager(
        OwnNixlManager,
        (1, 2, 3),
        disaggregation_mode=DisaggregationMode.PREFILL,
        src_mem_kind="VRAM",
        agent=Agent(),
        prep_handles={"": 1},
        _num_slots_src=10,
        _init_equal_tp_prep_handle=lambda *_, **__: None,
        _build_transfer_dst_indices=lambda **given: range(given["n_src"]),
    )
    said = Said()
    once.log.addHandler(said)
    strangers = [[b"GET / HTTP/1.1"], [GUARD], [GUARD, b"seven", *ENDPOINT, b"x", b"123", b"", b""]]
    ended = _read(
        manager,
        "_start_bootstrap_thread",
        [
            *strangers,
            *strangers,
            _nixl_registers(b"narrow", 4),
            _nixl_asks(b"narrow", 1),
            _nixl_registers(b"wide", 6),
            _nixl_registers(b"shy", 6),
            _nixl_asks(b"wide", 2),
            _nixl_asks(b"shy", 3),
        ],
    )
    once.log.removeHandler(said)
    return {
        "rooms": _rooms(manager),
        "told": manager.told,
        "registered": [*manager.decode_kv_args_table],
        "said": said.reasons,
        "ended by": ended,
    }


def _mooncake_registers(name: bytes, context_ranks: bytes) -> list[bytes]:
    lists = struct.pack("I", 0)
    rest = [b"0", b"1", b"1", lists, lists, b"", b"", b"", b"", context_ranks, b"0"]
    return [b"None", *ENDPOINT, name, b"", b"", lists, *rest]


def _mooncake_asks(name: bytes, room: int) -> list[bytes]:
    lists = struct.pack("I", 0)
    return [str(room).encode(), *ENDPOINT, name, struct.pack("i", 3), b"0", lists, b"1", b"0"]


def messages_of_decode_engines_by_mooncake() -> Any:
    """Strangers', those of an engine of more context-parallel ranks than can be, also of a room
    that comes later, and of one that fits.
    """
    manager = _manager(
        OwnMooncakeManager,
        (1, 2),
        session_lock=threading.Lock(),
        failed_sessions=set(),
        session_failures={},
    )
    manager.is_mla_backend = False
    ended = _read(
        manager,
        "start_prefill_thread",
        [
            [b"\xff"],
            [b"WATERMARK"],
            [b"ABORT", b"x", b"", b""],
            [b"seven", *ENDPOINT, b"x", b"1", b"", b"", b"1"],
            _mooncake_registers(b"has no port", b"1"),
            _mooncake_registers(b"does not:1", b"2"),
            _mooncake_asks(b"does not:1", 1),
            _mooncake_asks(b"does not:1", 3),
            _mooncake_registers(b"fits:1", b"1"),
            _mooncake_asks(b"fits:1", 2),
        ],
    )
    return {
        "rooms": _rooms(manager),
        "told": manager.told,
        "registered": [*manager.decode_kv_args_table],
        "written to": {room: [*to] for room, to in manager.transfer_infos.items()},
        "ended by": ended,
    }


def messages_of_prefill_engines() -> Any:
    """What decode makes of strangers' messages, and of one that tells of a failure behind them."""
    found = {}
    failed = [b"5", str(int(KVPoll.Failed)).encode(), b"0", b"it is full"]
    for name, kind, start in (
        ("nixl", OwnNixlManager, "_start_decode_listener_thread"),
        ("mooncake", OwnMooncakeManager, "start_decode_thread"),
    ):
        manager = _manager(kind, (5,), _start_heartbeat_checker_thread=lambda: None)
        tag = [] if manager.kv_status_msg_tag is None else [manager.kv_status_msg_tag]
        strangers = [
            [b"ABORT_ACK", b"x", b"y"],
            [b"AUX_DATA", b"x"],
            [b"CHUNK_READY"],
            [b"STAGING_REQ"],
            [b"GET / HTTP/1.1"],
        ]
        ended = _read(manager, start, [*strangers, [*tag, *failed]])
        found[name] = {"room": _rooms(manager)["5"], "ended by": ended}
    return found
