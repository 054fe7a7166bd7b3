"""Runs in vLLM's engine process: vLLM's own pull connector, with a lease of its own for each
request, and a way to end one early. vLLM loads it by name (`kv_connector_module_path`).

vLLM's lease is one for all requests and cannot be ended: pages of a prompt that nobody wants any
more would stay taken for as long as one that waits for decode may.

Two private fields of vLLM are used: `connector_scheduler`, and `_reqs_need_send`, by which the
scheduler tells the worker until when a finished request's pages stay.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import (
    NixlPullConnectorScheduler,
)

from tandem_vllm.notes import NoteWriter
from tandem_vllm.requests import LEASE_ENDS, LEASE_SECONDS, RELEASE, STEERING
from tandem_vllm.side_channel import SideChannel


class LeasingScheduler(NixlPullConnectorScheduler):
    """Knows until when whose pages stay, and says to decode how they are read."""

    _side_channel: SideChannel | None = None

    def set_xfer_handshake_metadata(self, metadata: Mapping[Any, Any]) -> None:
        """Decode, from which nobody reads, says nothing."""
        if self.vllm_config.kv_transfer_config.is_kv_producer and self._side_channel is None:
            payloads = {rank: msgspec.msgpack.encode(each) for rank, each in metadata.items()}
            host, port = self.side_channel_host, self.side_channel_port
            self._side_channel = SideChannel(payloads, host, port)

    def shutdown(self) -> None:
        if self._side_channel is not None:
            self._side_channel.close()
        super().shutdown()

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """A request that names another one ends that one's lease. All others are vLLM's, but that
        a lease is as long as the request says, and that its end is told, by time.monotonic().
        """
        asked = request.kv_transfer_params or {}
        if held := asked.get(RELEASE):
            self._reqs_need_send[held] = time.perf_counter()
            return False, None
        keeps, told = super().request_finished(request, block_ids)
        if keeps and told is not None and LEASE_SECONDS in asked:
            seconds = float(asked[LEASE_SECONDS])
            told[LEASE_ENDS] = time.monotonic() + seconds
            self._reqs_need_send[request.request_id] = time.perf_counter() + seconds
        return keeps, told


class TandemPullConnector(NixlPullConnector):
    """What `kv_connector` names."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = LeasingScheduler(
                vllm_config, self.engine_id, kv_cache_config
            )
            if not hasattr(self.connector_scheduler, "_reqs_need_send"):
                raise RuntimeError("this release of vLLM keeps the leases of its KV elsewhere")
            ranks = vllm_config.parallel_config.tensor_parallel_size
            size = ranks * sum(each.size for each in kv_cache_config.kv_cache_tensors)
            given = vllm_config.additional_config[STEERING]
            NoteWriter(given["notes"]).pages(size // kv_cache_config.num_blocks)
