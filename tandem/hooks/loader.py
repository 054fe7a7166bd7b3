"""Builds the hooks that a worker's settings name, and keeps what all calls of one share."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

from tandem.errors import LoadError
from tandem.hooks.audit import AuditLog
from tandem.hooks.contract import Chunk, Hook, Phase
from tandem.hooks.counters import HookCounters
from tandem.hooks.settings import HookEntry
from tandem.usercode import lifecycle
from tandem.usercode.call import Caller, Failed
from tandem.usercode.loader import check_takes_one, is_async, load_named

log = logging.getLogger(__name__)
GROUP = "tandem.hooks"
"""The entry-point group of packages that offer hooks by a short name."""


def load_hook(path: str, config: Mapping[str, Any] | None = None) -> Hook:
    """One instance of the hook class at `path`, made with `config` as keyword arguments, without
    any as a rule (S0-001, S0-002, S0-003). A path of one word is the name of an entry point.

    Raises LoadError, which names the path and what is wrong with it.
    """
    hook_class = load_named(GROUP, path)
    if not isinstance(hook_class, type):
        raise LoadError(f"hook {path!r} is a {type(hook_class).__name__}, not a class")
    instance = lifecycle.build(f"hook {path!r}", hook_class, config or {})
    if not callable(instance):
        raise LoadError(
            f"hook {path!r} is not callable: give the class a method __call__(self, chunk)"
        )
    if inspect.isasyncgenfunction(type(instance).__call__):
        raise LoadError(f"hook {path!r}: its __call__ is a generator; it must return one verdict")
    check_takes_one(instance, f"hook {path!r}: its __call__ must take the chunk alone")
    hook: Hook = instance
    return hook


class LoadedHook:
    """A hook of this process, built once."""

    __slots__ = (
        "audit",
        "caller",
        "counters",
        "entry",
        "forget",
        "function",
        "hook",
        "is_async",
        "model",
        "phase",
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
        self.is_async = is_async(hook)
        self.caller = Caller(entry.timeout_ms / 1000)
        self.function: Callable[[Chunk], Any] = hook.__call__
        self.forget: Callable[[int], object] | None = getattr(hook, "close", None)
        self.counters = HookCounters()

    @property
    def name(self) -> str:
        return self.entry.name or self.entry.path

    @property
    def resumable(self) -> bool:
        """Whether the hook may be called again with chunks that were judged elsewhere."""
        return getattr(self.hook, "resumable", False) is True

    async def startup(self) -> None:
        """Raises LoadError."""
        await lifecycle.startup(f"hook {self.name!r}", self.hook)

    async def shutdown(self) -> None:
        """Bounded; a failure is logged."""
        await lifecycle.shutdown(f"hook {self.name!r}", self.hook)

    def close(self, request_id: int) -> None:
        """Tell the hook that nothing more comes of a sequence. A failure is counted and logged."""
        self.counters.sequences -= 1
        if self.forget is None:
            return
        answer = self.caller.call(self.forget, request_id)
        if type(answer) is Failed:
            self.failed(answer)
            log.warning("a hook's close raised", extra={"hook": self.name, "reason": answer.kind})

    def failed(self, failed: Failed) -> None:
        """Count a call that failed."""
        self.counters.verdicts["timeout" if failed.overdue else "error"] += 1
