"""Metrics on the API's port, for deployments whose `operator_paths` name them."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from tandem import admin
from tandem_frontend.http.messages import Call


class Scrapes:
    """Answers scrapes in a thread, one after the other: those that come meanwhile share one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._writing: dict[str, asyncio.Future[tuple[bytes, str]]] = {}
        """One at most of each format, which is how metrics are asked for."""

    async def answer(self, call: Call) -> None:
        accept = _format(call.header(b"accept") or b"")
        writing = self._writing.get(accept)
        if writing is None:
            loop = asyncio.get_running_loop()
            writing = loop.run_in_executor(None, admin.scrape, self._registry, accept)
            self._writing[accept] = writing
            writing.add_done_callback(lambda _: self._writing.pop(accept))
        body, content_type = await asyncio.shield(writing)
        await call.respond(200, body, content_type.encode())


def _format(accept: bytes) -> str:
    """One of two: strangers' headers are no keys."""
    openmetrics = "application/openmetrics-text"
    return f"{openmetrics}; version=1.0.0" if openmetrics.encode() in accept else "text/plain"
