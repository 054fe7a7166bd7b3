"""A list and a watch of EndpointSlices, again and again for as long as the router lives. Runs in a
thread: the official client blocks.

A watch can end without a word, fall behind (410), or hang on a connection whose other end is gone.
So each has an end of its own, silence is bounded, and whatever ends it is followed by a new list,
which also finds what was deleted in between.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from kubernetes.client import ApiException, DiscoveryV1Api
from kubernetes.config import ConfigException
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from tandem_router.core.values import Phase
from tandem_router.discovery import slices
from tandem_router.discovery.base import Listing, Trouble, Watchkeeper

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
LIST_SECONDS = 30.0
"""The longest silence before the answer to a list."""
_FAILURES = (ApiException, ConfigException, HTTPError, OSError, msgspec.DecodeError)
_TROUBLE_OF_STATUS = {
    0: Trouble.UNREACHABLE,  # the client's word for a failed TLS handshake
    401: Trouble.FORBIDDEN,
    403: Trouble.FORBIDDEN,
    410: Trouble.EXPIRED,
}


@dataclass(slots=True, frozen=True, kw_only=True)
class Timing:
    """How long each wait may take, in seconds."""

    watch: int = 240
    """The API server ends a watch after this; a new list follows."""
    silence: float = 300.0
    """A connection that carries nothing for so long is given up."""
    first_pause: float = 1.0
    last_pause: float = 30.0


class SliceWatch:
    """`publish` gets every list that differs from the one before, and `over` is called when the
    thread ends; both in the thread.
    """

    def __init__(
        self,
        api: DiscoveryV1Api,
        *,
        namespace: str,
        services: Mapping[str, Phase | None],
        router_service: str,
        keeper: Watchkeeper,
        publish: Callable[[Listing], None],
        over: Callable[[], None],
        timing: Timing,
    ) -> None:
        self._call: Callable[..., Any] = api.list_namespaced_endpoint_slice
        self._namespace = namespace
        self._services = services
        self._router_service = router_service
        self._names = ",".join(sorted({*services, router_service} - {""}))
        self._keeper = keeper
        self._publish = publish
        self._over = over
        self._timing = timing
        self._pause = timing.first_pause
        self._slices: dict[str, slices.EndpointSlice] = {}
        self._published: Listing | None = None
        self._response: BaseHTTPResponse | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        """Watch until `stop` is called."""
        try:
            while not self._stopping.is_set():
                try:
                    self._watch(self._list())
                except _FAILURES as error:
                    self._note(error)
                # Jitter, so that the routers of a cluster do not return to its API server as one.
                self._stopping.wait(self._pause * random.uniform(0.5, 1.0))
        finally:
            self._over()

    def stop(self) -> None:
        """From any thread: end soon, also in the middle of a read."""
        self._stopping.set()
        response = self._response
        if response is not None:
            with suppress(RuntimeError, ValueError, OSError):  # it has just ended by itself
                response.shutdown()

    def _list(self) -> str:
        """Take in what there is; returns the version that a watch goes on from."""
        with self._request(LIST_SECONDS) as response:
            answer = msgspec.json.decode(response.data, type=slices.SliceList)
        self._slices = {each.metadata.name: each for each in answer.items}
        self._changed()
        return answer.metadata.resource_version

    def _watch(self, version: str) -> None:
        """Take in what changes, until the API server ends the watch."""
        with self._request(
            self._timing.silence,
            watch=True,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=self._timing.watch,
        ) as response:
            for line in _lines(response):
                self._take(msgspec.json.decode(line, type=slices.WatchEvent))
                self._pause = self._timing.first_pause
        self._pause = self._timing.first_pause

    def _take(self, event: slices.WatchEvent) -> None:
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=slices.ApiStatus)
            raise ApiException(status=status.code, reason=status.message)
        changed = msgspec.json.decode(event.object, type=slices.EndpointSlice)
        if event.type == "DELETED":
            self._slices.pop(changed.metadata.name, None)
        elif event.type != "BOOKMARK":
            self._slices[changed.metadata.name] = changed
        self._changed()

    def _changed(self) -> None:
        self._keeper.heard()
        listing = slices.listing(self._slices.values(), self._services, self._router_service)
        if listing != self._published:
            self._published = listing
            self._publish(listing)

    @contextmanager
    def _request(self, silence: float, **query: Any) -> Iterator[BaseHTTPResponse]:
        """The only call that discovery makes; the router's Role allows no other."""
        response: BaseHTTPResponse = self._call(
            self._namespace,
            label_selector=f"{slices.SERVICE_LABEL} in ({self._names})",
            _preload_content=False,
            _request_timeout=(CONNECT_SECONDS, silence),
            **query,
        )
        self._response = response
        try:
            if self._stopping.is_set():
                raise ConnectionAbortedError("`stop` came too early to see the response")
            yield response
        finally:
            self._response = None
            response.close()

    def _note(self, error: Exception) -> None:
        if self._stopping.is_set():
            return
        trouble, reason = _describe(error)
        self._keeper.failed(trouble)
        if trouble is Trouble.FORBIDDEN:
            log.error(
                "discovery may not read endpointslices: give the router's service account the"
                " verbs list and watch on endpointslices of discovery.k8s.io in namespace %s",
                self._namespace,
                extra={"reason": reason},
            )
        elif trouble is not Trouble.EXPIRED:
            log.warning(
                "discovery does not reach the API server; the workers known so far stay",
                extra={"reason": reason, "code": trouble.value},
            )
        self._pause = min(self._pause * 2, self._timing.last_pause)


def _describe(error: Exception) -> tuple[Trouble, str]:
    if isinstance(error, ApiException):
        return _TROUBLE_OF_STATUS.get(error.status, Trouble.ANSWER), _reason(error)
    if isinstance(error, msgspec.DecodeError):
        return Trouble.ANSWER, str(error)
    if isinstance(error, ConfigException):
        return Trouble.FORBIDDEN, str(error)
    return Trouble.UNREACHABLE, str(error)


def _reason(error: ApiException) -> str:
    """The API server's words for a refusal, which name who may not do what."""
    try:
        return msgspec.json.decode(error.body or "", type=slices.ApiStatus).message
    except msgspec.DecodeError:
        return f"{error.status} {error.reason}"


def _lines(response: BaseHTTPResponse) -> Iterator[bytes]:
    """As they come. A slice is one line, and the API server bounds its size."""
    rest = b""
    for chunk in response.stream(None, decode_content=True):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line)
