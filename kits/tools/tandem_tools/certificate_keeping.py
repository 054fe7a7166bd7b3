"""`tandem certificates --keep`: looks at what is kept again and again, so that what somebody has
deleted, emptied or replaced is there again within seconds, and what nears its end is renewed.

Why it is a process that goes on, and not a Job: docs/kubernetes/security.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandem import logs, metrics, process
from tandem.admin import Admin
from tandem_tools.certificate_stores import StoreError

log = logging.getLogger(__name__)
LOOK_SECONDS = 10.0
"""Between two looks: sooner than the kubelet's patience with a missing file grows to a minute."""
Renew = Callable[[], tuple[str, ...]]
"""Makes what is missing, and returns what that was. Raises StoreError."""


@dataclass(frozen=True)
class _LogSettings:
    log_format: logs.Format
    log_level: str = "info"


def keep(renew: Renew, *, metrics_listen: str, log_format: logs.Format) -> int:
    """Until SIGTERM or SIGINT. Returns the exit status."""

    async def serve(_: _LogSettings, stop: asyncio.Event) -> None:
        keeper = CertificateKeeper(renew)
        registry = metrics.new_registry("certificates")
        registry.register(KeptCollector(lambda: keeper.kept))
        admin = Admin(registry, ready=lambda: keeper.kept)
        async with admin.serving(metrics_listen):
            await keeper.run(stop)

    return process.run_with("certificates", _LogSettings(log_format), serve)


class CertificateKeeper:
    """Keeps what `renew` makes; `run` is its life."""

    def __init__(self, renew: Renew) -> None:
        self._renew = renew
        self._failure = ""
        self.kept = False
        """Whether all was good, or made so, when it looked last."""

    async def run(self, stop: asyncio.Event) -> None:
        """Look until `stop`. What cannot be read or written now is tried again with each look."""
        while not stop.is_set():
            await self.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await stop.wait()

    async def look(self) -> None:
        """Once. The store may block."""
        try:
            changes = await asyncio.to_thread(self._renew)
        except StoreError as error:
            self.kept = False
            if str(error) != self._failure:  # said once, and not with each look
                log.error("certificates are not kept", extra={"reason": str(error)})
            self._failure = str(error)
            return
        for change in changes:
            log.info("%s", change)
        if changes or not self.kept:
            log.info("every certificate is good")
        self.kept, self._failure = True, ""


class KeptCollector(Collector):
    """What the keeper says of itself."""

    def __init__(self, kept: Callable[[], bool]) -> None:
        self._kept = kept

    def collect(self) -> Iterator[Metric]:
        yield metrics.gauge(
            "tandem_certificates_kept",
            "1 while all that components mount was good, or made so, at the last look.",
            self._kept(),
        )
