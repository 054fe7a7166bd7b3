"""Several hooks in order: each sees what those before it let through.

A sequence's way through them is a state machine that calls nothing itself: it says which hook to
call with which chunk, and is told what came of it. tandem.hooks.runner makes the calls.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tandem.errors import HookError, LoadError
from tandem.hooks.audit import AuditLog
from tandem.hooks.contract import Chunk, Phase
from tandem.hooks.deferred import SequenceInfo
from tandem.hooks.loader import LoadedHook, load_hook
from tandem.hooks.piece import Piece
from tandem.hooks.sequence_hook import SequenceHook
from tandem.hooks.settings import HookEntry, HookSettings
from tandem.usercode.deadline import WATCH

log = logging.getLogger(__name__)


class Chain:
    """All hooks of one process: one instance each (S0-001)."""

    def __init__(self, hooks: Sequence[LoadedHook], *, audit: AuditLog | None = None) -> None:
        self.hooks = hooks
        self.audit = audit
        self.is_async = any(hook.is_async for hook in hooks)

    @property
    def resumable(self) -> bool:
        """Whether all of it may be shown again what another worker's hooks have judged."""
        return all(hook.resumable for hook in self.hooks)

    @classmethod
    def build(cls, settings: HookSettings, *, phase: Phase, model: str) -> Chain:
        """Build from settings that `for_worker` narrowed. Raises ConfigError or LoadError."""
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
        return SequenceChain([SequenceHook(hook, info) for hook in self.hooks], info)


class SequenceChain:
    """One sequence's passage through all hooks.

    `begin` and `end` return a chunk that `hook` must be called with, and so does `answered`, which
    is told what came of that call: an answer, or a Failed. None: there is nothing to call now. Then
    `passed` is what may be shown of the piece.

    A chunk of which a hook lets nothing through is not shown to those after it, unless it is the
    last: every hook gets its final call. After a terminate the hooks before it are told that the
    sequence is over; those after it get a last chunk, so that they give what they still hold.
    """

    __slots__ = (
        "_ending",
        "_final",
        "_hooks",
        "_replayed",
        "aborted",
        "error",
        "hook",
        "info",
        "over",
        "passed",
        "reason",
        "seconds",
    )

    def __init__(self, hooks: Sequence[SequenceHook], info: SequenceInfo) -> None:
        self.info = info
        self._hooks = hooks
        for before, after in pairwise(hooks):
            before.next = after
        self.hook = hooks[0]
        """The one to be called."""
        self._final = False
        self._ending = False
        self._replayed = info.replayed + 1 if info.replayed else 0
        """With the token that comes after so many, nothing is a replay any more. 0: nothing is."""
        self.over = False
        """The hooks know, or will be told, that the sequence is over: nothing more is judged."""
        self.aborted = False
        """Nobody waits for the verdicts."""
        self.passed: Piece | None = None
        """What may be shown of the last piece; None: hooks withheld it."""
        self.reason: str | None = None
        """Set by a terminate."""
        self.error: HookError | None = None
        """A hook failed closed."""
        self.seconds = 0.0
        """Spent in this sequence's hooks so far."""

    def begin(self, piece: Piece, final: bool) -> Chunk | None:
        """A piece comes. Only where the sequence is not over."""
        self.passed = piece
        self._final = final
        if self._replayed:
            self._count_replayed(piece)
        hook = self.hook = self._hooks[0]
        return self._ask(hook) if hook.muted else hook.chunk(piece, final)

    def answered(self, answer: Any) -> Chunk | None:
        """Take what `hook` answered to the piece."""
        piece, hook, final = self.passed, self.hook, self._final
        self.seconds += hook.caller.took
        if self._ending or piece is None:
            hook.told(answer)
            return self.end()
        try:
            passed = hook.judge(answer, piece, final)
        except HookError as error:
            self.error, self.passed, self.reason = error, None, None
            return self.end()
        if passed is not piece:
            self.passed = passed
            if hook.reason is not None:
                # The first reason counts, and what comes now is the last.
                self.reason = self.reason or hook.reason
                self._final = True
                self.passed = passed if passed is not None and passed.text else None
            elif passed is None and not final:
                return None
        elif hook.next is None and not final:
            return None  # as it is: what nearly every call comes to
        return self._ask(hook.next)

    def broke(self, error: Exception) -> None:
        """A call's result cannot be used. No hook of the sequence is called again."""
        self.over = self._ending = True
        self.error, self.passed, self.reason = HookError("the output hooks broke"), None, None
        self.error.__cause__ = error

    def end(self) -> Chunk | None:
        """The sequence is over, also in the middle of a call that was broken off: every hook is
        told that does not know it.
        """
        self.over = self._ending = True
        for hook in self._hooks:
            if not hook.ended:
                self.hook = hook
                return hook.last_words()
        return None

    def _count_replayed(self, piece: Piece) -> None:
        """A piece in which something new comes is no replay."""
        self._replayed -= len(piece.token_ids)
        if self._replayed < 1 or self._final:
            self._replayed = 0
            for hook in self._hooks:
                hook.replay = False

    def _ask(self, hook: SequenceHook | None) -> Chunk | None:
        """The chunk for `hook`, or for the next hook that is to be asked."""
        while hook is not None and hook.muted:
            hook = hook.next
        if hook is None:
            return self.end() if self._final else None
        self.hook = hook
        piece = self.passed
        if piece is None:
            piece = self.passed = Piece("", ())
        return hook.chunk(piece, self._final)


def _load(entry: HookEntry, phase: Phase, model: str, audit: AuditLog | None) -> LoadedHook:
    try:
        hook = load_hook(entry.path, entry.config)
    except LoadError as error:
        if entry.name == entry.path:
            raise
        raise LoadError(f"hook {entry.name!r}: {error}") from error
    if entry.shadow:
        log.warning("a hook is in shadow: its verdicts are not applied", extra={"hook": entry.name})
    elif entry.on_error == "open":
        log.warning(
            "a hook fails open: text on which it fails is shown", extra={"hook": entry.name}
        )
    log.info("hook loaded", extra={"hook": entry.name, "phase": phase})
    return LoadedHook(hook, entry=entry, phase=phase, model=model, audit=audit)
