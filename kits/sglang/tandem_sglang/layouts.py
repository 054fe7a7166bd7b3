"""Runs in a decode engine's scheduler process: learns the layout of a prefill engine that is not
known yet, and the addresses of its ranks, while the sequences that run go on.

SGLang asks for both in the loop of its scheduler, and waits there for up to 5 s for each answer
that does not come; an answer that it cannot use ends it, with all its sequences. Here threads ask,
and the loop waits for none of them: a prefill engine is known when all of it is.
"""

from __future__ import annotations

import copy
import functools
import itertools
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from sglang.srt.disaggregation.common.conn import CommonKVManager, CommonKVReceiver

from tandem_sglang.once import SaidOnce

THREAD = "prefill layout"
AT_ONCE = 128
"""Prefill engines that are asked at a time. One that keeps silent is asked for 5 s."""
_ROUTES = "_tandem_routes"
"""Where a layout keeps the addresses of its ranks, by the numbers that SGLang asks by."""
_trouble = SaidOnce("a prefill engine cannot be used")


class Asks:
    """Threads that ask, one at most for each address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: set[str] = set()

    def begin(self, address: str, ask: Callable[[], None]) -> None:
        """Not where too many are asked already: SGLang comes again a second later."""
        with self._lock:
            if address in self._asked or len(self._asked) >= AT_ONCE:
                return
            self._asked.add(address)
        run = functools.partial(self._run, address, ask)
        try:
            threading.Thread(target=run, name=THREAD, daemon=True).start()
        except RuntimeError as error:  # the system has no more threads
            self._ended(address, error)

    def _run(self, address: str, ask: Callable[[], None]) -> None:
        failed = None
        try:
            ask()
        except Exception as error:  # noqa: BLE001 - it would end the scheduler, for one engine
            failed = error
        self._ended(address, failed)

    def _ended(self, address: str, failed: Exception | None) -> None:
        if failed is not None:
            _trouble.say(address, f"{type(failed).__name__}: {failed}")
        with self._lock:
            self._asked.discard(address)


_asks = Asks()


class AsksBeside:
    """For SGLang's managers of hand-overs: an engine is known when all of it is. SGLang comes back
    for an answer a second later, or as soon as it is there, and fails the requests that wait for it
    when it has come 15 times.
    """

    prefill_info_table: dict[str, Any]

    def try_ensure_parallel_info(self, address: str) -> bool:
        if address in self.prefill_info_table:
            return True
        self.ask_again(address)
        return False

    def ask_again(self, address: str) -> None:
        """Have a thread learn the layout at that address, and its ranks' addresses."""
        _asks.begin(address, functools.partial(self._learn, address))

    def _learn(self, address: str) -> None:
        apart = copy.copy(self)
        apart.prefill_info_table = {}
        if not CommonKVManager.try_ensure_parallel_info(apart, address):
            return
        layout = apart.prefill_info_table[address]
        receiver = SimpleNamespace(bootstrap_addr=address)
        routes = {}
        for ranks in _ranks_of(layout):
            route = CommonKVReceiver._get_bootstrap_info_from_server(receiver, *ranks)
            if route is None:
                return
            routes[ranks] = route
        setattr(layout, _ROUTES, routes)
        self.prefill_info_table[address] = layout


class KnowsRoutes:
    """For SGLang's receivers: the ranks' addresses are there already."""

    prefill_info: Any
    kv_mgr: Any
    bootstrap_addr: str

    def _get_bootstrap_info_from_server(self, *ranks: int) -> dict[str, Any] | None:
        route = getattr(self.prefill_info, _ROUTES).get(ranks)
        return None if route is None else dict(route)  # SGLang adds to it

    def invalidate_cached_bootstrap_infos(self) -> None:
        """SGLang would ask for the ranks anew with the next request: they may have moved."""
        super().invalidate_cached_bootstrap_infos()  # type: ignore[misc]
        self.kv_mgr.ask_again(self.bootstrap_addr)


class ComesAtOnce:
    """For SGLang's Scheduler: decode comes for an answer as soon as it is there."""

    disagg_decode_prealloc_queue: Any

    def init_disaggregation(self) -> None:
        super().init_disaggregation()  # type: ignore[misc]
        if (queue := self.disagg_decode_prealloc_queue) is None:
            return
        come_back = queue._ensure_prefill_info

        def ensure_prefill_info(waiting: dict[str, Any]) -> Any:
            _forget(queue, waiting)
            return come_back(waiting)

        queue._ensure_prefill_info = ensure_prefill_info


def _ranks_of(layout: Any) -> itertools.product[tuple[int, ...]]:
    """Whom this rank of decode hears from, in every data-parallel rank: a room says in which."""
    return itertools.product(
        range(layout.dp_size),
        layout.target_cp_ranks,
        layout.target_tp_ranks,
        layout.target_pp_ranks,
    )


def _forget(queue: Any, waiting: dict[str, Any]) -> None:
    """When an engine was asked last that has answered since, whose requests need not wait; and all
    about those that nobody waits for any more.
    """
    known = queue.kv_manager.prefill_info_table
    asked, counts = queue._ensure_last_attempt_time, queue._ensure_retry_count
    for address in [each for each in asked if each in known or each not in waiting]:
        del asked[address]
    for address in [each for each in counts if each not in waiting]:
        del counts[address]
