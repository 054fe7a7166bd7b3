"""Several hooks in order: each sees what those before it let through."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tandem.errors import LoadError
from tandem.hooks.audit import AuditLog
from tandem.hooks.contract import Phase
from tandem.hooks.deferred import SequenceInfo
from tandem.hooks.loader import load_hook
from tandem.hooks.piece import Piece
from tandem.hooks.runner import HookRunner
from tandem.hooks.sequence_hook import SequenceHook
from tandem.hooks.settings import HookEntry, HookSettings
from tandem.usercode.deadline import WATCH

log = logging.getLogger(__name__)


class Chain:
    """All hooks of one process: one instance each (S0-001)."""

    def __init__(self, hooks: Sequence[HookRunner], *, audit: AuditLog | None = None) -> None:
        self.hooks = hooks
        self.audit = audit
        self.is_async = any(hook.is_async for hook in hooks)

    @classmethod
    def build(cls, settings: HookSettings, *, phase: Phase, model: str) -> Chain:
        """Of settings that were narrowed by `for_worker`. Raises ConfigError or LoadError."""
        WATCH.install()
        audit = None
        if settings.audit is not None:
            audit = AuditLog(settings.audit, worker=settings.worker, model=model)
        hooks = [_load(entry, phase, model, audit) for entry in settings.chain]
        return cls(hooks, audit=audit)

    async def startup(self) -> None:
        """Run the hooks' own, and open the audit log. Raises ConfigError or LoadError."""
        if self.audit is not None:
            self.audit.start()
        for hook in self.hooks:
            await hook.startup()

    async def shutdown(self) -> None:
        """Run the hooks' own, in bounded time."""
        for hook in reversed(self.hooks):
            await hook.shutdown()
        if self.audit is not None:
            self.audit.close()

    def sequence(self, info: SequenceInfo) -> SequenceChain:
        """For the chunks of one sequence, in order."""
        return SequenceChain([SequenceHook(hook, info) for hook in self.hooks])


class SequenceChain:
    """One sequence's passage through all hooks.

    A chunk of which a hook lets nothing through is not shown to those after it, unless it is the
    last: every hook gets its final call. After a terminate the hooks before it are told that the
    sequence is over; those after it get a last chunk, so that they give what they still hold.
    """

    __slots__ = ("_hooks", "reason")

    def __init__(self, hooks: Sequence[SequenceHook]) -> None:
        self._hooks = hooks
        self.reason: str | None = None
        """Set by a terminate."""

    @property
    def seconds(self) -> float:
        """Spent in hooks."""
        return sum(hook.seconds for hook in self._hooks)

    def judge(self, piece: Piece, final: bool) -> Piece | None:
        """What may be shown of a piece; None: hooks withheld it. Only where no hook is async.

        Raises HookError; then, as after a terminate, every hook knows that the sequence is over.
        """
        passed: Piece | None = piece
        try:
            for hook in self._hooks:
                if hook.muted:
                    continue
                given = passed or Piece("", ())
                passed = hook.judge(given, final)
                if passed is given:
                    continue  # as it is: what nearly every call comes to
                if hook.reason is not None:
                    final, passed = self._terminated(hook.reason, passed)
                elif passed is None and not final:
                    return None
        except BaseException:
            self.abort()
            raise
        if final:
            self.abort()
        return passed

    async def judge_async(self, piece: Piece, final: bool) -> Piece | None:
        """`judge` for every chain."""
        passed: Piece | None = piece
        try:
            for hook in self._hooks:
                if hook.muted:
                    continue
                given = passed or Piece("", ())
                if hook.is_async:
                    passed = await hook.judge_async(given, final)
                else:
                    passed = hook.judge(given, final)
                if hook.reason is not None:
                    final, passed = self._terminated(hook.reason, passed)
                elif passed is None and not final:
                    return None
        except Exception:
            await self.abort_async()
            raise
        if final:
            await self.abort_async()
        return passed

    def abort(self) -> None:
        """Tell every hook once that the sequence is over, unless it knows."""
        for hook in self._hooks:
            hook.abort()

    async def abort_async(self) -> None:
        """`abort` for every chain."""
        for hook in self._hooks:
            if hook.is_async:
                await hook.abort_async()
            else:
                hook.abort()

    def _terminated(self, reason: str, passed: Piece | None) -> tuple[bool, Piece | None]:
        """The first reason counts. What comes now is the last."""
        if self.reason is None:
            self.reason = reason
        return True, passed if passed is not None and passed.text else None


def _load(entry: HookEntry, phase: Phase, model: str, audit: AuditLog | None) -> HookRunner:
    try:
        hook = load_hook(entry.path, entry.config)
    except LoadError as error:
        if entry.name == entry.path:
            raise
        raise LoadError(f"hook {entry.name!r}: {error}") from error
    if entry.shadow:
        log.warning("a hook is in shadow: its verdicts are not applied", extra={"hook": entry.name})
    elif entry.on_error == "open":
        log.warning("a hook fails open: what it fails on is shown", extra={"hook": entry.name})
    log.info("hook loaded", extra={"hook": entry.name, "phase": phase})
    return HookRunner(hook, entry=entry, phase=phase, model=model, audit=audit)
