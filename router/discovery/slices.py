"""EndpointSlices, as far as they say where workers are, and the list that follows from them.

Read here rather than by the client's models, which refuse a slice without endpoints (`null`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from router.core.values import Phase
from router.discovery.base import Listed

SERVICE_LABEL = "kubernetes.io/service-name"
PORT_NAME = "grpc"


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None


class _Target(msgspec.Struct):
    uid: str = ""


class _Endpoint(msgspec.Struct, rename="camel"):
    addresses: list[str]
    target_ref: _Target | None = None


class _Port(msgspec.Struct):
    name: str | None = None
    port: int | None = None


class EndpointSlice(msgspec.Struct, rename="camel"):
    metadata: _Metadata
    address_type: str = ""
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


class SliceList(msgspec.Struct):
    metadata: _Metadata
    items: list[EndpointSlice]


class Status(msgspec.Struct):
    """What the API server says instead of an answer."""

    code: int = 0
    message: str = ""


class WatchEvent(msgspec.Struct):
    type: str
    """ADDED, MODIFIED, DELETED, BOOKMARK (still there, nothing new) or ERROR (object: a Status)."""
    object: msgspec.Raw


def listing(slices: Iterable[EndpointSlice], services: Mapping[str, Phase]) -> tuple[Listed, ...]:
    """The workers, sorted. An endpoint counts in any condition: one that is not ready waits for a
    router to say that it is paired, one that terminates finishes what is open.

    A pod has one address, its first: the slices of a dual-stack Service name it once for each
    family, and it would count as two workers.
    """
    found: dict[tuple[Phase, str], str] = {}
    for each in sorted(slices, key=lambda each: (each.address_type, each.metadata.name)):
        phase = services.get((each.metadata.labels or {}).get(SERVICE_LABEL, ""))
        port = next((port.port for port in each.ports or () if port.name == PORT_NAME), None)
        if phase is None or port is None:
            continue
        for endpoint in each.endpoints or ():
            for host in endpoint.addresses[:1]:
                pod = endpoint.target_ref.uid if endpoint.target_ref else ""
                address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                found.setdefault((phase, pod or address), address)
    return tuple(
        sorted(
            {Listed(address, phase) for (phase, _), address in found.items()},
            key=lambda each: (each.phase, each.address),
        )
    )
