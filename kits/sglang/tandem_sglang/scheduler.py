"""Runs in SGLang's child processes: what Tandem adds to the scheduler before it starts.

- A thread that dies ends the engine. What is printed goes through the worker, which keeps the end.
- Outputs go to the worker as they are: no detokenizer is between; and those of requests that go on
  in a message of their own. Each of a worker's processes has its requests' alone.
- A prefill engine that does not answer keeps no sequence waiting but its own.
- What another engine sends that cannot be read or used ends nothing but its own hand-overs.
- A hand-over has come when all ranks of prefill have written of it, and is answered from where its
  tag is the request's.
- Each request's hand-over is measured where it happens, and travels with its first output. The
  first one shortens the time that the next ones have.
- A request's seed decides its tokens, where the engine is started so, and no other row of a batch.
- Penalties count what was put out, also by another engine.
- torch's store listens on loopback alone, where nobody else needs it.
- The logits processors of the worker's registry, and how many sequences have some.
- What a processor or a grammar fails in is read with the tokens of its step, and all ranks end the
  same requests, also where drafts are verified.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import zmq
from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST, DisaggregationMode
from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import (
    get_mooncake_transfer_engine,
)
from sglang.srt.environ import envs
from sglang.srt.managers import scheduler as upstream
from sglang.srt.managers.io_struct import wrap_as_pickle
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.managers.scheduler_components.output_sender import SenderWrapper
from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer
from sglang.srt.plugins import load_plugins
from sglang.srt.utils.network import get_zmq_socket

from tandem import orphans
from tandem.config import environment
from tandem.engine.ucx_log import UNKNOWN, ucx_log
from tandem.logits import state
from tandem.logits.model import Model
from tandem.logits.registry import Registry
from tandem.usercode.deadline import WATCH
from tandem_sglang import (
    cpu,
    decode_cache,
    drafts,
    failures,
    grammar_backends,
    grammars,
    hand_over_tags,
    hand_overs,
    last_words,
    layouts,
    libfabric,
    mooncake,
    penalties,
    processor,
    ranks,
    rows,
    sampler,
    seeds,
    store,
    threads,
)
from tandem_sglang.additions import Additions
from tandem_sglang.chunks import HAND_OVER_KEY
from tandem_sglang.delayed_sampling import DelayedSampling
from tandem_sglang.grammar_queue import OwnGrammarManager
from tandem_sglang.output_socket import OutputWriter, path_beside
from tandem_sglang.outputs import HandOver, SplitSender
from tandem_sglang.rows import RowEditor
from tandem_sglang.token_sockets import TokenSockets, place_of

_MEASURED = "_tandem_measured"
Agree = Callable[[Any], None]
_NOBODY = FAKE_BOOTSTRAP_HOST
"""Where the hand-overs of a warm-up go."""
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
    store.keep_local()
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
    agree = ranks.agree if additions.ranks > 1 else None
    OwnScheduler.additions = additions
    OwnScheduler.sockets = TokenSockets(additions.further)
    OwnScheduler.takes_requests = data_rank is None
    upstream.Scheduler = OwnScheduler
    hand_overs.put_in_place(additions.transfer_backend)
    grammar_backends.register(additions.grammar_cache_bytes)
    device = "cpu" if additions.on_cpu else "cuda"
    grammars.end_alike(agree, device)
    if additions.speculative:
        drafts.end_alike(agree, device)
    else:
        penalties.count_outputs()
    if additions.seeded:
        seeds.seed_every_row()
    if additions.seeded or additions.ranks > 1:
        sampler.register(on_cpu=additions.on_cpu, shares=additions.ranks > 1)
    _apply_processors(additions, data_rank or 0, agree)


def _past_detokenizer(ports: Any) -> None:
    """Have outputs sent to the worker itself. SGLang does so only without a tokenizer, which
    grammars need.
    """
    ports.detokenizer_ipc_name = ports.tokenizer_ipc_name


class OwnScheduler(upstream.Scheduler):
    """Tandem's Scheduler."""

    additions: ClassVar[Additions]
    sockets: ClassVar[TokenSockets]
    takes_requests: ClassVar[bool]
    """No controller gives this scheduler its requests."""
    ipc_channels: Any

    def init_ipc_channels(self, port_args: Any) -> None:
        super().init_ipc_channels(port_args)
        self.ipc_channels = self.sockets.open(
            self.ipc_channels, _sender_beside, takes_requests=self.takes_requests
        )
        self._delayed = DelayedSampling()

    def init_disaggregation(self) -> None:
        super().init_disaggregation()
        if (queue := self.disagg_decode_prealloc_queue) is not None:
            decode_cache.observe(queue, self.disagg_decode_transfer_queue)
            layouts.come_at_once(queue)
        hand_over_tags.watch(self, self.additions)

    def init_grammar_manager(self) -> None:
        super().init_grammar_manager()
        self.grammar_manager.__class__ = OwnGrammarManager

    def init_load_inquirer(self) -> None:
        super().init_load_inquirer()
        if self.disaggregation_mode is DisaggregationMode.PREFILL:
            _count_prefilling(self)

    def get_output_streamer_class(self) -> Callable[..., Any]:
        return functools.partial(
            MeasuringStreamer, scheduler=self, additions=self.additions, sockets=self.sockets
        )

    def run_batch(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        self._delayed.decide(batch)
        result = super().run_batch(batch, *args, **kwargs)
        failures.keep_noted(result)
        return result

    def launch_batch_sample_if_needed(self, batch_result: Any, *args: Any) -> Any:
        """The sampling that has waited."""
        sampled = super().launch_batch_sample_if_needed(batch_result, *args)
        failures.keep_noted(batch_result)
        return sampled

    def process_batch_result(self, batch: Any, result: Any) -> None:
        failures.tell(batch, result)
        super().process_batch_result(batch, result)

    def _pp_prepare_tensor_dict(self, result: Any, batch: Any) -> dict[str, Any]:
        sent: dict[str, Any] = super()._pp_prepare_tensor_dict(result, batch)
        failures.send(sent, result)
        return sent

    def _pp_prep_batch_result(self, batch: Any, metadata: Any, outputs: Any) -> Any:
        result = super()._pp_prep_batch_result(batch, metadata, outputs)
        failures.receive(result, outputs.tensors, grammars.tell)
        return result


def _sender_beside(socket: zmq.Socket[bytes], address: str) -> SenderWrapper:
    """A sender to another address, of the same kind as that socket."""
    return SenderWrapper(get_zmq_socket(socket.context, zmq.PUSH, address, False))


def _directly(sender: SenderWrapper) -> SenderWrapper:
    """To the same process without ZeroMQ, where that is on this machine."""
    path = None if sender.socket is None else path_beside(sender.socket)
    return sender if path is None else SenderWrapper(OutputWriter(path))


def _apply_processors(additions: Additions, data_rank: int, agree: Agree | None) -> None:
    registry = Registry.from_portable(additions.registry)
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


@dataclass(kw_only=True)
class MeasuringStreamer(SchedulerOutputStreamer):
    """Adds a request's hand-over, [bytes, seconds, transport], to its first output, and lets the
    processors of a request go with its last.
    """

    has_additional_customized_info: ClassVar[bool] = True
    scheduler: Any
    additions: Additions
    sockets: TokenSockets
    _kv_has_moved: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        senders = [_directly(each) for each in self.sockets.senders(self.send_to_detokenizer)]
        self.send_to_detokenizer: Any = SplitSender(senders, wrap_as_pickle, place_of)

    def build_additional_customized_info(self, reqs: Sequence[Any]) -> dict[str, list[HandOver]]:
        hand_overs = self._hand_overs(reqs)
        self.send_to_detokenizer.announce([not req.return_logprob for req in reqs], hand_overs)
        return hand_overs

    def _hand_overs(self, reqs: Sequence[Any]) -> dict[str, list[HandOver]]:
        if state.alive():
            for req in reqs:
                if req.finished():
                    rows.forget(req)
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

    def _measure(self, req: Any) -> HandOver:
        setattr(req, _MEASURED, True)
        if isinstance(req.finished_reason, FINISH_ABORT) or req.bootstrap_host == _NOBODY:
            return []
        if self.disaggregation_mode is DisaggregationMode.PREFILL:
            measured = self._sent(req)
        else:
            measured = self._received(req)
        if measured and not self._kv_has_moved:
            self._kv_has_moved = True
            self._limit_hand_overs()
        return measured

    def _limit_hand_overs(self) -> None:
        """Nothing is to be opened or compiled any more that would take long."""
        seconds = self.additions.handover_timeout_seconds
        if self.disaggregation_mode is DisaggregationMode.PREFILL:
            manager = self.scheduler.disagg_prefill_bootstrap_queue.kv_manager
            manager.bootstrap_timeout = seconds
        else:
            manager = self.scheduler.disagg_decode_prealloc_queue.kv_manager
            manager.waiting_timeout = seconds

    def _sent(self, req: Any) -> HandOver:
        metric = req.disagg_kv_sender.get_transfer_metric()
        seconds = metric.transfer_latency_s
        if seconds is None and self._by_mooncake:
            # It tells no times: as SGLang's own metrics, from the prompt's end to the transfer's.
            times = req.time_stats
            seconds = times.completion_time - times.prefill_transfer_queue_entry_time
        if seconds is None:
            return []
        size = metric.transfer_total_bytes * self._senders(req.disagg_kv_sender.kv_mgr)
        return [(size, seconds, self._transport(writes=True))]

    def _received(self, req: Any) -> HandOver:
        page_bytes = self.scheduler.disagg_decode_prealloc_queue.kv_manager.kv_item_lens_sum
        size = decode_cache.pages_of(req) * page_bytes
        times = req.time_stats
        return [
            (
                size * self.additions.ranks * self.additions.stages,
                times.wait_queue_entry_time - times.decode_transfer_queue_entry_time,
                self._transport(writes=False),
            )
        ]

    @property
    def _by_mooncake(self) -> bool:
        return self.additions.transfer_backend == mooncake.NAME

    def _transport(self, *, writes: bool) -> str:
        """Only who writes knows over what."""
        wire = UNKNOWN
        if self._by_mooncake:
            protocol = str(envs.MOONCAKE_PROTOCOL.get())
            if writes:
                wire = mooncake.wire(protocol, get_mooncake_transfer_engine())
            return f"{mooncake.NAME}/{protocol}/{wire}"
        backend = str(envs.SGLANG_DISAGGREGATION_NIXL_BACKEND.get())
        if writes and backend == "UCX":
            wire = ucx_log().transport()
        elif writes and backend == "LIBFABRIC":
            wire = libfabric.wire(environment().get("FI_PROVIDER", ""))
        return f"nixl/{backend.lower()}/{wire}"

    def _senders(self, manager: Any) -> int:
        """How often a share as large as this rank's is written, by all ranks together: SGLang
        counts what this one writes, and KV heads that several ranks of decode hold once.
        """
        own, peer, stages = self.additions.ranks, self.additions.peer_ranks, self.additions.stages
        if manager.is_mla_backend:
            return min(own, peer) * stages
        heads: int = manager.kv_args.total_kv_head_num
        return own * max(1, peer // max(own, heads)) * stages


def _count_prefilling(scheduler: Any) -> None:
    """Have load snapshots count the batch that is computed. They count the one that decodes, and
    prefill has none.
    """

    def batch() -> Any:
        return scheduler.cur_batch_for_debug or scheduler.running_batch

    scheduler.load_inquirer = replace(scheduler.load_inquirer, get_running_batch=batch)
