"""Runs in a decode engine's scheduler process: learns the layout of a prefill engine that is not
known yet, while the sequences that run go on.

SGLang asks for it in the loop of its scheduler, and waits there for seconds where nobody answers.
"""

from __future__ import annotations

import functools
import threading
from concurrent.futures import Future
from typing import Any

from sglang.srt.disaggregation.common.conn import CommonKVManager

_WAIT_SECONDS = 0.05
"""A prefill engine that is well answers in a fraction of it: its first request waits no longer."""


def ask_beside() -> None:
    """Ask in a thread of its own, once at a time for each address. SGLang comes back for the answer
    a second later, and fails the requests that wait for it when it has come 15 times.
    """
    original = CommonKVManager.try_ensure_parallel_info
    asked: dict[str, Future[bool]] = {}

    @functools.wraps(original)
    def ensure(self: Any, address: str) -> bool:
        if address in self.prefill_info_table:
            return True
        if address not in asked:
            asked[address] = _in_thread(functools.partial(original, self, address))
        try:
            asked[address].result(_WAIT_SECONDS)
        except TimeoutError:
            return False
        del asked[address]
        return address in self.prefill_info_table

    CommonKVManager.try_ensure_parallel_info = ensure


def _in_thread(ask: functools.partial[bool]) -> Future[bool]:
    answer: Future[bool] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:  # noqa: BLE001 - raised where the answer is read, as ever
            answer.set_exception(error)

    threading.Thread(target=run, name="prefill layout", daemon=True).start()
    return answer
