"""What a decode scheduler waits for of prefill engines that it does not know yet: checks of
sglang_scheduler_side.py, with stand-ins for what SGLang asks over the network."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.conn import CommonKVManager, CommonKVReceiver
from sglang.srt.disaggregation.decode import DecodePreallocQueue

from tandem_sglang import layouts

SECONDS = 60.0
SILENT = 200


class Network:
    """Answers for prefill engines of two data-parallel ranks and two stages. Who asks is noted:
    the scheduler's loop, which is this thread, must not.
    """

    def __init__(self) -> None:
        self.in_loop: list[str] = []
        self.asked: list[str] = []
        self.speaks = threading.Event()
        self.moved = 0

    def layout(self, manager: Any, address: str) -> bool:
        self._note(address)
        if address.startswith("silent"):
            self.speaks.wait(SECONDS)
        if address == "wrong":
            raise RuntimeError("page sizes differ")
        manager.prefill_info_table[address] = SimpleNamespace(
            dp_size=2,
            target_tp_rank=0,
            target_tp_ranks=[0],
            target_cp_ranks=[0],
            target_pp_ranks=[0, 1],
            required_dst_info_num=1,
            required_prefill_response_num=2,
        )
        return True

    def route(self, receiver: Any, dp: int, cp: int, tp: int, pp: int) -> Any:
        address = receiver.bootstrap_addr
        self._note(address)
        if address == "half":
            self.speaks.wait(SECONDS)
        return {"rank_ip": "10.0.0.1", "rank_port": dp + self.moved, "pp_rank": pp}

    def _note(self, address: str) -> None:
        self.asked.append(address)
        if threading.current_thread() is threading.main_thread():
            self.in_loop.append(address)


class Manager(layouts.AsksBeside, CommonKVManager):
    pass


class Receiver(layouts.KnowsRoutes, CommonKVReceiver):
    def poll(self) -> Any:
        raise NotImplementedError

    def failure_exception(self) -> None:
        raise NotImplementedError


class Scheduler:
    def __init__(self, queue: Any) -> None:
        self.disagg_decode_prealloc_queue = queue

    def init_disaggregation(self) -> None:
        pass


class ComesAtOnce(layouts.ComesAtOnce, Scheduler):
    pass


class Loop:
    """As much of a decode engine's scheduler as looks for prefill engines."""

    def __init__(self) -> None:
        self.network = Network()
        CommonKVManager.try_ensure_parallel_info = lambda *given: self.network.layout(*given)
        CommonKVReceiver._get_bootstrap_info_from_server = lambda *given: self.network.route(*given)
        layouts._asks = layouts.Asks()
        self.manager: Any = Manager.__new__(Manager)
        self.manager.__dict__.update(
            prefill_info_table={},
            addr_to_rooms_tracker=defaultdict(set),
            request_status={},
            required_prefill_response_num_table={},
            enable_staging=False,
            is_mla_backend=False,
            connection_lock=threading.Lock(),
            connection_pool={},
            failure_lock=threading.Lock(),
            failure_records={},
            _deferred_ack_targets={},  # these three from 0.5.22
            _deferred_ack_poisoned_rooms=set(),
            _staging_outstanding={},
        )
        self.queue: Any = DecodePreallocQueue.__new__(DecodePreallocQueue)
        self.queue.kv_manager = self.manager
        self.queue._ensure_last_attempt_time, self.queue._ensure_retry_count = {}, {}
        ComesAtOnce(self.queue).init_disaggregation()
        self.queue._max_ensure_retries, self.queue._ensure_retry_interval = 15, 1.0

    def turn(self, *addresses: str) -> list[str]:
        """Those that are ready, of those that requests wait for."""
        ready, _ = self.queue._ensure_prefill_info({each: [] for each in addresses})
        return sorted(ready)

    def next_second(self, *addresses: str) -> None:
        self.queue._ensure_last_attempt_time.clear()
        self.turn(*addresses)

    def known(self, *addresses: str) -> None:
        _until(lambda: all(each in self.manager.prefill_info_table for each in addresses))

    def receiver(self, address: str, room: int, rank: int) -> Any:
        made = Receiver(self.manager, address, room)
        made.init(rank)
        return made


def prefill_engines_are_asked_beside_the_loop() -> Any:
    """Many keep silent for a while, one is well, and one cannot be used."""
    loop = Loop()
    silent = [f"silent-{number:03}" for number in range(SILENT)]
    first = [*silent[:100], "well"]
    loop.turn(*first)
    loop.known("well")
    found: dict[str, Any] = {"ready": loop.turn(*first)}
    _until(lambda: _threads() == 100)
    loop.next_second(*silent)
    found["at once"] = _threads()
    loop.network.speaks.set()
    for waiting in (["wrong"], ["wrong"], silent):
        _until(lambda: not _threads())
        loop.next_second(*waiting)
    loop.known(*silent)
    return found | {
        "asked in the loop": loop.network.in_loop,
        "wrong": loop.network.asked.count("wrong"),
        "at last": loop.turn(*silent) == silent,
        "remembered": [*loop.queue._ensure_last_attempt_time, *loop.queue._ensure_retry_count],
    }


def ranks_of_prefill_are_known_before_they_are_needed() -> Any:
    """A prefill engine says its layout, and then nothing for a while. Ports of its ranks, and their
    stages, by which a request reaches it; and when they have moved.
    """
    loop = Loop()
    loop.turn("half")
    _until(lambda: len(loop.network.asked) == 2)
    found: dict[str, Any] = {"after its layout": loop.turn("half")}
    loop.network.speaks.set()
    loop.known("half")
    found["after its ranks"] = loop.turn("half")
    first = loop.receiver("half", 3, rank=1)
    found["of room 3"] = _ports(first)
    loop.network.moved = 100
    first.invalidate_cached_bootstrap_infos()
    _until(lambda: not _threads())
    found["moved"] = _ports(loop.receiver("half", 4, rank=1))
    lost = loop.receiver("half", 5, rank=2)
    found["of no rank"] = "failed" if lost.conclude_state == KVPoll.Failed else "goes on"
    return found | {"asked in the loop": loop.network.in_loop}


def _ports(receiver: Any) -> list[list[int]]:
    return [[each["rank_port"], each["pp_rank"]] for each in receiver.bootstrap_infos]


def _threads() -> int:
    return sum(each.name == layouts.THREAD for each in threading.enumerate())


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline, "in bounded time"
        time.sleep(0.005)
