"""A hook of this process: built once, started, told that sequences are over, and shut down."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tandem.hooks.audit import AuditLog
from tandem.hooks.contract import Chunk, Hook, Phase
from tandem.hooks.loader import is_async
from tandem.hooks.settings import HookEntry
from tandem.hooks.tally import Counted, HookTally
from tandem.hooks.verdicts import counted_failure
from tandem.usercode import lifecycle
from tandem.usercode.deadline import WATCH

log = logging.getLogger(__name__)


class HookRunner:
    """One hook of a chain, with what all its calls have in common."""

    __slots__ = (
        "audit",
        "call",
        "entry",
        "forget",
        "hook",
        "is_async",
        "model",
        "phase",
        "tally",
        "timeout",
    )

    def __init__(
        self,
        hook: Hook,
        *,
        entry: HookEntry,
        phase: Phase,
        model: str,
        audit: AuditLog | None = None,
    ) -> None:
        self.hook = hook
        self.audit = audit
        self.entry = entry
        self.phase: Phase = phase
        self.model = model
        self.timeout = entry.timeout_ms / 1000
        self.is_async = is_async(hook)
        self.call: Callable[[Chunk], Any] = hook.__call__
        self.forget: Callable[[int], object] | None = getattr(hook, "close", None)
        self.tally = HookTally()

    @property
    def name(self) -> str:
        return self.entry.name or self.entry.path

    async def startup(self) -> None:
        """Raises LoadError."""
        await lifecycle.startup(f"hook {self.name!r}", self.hook)

    async def shutdown(self) -> None:
        """Bounded; a failure is logged."""
        await lifecycle.shutdown(f"hook {self.name!r}", self.hook)

    def close(self, request_id: int) -> None:
        """Tell the hook that nothing more comes of a sequence. A failure is counted and logged."""
        self.tally.sequences -= 1
        if self.forget is None:
            return
        began = perf_counter()
        WATCH.enter(began, self.timeout)
        try:
            self.forget(request_id)
        except BaseException as error:  # noqa: BLE001 - user code; the sequence is over anyway
            self.failed(counted_failure(error))
            log.warning(
                "a hook's close raised",
                extra={"hook": self.name, "reason": type(error).__name__},
            )
        finally:
            WATCH.due = 0.0

    def failed(self, counted: Counted) -> None:
        self.tally.verdicts[counted] += 1
