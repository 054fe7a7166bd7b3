"""A Kubernetes API server over real HTTP, as far as it lists and watches EndpointSlices."""

from __future__ import annotations

import json
import re
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

PATH = "/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices"
SERVICE = "kubernetes.io/service-name"


def endpoint_slice(
    name: str,
    service: str,
    *addresses: str,
    port: int | None = 7100,
    family: str = "IPv4",
    **conditions: bool,
) -> dict[str, Any]:
    """One slice as the API server gives it; each address is a pod named after its last group."""
    conditions = {"ready": True, "serving": True, "terminating": False, **conditions}
    endpoints = [
        {
            "addresses": [each],
            "conditions": conditions,
            "targetRef": {"kind": "Pod", "uid": f"pod-{re.split('[.:]', each)[-1]}"},
            "nodeName": "node",
        }
        for each in addresses
    ]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {SERVICE: service}},
        "addressType": family,
        "endpoints": endpoints or None,
        "ports": None
        if port is None
        else [
            {"name": "metrics", "port": 7101, "protocol": "TCP"},
            {"name": "grpc", "port": port, "protocol": "TCP"},
        ],
    }


class FakeApiServer:
    """Change it with `put` and `delete`; make it misbehave with its attributes, `down` and `up`."""

    def __init__(self) -> None:
        self.port = 0
        self.refuse_with = 0
        """A status for every request; 0: none."""
        self.body = b""
        """Instead of a list; empty: the list."""
        self.silent = False
        """A watch stays open and sends nothing, not even its end."""
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.watches = 0
        """Open ones."""
        self._slices: dict[str, dict[str, Any]] = {}
        self._events: list[tuple[int, str, dict[str, Any]]] = []
        self._version = 100
        self._oldest = 0
        self._changed = threading.Condition()
        self._server: ThreadingHTTPServer | None = None
        self._sockets: set[socket.socket] = set()
        self.up()

    def put(self, *slices: dict[str, Any]) -> None:
        for each in slices:
            name = each["metadata"]["name"]
            self._record("MODIFIED" if name in self._slices else "ADDED", each)
            self._slices[name] = each

    def delete(self, name: str) -> None:
        self._record("DELETED", self._slices.pop(name))

    def bookmark(self) -> None:
        bare = {"kind": "EndpointSlice", "metadata": {"creationTimestamp": None}}
        self._record("BOOKMARK", {**bare, "endpoints": None, "ports": None, "addressType": ""})

    def send(self, event: dict[str, Any]) -> None:
        """Something that no API server should say."""
        self._record("", {"raw": event})

    def forget(self, *, tell: bool) -> None:
        """Compact: watches that are behind get 410, and open ones at once where `tell` says so."""
        with self._changed:
            self._version += 1
            self._oldest = self._version
        if tell:
            self.send({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "x"}})

    def down(self) -> None:
        """The process is gone: nothing listens, and every connection is broken."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        self.cut()

    def cut(self) -> None:
        """Break every connection."""
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._changed:
            self._changed.notify_all()

    def up(self) -> None:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                with suppress(OSError):
                    fake._answer(self)

            def setup(self) -> None:
                super().setup()
                fake._sockets.add(self.connection)

            def finish(self) -> None:
                fake._sockets.discard(self.connection)
                with suppress(OSError):
                    super().finish()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    # --- answers ---------------------------------------------------------------------------------

    def _record(self, kind: str, content: dict[str, Any]) -> None:
        with self._changed:
            self._version += 1
            content.setdefault("metadata", {})["resourceVersion"] = str(self._version)
            self._events.append((self._version, kind, content))
            self._changed.notify_all()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlparse(request.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.requests.append((request.command, url.path, query))
        if self.refuse_with:
            message = 'endpointslices is forbidden: User "router" cannot list resource'
            self._send(request, self.refuse_with, json.dumps({"message": message}).encode())
        elif query.get("watch") in ("true", "True"):
            self._watch(request, query)
        else:
            items = [each for each in self._slices.values() if _wanted(each, query)]
            metadata = {"resourceVersion": str(self._version)}
            listed = {"kind": "EndpointSliceList", "metadata": metadata, "items": items}
            self._send(request, 200, self.body or json.dumps(listed).encode())

    def _send(self, request: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Connection", "close")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _watch(self, request: BaseHTTPRequestHandler, query: dict[str, str]) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Connection", "close")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        seen, seconds = int(query["resourceVersion"]), float(query["timeoutSeconds"])
        self.watches += 1
        try:
            if seen < self._oldest:
                gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
                _chunk(request, {"type": "ERROR", "object": gone})
            else:
                self._stream(request, query, seen, seconds)
            request.wfile.write(b"0\r\n\r\n")
        finally:
            self.watches -= 1

    def _stream(
        self, request: BaseHTTPRequestHandler, query: dict[str, str], seen: int, seconds: float
    ) -> None:
        def due() -> list[tuple[int, str, dict[str, Any]]]:
            return [] if self.silent else [each for each in self._events if each[0] > seen]

        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: due() or self._gone(request), seconds):
                    if self.silent:
                        continue
                    return
                fresh = due()
            if self._gone(request):
                raise OSError("the connection is cut")
            for version, kind, content in fresh:
                seen = version
                if not kind:
                    _chunk(request, content["raw"])
                elif kind == "BOOKMARK" or _wanted(content, query):
                    _chunk(request, {"type": kind, "object": content})

    def _gone(self, request: BaseHTTPRequestHandler) -> bool:
        if self._server is None:
            return True
        try:
            return request.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


def _wanted(content: dict[str, Any], query: dict[str, str]) -> bool:
    selected = re.fullmatch(rf"{re.escape(SERVICE)} in \((.*)\)", query["labelSelector"])
    assert selected, query
    return content["metadata"]["labels"].get(SERVICE) in selected[1].split(",")


def _chunk(request: BaseHTTPRequestHandler, event: dict[str, Any]) -> None:
    """In two chunks: a line need not come in one."""
    line = json.dumps(event).encode() + b"\n"
    for part in (line[:20], line[20:]):
        request.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        request.wfile.flush()
