"""EndpointSlices, as far as they say where workers and routers are, and what list follows.

Read here rather than by the client's models, which refuse a slice without endpoints (`null`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tandem.wire import addresses
from tandem_router.core.values import Phase
from tandem_router.discovery.base import Listing, listed

SERVICE_LABEL = "kubernetes.io/service-name"
PORT_NAME = re.compile(r"grpc(-\d+)?")


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None


class _Target(msgspec.Struct):
    uid: str = ""


class _Conditions(msgspec.Struct):
    ready: bool | None = None


class _Endpoint(msgspec.Struct, rename="camel"):
    addresses: list[str]
    conditions: _Conditions | None = None
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


class ApiStatus(msgspec.Struct):
    """What the API server says instead of an answer."""

    code: int = 0
    message: str = ""


class WatchEvent(msgspec.Struct):
    type: str
    """ADDED, MODIFIED, DELETED, BOOKMARK (still there, nothing new) or ERROR (object: a Status)."""
    object: msgspec.Raw


def _is_ready(endpoint: _Endpoint) -> bool:
    """Whether the endpoint is ready; an unknown condition counts as ready, by the API's manual."""
    return endpoint.conditions is None or endpoint.conditions.ready is not False


def listing(
    slices: Iterable[EndpointSlice], services: Mapping[str, Phase | None], router_service: str = ""
) -> Listing:
    """The workers, sorted, and the routers; a service without a phase is of aggregated workers. A
    worker counts in any condition: one that is not ready
    waits for a router to say that it is paired, one that terminates finishes what is open. A router
    counts while it is ready: one that terminates takes nothing new.
    """
    in_order = sorted(slices, key=lambda each: (each.address_type, each.metadata.name))
    workers = {
        each
        for service, phase in services.items()
        for address in _addresses(in_order, service)
        for each in listed(address, phase)
    }
    return Listing(
        tuple(sorted(workers, key=lambda each: (each.phase, each.address))),
        frozenset(_addresses(in_order, router_service, only_ready=True)),
    )


def _addresses(
    slices: Sequence[EndpointSlice], service: str, *, only_ready: bool = False
) -> Iterator[str]:
    """A pod has one address for each of its ports, its first: the slices of a dual-stack Service
    name it once for each family, and it would count as two.
    """
    seen: set[tuple[str, int]] = set()
    for each in slices:
        if (each.metadata.labels or {}).get(SERVICE_LABEL) != service:
            continue
        for endpoint in each.endpoints or ():
            if only_ready and not _is_ready(endpoint):
                continue
            for host, port in itertools.product(endpoint.addresses[:1], _ports(each)):
                pod = endpoint.target_ref.uid if endpoint.target_ref else ""
                if (pod or host, port) not in seen:
                    seen.add((pod or host, port))
                    yield addresses.join(host, port)


def _ports(slice: EndpointSlice) -> Iterator[int]:
    """The ports of gRPC: one, or as many as a decode worker has token processes."""
    for each in slice.ports or ():
        if each.port is not None and PORT_NAME.fullmatch(each.name or ""):
            yield each.port
