"""Runs in SGLang's child processes: a scheduler with what Tandem puts into it (units.py).

Beside the units, which it may lack: outputs go to the worker as they are, with no detokenizer
between; what is printed goes through the worker, which keeps the end; a thread of SGLang's that
dies ends the engine; and the logits processors of the worker's registry run here.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

from sglang.srt.managers import scheduler as upstream
from sglang.srt.plugins import load_plugins

from tandem import orphans
from tandem.engine.ucx_log import ucx_log
from tandem.logits import state
from tandem.logits.model import Model
from tandem.logits.registry import Registry
from tandem.usercode.deadline import WATCH
from tandem_sglang import cpu, fitting, last_words, processor, ranks, threads
from tandem_sglang.additions import Additions
from tandem_sglang.rows import RowEditor

_PORTS, _DATA_RANK = 1, 5
"""The places of `port_args` and `dp_rank` among the arguments of SGLang's scheduler process. No
`dp_rank`: it is the only one, and no controller gives it its requests."""
_RANKS = slice(3, 6)
"""The places of `tp_rank`, `pp_rank` and `dp_rank`."""


def run_scheduler(*args: Any, additions: Additions, **kwargs: Any) -> None:
    """SGLang's scheduler process, with Tandem's additions."""
    _leave_interrupts_to_parent()
    _end_with_parent()
    last_words.join(additions.errors, _name(*args[_RANKS]))
    threads.report_deaths()
    log = ucx_log()
    load_plugins()
    if additions.on_cpu:
        cpu.verify()
    _past_detokenizer(args[_PORTS])
    add(additions, args[_DATA_RANK])
    try:
        upstream.run_scheduler_process(*args, **kwargs)
    finally:
        log.read()
    # It was dismissed, or has reported its failure. Threads of SGLang and NIXL would keep it here.
    os._exit(0)


def add(additions: Additions, data_rank: int | None) -> None:
    """Put everything that Tandem adds into the scheduler of this process."""
    fitting.put_in(additions, data_rank=data_rank)
    _apply_processors(additions, data_rank or 0)


def _past_detokenizer(ports: Any) -> None:
    """Have outputs sent to the worker itself. SGLang does so only without a tokenizer, which
    grammars need.
    """
    ports.detokenizer_ipc_name = ports.tokenizer_ipc_name


def _apply_processors(additions: Additions, data_rank: int) -> None:
    registry = Registry.from_portable(additions.registry)
    agree = ranks.agree_of(additions)
    processor.use(RowEditor(registry, Model(**additions.model), agree))
    WATCH.install()
    states = additions.states
    state.report_alive(lambda count: states.__setitem__(data_rank, count))


def _name(tensor: int, stage: int, data: int | None) -> str:
    """As SGLang's own log calls it."""
    return f"scheduler TP{tensor} PP{stage}" + ("" if data is None else f" DP{data}")


def _end_with_parent() -> None:
    """SGLang asks for that too, but not before all of it has been imported."""
    if parent := multiprocessing.parent_process():
        assert parent.pid is not None
        orphans.die_with(parent.pid)


def _leave_interrupts_to_parent() -> None:
    """Ctrl-C reaches the whole process group, but the worker still has requests to finish."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
