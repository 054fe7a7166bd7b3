"""A transfer of SGLang's that misbehaves, and a worker whose prefill engine has it.

    python -m kv_mischief prefill ...      # `python -m tandem_prefill_worker ...`, and mischief

KV_MISCHIEF says what is done to hand-overs, "FAULT,FAULT,... SHARE AFTER FILE": from the one
after the AFTERth on, this share of them is hit, and FILE has a line for each. It runs in SGLang's
scheduler, on the methods of NixlKVManager that write KV and metadata to decode.
"""

from __future__ import annotations

import functools
import os
import random
import runpy
import sys
import threading
import time
from pathlib import Path
from typing import Any

VARIABLE = "KV_MISCHIEF"
FAULTS = ("torn", "stale", "reused", "late", "doubled", "crossed")
LATE_SECONDS = 0.02


class Mischief:
    """Stands before the two methods of one scheduler's manager."""

    def __init__(self, manager_class: Any, text: str) -> None:
        faults, share, after, file = text.split(" ")
        self._faults, self._share, self._after = faults.split(","), float(share), int(after)
        self._file = Path(file)
        self._draw = random.Random(1)
        self._rooms = 0
        self._pages_before: Any = None
        self._row_before = 0
        self._fault: dict[str, str] = {}
        self._kept: list[Any] = []
        write, row = manager_class.send_kvcache, manager_class.send_aux
        manager_class.send_kvcache = self._around_pages(write)
        manager_class.send_aux = self._around_row(row)

    def _of(self, room: str) -> str:
        """The fault of a room; "": none."""
        if room not in self._fault:
            self._rooms += 1
            hit = self._rooms > self._after and self._draw.random() < self._share
            self._fault[room] = self._draw.choice(self._faults) if hit else ""
            if hit:
                with self._file.open("a") as file:
                    file.write(f"{self._fault[room]}\n")
        return self._fault[room]

    def _around_pages(self, write: Any) -> Any:
        @functools.wraps(write)
        def send_kvcache(
            manager: Any,
            peer: str,
            pages: Any,
            at: Any,
            into: Any,
            gpu: int,
            notif: str,
            **more: Any,
        ) -> Any:
            def send(pages: Any, into: Any) -> Any:
                return write(manager, peer, pages, at, into, gpu, notif, **more)

            fault, before = self._of(notif.partition("_")[0]), self._pages_before
            self._pages_before = pages.copy()
            half = max(1, len(pages) // 2)
            if fault == "torn":
                return send(pages[:half], into[:half])
            if fault == "stale":
                return send(pages[:1], into[:1])
            if fault == "reused" and before is not None:
                return send(before.repeat(len(pages))[: len(pages)], into)
            if fault == "late":
                self._later(send, pages, into)
                return send(pages[:1], into[:1])
            if fault == "doubled":
                self._later(send, pages, into)
            return send(pages, into)

        return send_kvcache

    def _around_row(self, write: Any) -> Any:
        @functools.wraps(write)
        def send_aux(manager: Any, peer: str, row: int, at: Any, into: int, notif: str) -> Any:
            before, self._row_before = self._row_before, row
            if self._of(notif.partition("_")[0]) == "crossed":
                row = before  # that of the hand-over before
            return write(manager, peer, row, at, into, notif)

        return send_aux

    def _later(self, send: Any, pages: Any, into: Any) -> None:
        def run() -> None:
            time.sleep(LATE_SECONDS)
            self._kept.append(send(pages, into))

        threading.Thread(target=run, daemon=True).start()


def run_scheduler(*args: Any, **kwargs: Any) -> None:
    """SGLang's scheduler process, with Tandem's additions and mischief."""
    from sglang.srt.disaggregation.nixl.conn import NixlKVManager

    from tandem_sglang import scheduler

    Mischief(NixlKVManager, os.environ[VARIABLE])
    scheduler.run_scheduler(*args, **kwargs)


def main() -> None:
    import kv_mischief  # by the name that the scheduler's process knows

    from tandem_sglang import launch

    made = launch.EngineThread._engine_class

    def engine_class(self: Any, base: Any, additions: Any) -> Any:
        engine = made(self, base, additions)
        run = functools.partial(kv_mischief.run_scheduler, additions=additions)
        engine.run_scheduler_process_func = staticmethod(run)
        return engine

    launch.EngineThread._engine_class = engine_class  # type: ignore[method-assign]
    phase = sys.argv.pop(1)
    runpy.run_module(f"tandem_{phase}_worker", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
