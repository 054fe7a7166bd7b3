"""Runs in SGLang's scheduler processes: what a step puts out goes to the worker in a message of our
own (outputs.py), to each of its processes what is for it, and says of each hand-over how large and
how long it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import zmq
from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST, DisaggregationMode
from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import (
    get_mooncake_transfer_engine,
)
from sglang.srt.environ import envs
from sglang.srt.managers.io_struct import wrap_as_pickle
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.managers.scheduler_components.output_sender import SenderWrapper
from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer
from sglang.srt.utils.network import get_zmq_socket

from tandem.config import environment
from tandem.engine.ucx_log import UNKNOWN, ucx_log
from tandem.logits import state
from tandem_sglang import decode_cache, libfabric, mooncake, rows
from tandem_sglang.additions import Additions
from tandem_sglang.chunks import HAND_OVER_KEY
from tandem_sglang.output_socket import OutputWriter, path_beside
from tandem_sglang.outputs import HandOver, SplitSender
from tandem_sglang.token_sockets import TokenSockets, place_of

_MEASURED = "_tandem_measured"
_NOBODY = FAKE_BOOTSTRAP_HOST
"""Where the hand-overs of a warm-up go."""


class OwnOutputs:
    """For SGLang's Scheduler."""

    additions: Additions
    data_rank: int | None
    ipc_channels: Any

    def init_ipc_channels(self, port_args: Any) -> None:
        super().init_ipc_channels(port_args)  # type: ignore[misc]
        self._sockets = TokenSockets(self.additions.further)
        # With a number of its own a controller gives it its requests.
        alone = self.data_rank is None
        self.ipc_channels = self._sockets.open(
            self.ipc_channels, _sender_beside, takes_requests=alone
        )

    def get_output_streamer_class(self) -> Callable[..., Any]:
        return functools.partial(
            MeasuringStreamer, scheduler=self, additions=self.additions, sockets=self._sockets
        )


def _sender_beside(socket: zmq.Socket[bytes], address: str) -> SenderWrapper:
    """A sender to another address, of the same kind as that socket."""
    return SenderWrapper(get_zmq_socket(socket.context, zmq.PUSH, address, False))


def _directly(sender: SenderWrapper) -> SenderWrapper:
    """To the same process without ZeroMQ, where that is on this machine."""
    path = None if sender.socket is None else path_beside(sender.socket)
    return sender if path is None else SenderWrapper(OutputWriter(path))


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
        if (pages := decode_cache.pages_of(req)) is None:
            return []
        size = pages * page_bytes
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
