"""What workers count, read from their /metrics: KV cache moved, and sequences ended, by phase."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tandem.cli.client import ApiError, Client
from tandem.errors import ConfigError

KV_BYTES = "tandem_kv_transfer_bytes_total"
LEGS = "tandem_worker_legs_total"
_COMPLETED = ("finished", "terminated")


@dataclass(frozen=True, slots=True)
class PhaseCounts:
    """What one phase did: bytes of KV cache that it sent or took, and sequences completed."""

    kv_bytes: float = 0.0
    legs: float = 0.0


Reading = Mapping[str, Mapping[str, PhaseCounts]]
"""Each worker's counts since its start: address -> phase -> counts."""


@dataclass(frozen=True, slots=True)
class MetricsTarget:
    """A host's metrics port. The host may be a name that stands for many workers."""

    host: str
    port: int

    def addresses(self) -> list[str]:
        """Every worker behind the name, "address:port". Of a host with IPv4 and IPv6 addresses only
        one family, so that no worker is counted twice. Raises ApiError where the name is unknown.
        """
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ApiError(f"{self.host} has no address: {error}") from error
        family = min(info[0] for info in found)
        hosts = sorted({str(info[4][0]) for info in found if info[0] == family})
        return [f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}" for host in hosts]


def targets(text: str, flag: str = "--kv") -> list[MetricsTarget]:
    """HOST:PORT,HOST:PORT as targets. Raises ConfigError, naming the flag."""
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        host, _, port = part.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"{flag} {part!r}: write it HOST:PORT, with the port of /metrics")
        found.append(MetricsTarget(host.strip("[]"), int(port)))
    return found


def addresses(found: Iterable[MetricsTarget]) -> list[str]:
    """Every address behind several targets, each once. Raises ApiError for an unknown name."""
    return sorted({address for target in found for address in target.addresses()})


def read(workers: Iterable[MetricsTarget], *, timeout_seconds: float) -> Reading:
    """The counts of every worker now. Raises ApiError where one cannot be asked."""
    return {
        address: counts(Client(address, timeout_seconds=timeout_seconds).text("/metrics"))
        for address in addresses(workers)
    }


def counts(exposition: str) -> Mapping[str, PhaseCounts]:
    """A worker's counts by phase, from its metrics as Prometheus reads them. Raises ApiError for a
    text that is none."""
    kv_bytes: defaultdict[str, float] = defaultdict(float)
    legs: defaultdict[str, float] = defaultdict(float)
    try:
        families = list(text_string_to_metric_families(exposition))
    except ValueError as error:
        raise ApiError("a metrics port's answer is no Prometheus exposition") from error
    for sample in (sample for family in families for sample in family.samples):
        phase = sample.labels.get("phase", "")
        if sample.name == KV_BYTES:
            kv_bytes[phase] += sample.value
        elif sample.name == LEGS and sample.labels.get("outcome") in _COMPLETED:
            legs[phase] += sample.value
    return {phase: PhaseCounts(kv_bytes[phase], legs[phase]) for phase in {*kv_bytes, *legs}}


def growth(before: Reading, after: Reading) -> Mapping[str, PhaseCounts]:
    """What all workers counted between two readings, by phase. A worker that is new, or that has
    started again, counted from zero; one that has gone adds nothing.
    """
    grown: dict[str, PhaseCounts] = {}
    for address, phases in after.items():
        for phase, now in phases.items():
            then = before.get(address, {}).get(phase, PhaseCounts())
            if now.legs < then.legs or now.kv_bytes < then.kv_bytes:
                then = PhaseCounts()
            so_far = grown.get(phase, PhaseCounts())
            grown[phase] = PhaseCounts(
                so_far.kv_bytes + now.kv_bytes - then.kv_bytes,
                so_far.legs + now.legs - then.legs,
            )
    return grown
