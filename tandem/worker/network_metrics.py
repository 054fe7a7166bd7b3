"""What the kernel's network interfaces carried: the evidence of KV cache that goes over TCP.

RDMA passes the kernel by, so on a pod whose KV cache moves over RDMA these counts stay far below
tandem_kv_transfer_bytes. UCX falls back to TCP without a word where its device is missing, and says
nowhere which way it took.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from tandem.hooks.contract import Phase

INTERFACES = Path("/proc/self/net/dev")
_HEADINGS = 2
_RECEIVED, _SENT = 0, 8
"""Columns of bytes, after the interface's name."""


def network_metrics(phase: Phase, interfaces: Path = INTERFACES) -> Iterator[Metric]:
    """Summed over all interfaces of this network namespace. No samples where the kernel keeps none.

    `interfaces` is a file in the format of proc(5), /proc/net/dev.
    """
    family = CounterMetricFamily(
        "tandem_worker_network_bytes",
        "Bytes that the network interfaces of this worker's pod carried, RDMA not counted.",
        labels=("phase", "direction"),
    )
    if interfaces.exists():
        lines = interfaces.read_text(encoding="ascii").splitlines()[_HEADINGS:]
        rows = [line.rpartition(":")[2].split() for line in lines]
        family.add_metric((phase, "receive"), sum(int(row[_RECEIVED]) for row in rows))
        family.add_metric((phase, "transmit"), sum(int(row[_SENT]) for row in rows))
    yield family
