"""A real Envoy with one listener for each way through it: as a plain proxy, and asking an endpoint
picker by ext_proc, as gateways with the Inference Extension have it do.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from endpoint_picker import HEADER

from tandem.free_ports import FreePorts

ROOT = Path(__file__).resolve().parent.parent
_TYPES = "type.googleapis.com/envoy.extensions"
_HTTP = f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions"
HEADERS = {"request_header_mode": "SEND", "response_header_mode": "SKIP"}
REQUEST = {
    **HEADERS,
    "request_body_mode": "FULL_DUPLEX_STREAMED",
    "request_trailer_mode": "SEND",
}
WHOLE = {
    **REQUEST,
    "response_header_mode": "SEND",
    "response_body_mode": "FULL_DUPLEX_STREAMED",
    "response_trailer_mode": "SEND",
}
"""What a picker is sent: a request's head; its body too; and the answer with all its events, as the
protocol asks of a picker to take.
"""


@dataclass(frozen=True)
class Way:
    """A listener: to `frontend`, or to whichever endpoint the picker at `picker` names."""

    frontend: str = ""
    picker: str = ""
    sent: Mapping[str, str] | None = None
    """What the picker is sent: an ext_proc processing mode."""


@dataclass(frozen=True)
class Envoy:
    pid: int
    addresses: Mapping[str, str]
    """By the names of the ways."""


@contextmanager
def running(ways: Mapping[str, Way], folder: Path) -> Iterator[Envoy]:
    """Envoy with one thread and these listeners."""
    with ExitStack() as held:
        free = FreePorts(held)
        addresses = {name: free.address() for name in ways}
    listeners, clusters = [], [_picked_cluster()]
    for name, way in ways.items():
        listeners.append(_listener(name, addresses[name], way))
        clusters += _clusters(name, way)
    settings = folder / "envoy.json"
    resources = {"listeners": listeners, "clusters": clusters}
    settings.write_text(json.dumps({"static_resources": resources}))
    found = subprocess.run(
        [ROOT / "scripts" / "set_up_envoy.sh"], capture_output=True, text=True, check=True
    )
    arguments = ("--disable-hot-restart", "--concurrency", "1", "-l", "error", "-c", str(settings))
    with subprocess.Popen([found.stdout.strip(), *arguments]) as process:
        try:
            for address in addresses.values():
                wait_for(address, process)
            yield Envoy(process.pid, addresses)
        finally:
            process.terminate()


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    """Until somebody listens there. Raises TimeoutError; RuntimeError where the process ends."""
    host, _, port = address.rpartition(":")
    due = time.monotonic() + 30
    while time.monotonic() < due:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        try:
            socket.create_connection((host, int(port))).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(f"nobody listens at {address}")


def _listener(name: str, address: str, way: Way) -> dict[str, Any]:
    filters = [_named("envoy.filters.http.router", f"{_TYPES}.filters.http.router.v3.Router")]
    if way.picker:
        asking = {
            "grpc_service": {"envoy_grpc": {"cluster_name": f"{name} picker"}},
            "processing_mode": way.sent,
            "message_timeout": "10s",
            "metadata_options": {"receiving_namespaces": {"untyped": ["envoy.lb"]}},
        }
        kind = f"{_TYPES}.filters.http.ext_proc.v3.ExternalProcessor"
        filters.insert(0, _named("envoy.filters.http.ext_proc", kind, **asking))
    route = {"cluster": "picked" if way.picker else name, "timeout": "0s"}
    hosts = [
        {"name": name, "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}
    ]
    manager = _named(
        "envoy.filters.network.http_connection_manager",
        f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=name,
        http_filters=filters,
        route_config={"virtual_hosts": hosts},
    )
    return {"name": name, "address": _socket(address), "filter_chains": [{"filters": [manager]}]}


def _clusters(name: str, way: Way) -> Iterator[dict[str, Any]]:
    if way.picker:
        http2 = {"explicit_http_config": {"http2_protocol_options": {}}}
        extensions = {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {"@type": _HTTP, **http2}
        }
        yield _cluster(f"{name} picker", way.picker) | {
            "typed_extension_protocol_options": extensions
        }
    else:
        yield _cluster(name, way.frontend)


def _picked_cluster() -> dict[str, Any]:
    by_header = {"use_http_header": True, "http_header_name": HEADER}
    return {
        "name": "picked",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": by_header,
    }


def _cluster(name: str, address: str) -> dict[str, Any]:
    endpoint = {"endpoint": {"address": _socket(address)}}
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]}
    return {"name": name, "load_assignment": assignment}


def _socket(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _named(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": kind, **fields}}
