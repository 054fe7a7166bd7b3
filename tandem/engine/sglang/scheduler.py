"""Runs in SGLang's child processes: what Tandem adds to the scheduler before it starts.

- A thread that dies ends the engine.
- Each request's hand-over is measured where it happens, and travels with its first output.
- A request's seed decides its tokens, where the engine is started so.
- The logits processors of the worker's registry, and how many sequences have some.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.detokenizer_manager import run_detokenizer_process
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.managers.scheduler import Scheduler, run_scheduler_process
from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer
from sglang.srt.plugins import load_plugins

from tandem.engine.sglang import cpu, delayed_sampling, grammars, processor, rows, seeds, threads
from tandem.engine.sglang.additions import Additions
from tandem.engine.sglang.chunks import HAND_OVER_KEY, PROCESSOR_ERROR_TYPE
from tandem.engine.sglang.rows import RowEditor
from tandem.logits import state
from tandem.logits.model import Model
from tandem.logits.registry import Registry
from tandem.usercode.deadline import WATCH

_MEASURED = "_tandem_measured"
_SERVER_ERROR = 500


def run_scheduler(*args: Any, additions: Additions, **kwargs: Any) -> None:
    """SGLang's scheduler process, with Tandem's additions."""
    _leave_interrupts_to_parent()
    threads.report_deaths()
    load_plugins()
    if additions.on_cpu:
        cpu.verify()
    Scheduler.get_output_streamer_class = _streamer_class
    if additions.seeded:
        seeds.seed_every_row(on_cpu=additions.on_cpu)
    grammars.bound(additions.grammar_cache_bytes)
    grammars.watch()
    _apply_processors(additions)
    run_scheduler_process(*args, **kwargs)
    # It was dismissed, or has reported its failure. Threads of SGLang and NIXL would keep it here.
    os._exit(0)


def run_detokenizer(*args: Any, **kwargs: Any) -> None:
    """What SGLang's detokenizer process runs. It leaves interrupts to its parent."""
    _leave_interrupts_to_parent()
    run_detokenizer_process(*args, **kwargs)


def _apply_processors(additions: Additions) -> None:
    registry = Registry.from_portable(additions.registry)
    processor.use(RowEditor(registry, Model(**additions.model)))
    delayed_sampling.delay_where_history_is_read()
    WATCH.install()
    states = additions.states
    state.report_alive(lambda count: setattr(states, "value", count))


def _leave_interrupts_to_parent() -> None:
    """Ctrl-C reaches the whole process group, but the worker still has requests to finish."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@dataclass(kw_only=True)
class MeasuringStreamer(SchedulerOutputStreamer):
    """Adds a request's hand-over, [bytes, seconds], to its first output, and lets the processors of
    a request go with its last.
    """

    has_additional_customized_info: ClassVar[bool] = True
    scheduler: Any

    def build_additional_customized_info(self, reqs: Sequence[Any]) -> dict[str, list[list[Any]]]:
        if state.alive():
            for req in reqs:
                if req.finished():
                    rows.forget(req)
        for req in reqs:
            if req.grammar is not None and (failed := grammars.failure_of(req.grammar)):
                _blame_grammar(req, failed)
        if self.disaggregation_mode is DisaggregationMode.NULL:
            return {}
        fresh = [not hasattr(req, _MEASURED) for req in reqs]
        if not any(fresh):
            return {}
        return {
            HAND_OVER_KEY: [
                self._measure(req) if first else [] for req, first in zip(reqs, fresh, strict=True)
            ]
        }

    def _measure(self, req: Any) -> list[tuple[int, float]]:
        setattr(req, _MEASURED, True)
        if isinstance(req.finished_reason, FINISH_ABORT):
            return []
        if self.disaggregation_mode is DisaggregationMode.PREFILL:
            return self._sent(req)
        return self._received(req)

    def _sent(self, req: Any) -> list[tuple[int, float]]:
        metric = req.disagg_kv_sender.get_transfer_metric()
        if metric.transfer_latency_s is None:
            return []
        return [(metric.transfer_total_bytes * self._ranks(), metric.transfer_latency_s)]

    def _received(self, req: Any) -> list[tuple[int, float]]:
        pool = self.scheduler.token_to_kv_pool_allocator
        pages = -(-len(req.origin_input_ids) // pool.page_size)
        page_bytes = self.scheduler.disagg_decode_prealloc_queue.kv_manager.kv_item_lens_sum
        times = req.time_stats
        return [
            (
                pages * page_bytes * self._ranks(),
                times.wait_queue_entry_time - times.decode_transfer_queue_entry_time,
            )
        ]

    def _ranks(self) -> int:
        """Each tensor-parallel rank moves a share of its own, all of one size."""
        return int(self.server_args.tp_size)


def _blame_grammar(req: Any, failure: str) -> None:
    """SGLang itself does not say why it ended a request whose grammar raised."""
    if isinstance(req.finished_reason, FINISH_ABORT):
        req.finished_reason = FINISH_ABORT(failure, _SERVER_ERROR, PROCESSOR_ERROR_TYPE)


def _streamer_class(scheduler: Any) -> Any:
    return functools.partial(MeasuringStreamer, scheduler=scheduler)
