"""What the decisions of one hook on one sequence are about. Text that was held back, and let go as
it came, was not decided on.
"""

from __future__ import annotations

from tandem.hooks.audit.line import Decided
from tandem.hooks.audit.log import AuditLog
from tandem.hooks.contract import Phase, Verdict
from tandem.hooks.deferred import SequenceInfo


class Trail:
    """Writes them down, and counts."""

    __slots__ = ("_hook", "_info", "_log", "_phase", "_prefix", "_tokens", "_waiting", "replay")

    def __init__(
        self, log: AuditLog, info: SequenceInfo, *, phase: Phase, hook: str, shadow: bool
    ) -> None:
        self._log = log
        self._info = info
        self._phase: Phase = phase
        self._hook = hook
        self._prefix = "shadow:" if shadow else ""
        self._tokens = 0
        self._waiting = ""
        """Text that the hook has seen and neither shown nor decided on."""
        self.replay = False
        """What is decided now another worker's hook has decided before, which was lost."""

    def decided(self, decision: str, verdict: Verdict, text: str, tokens: int) -> None:
        """A verdict on a chunk. Raises HookError where the log must take it and cannot."""
        waiting = self._waiting + text
        shown = "" if decision == "suppress" else verdict.text
        undecided = decision != "terminate" and waiting.startswith(shown)
        if undecided and (verdict.hold_tokens or shown == waiting):
            self._waiting = waiting[len(shown) :]
            self._write("emit", "", shown, shown, tokens)
            return
        self._waiting = ""
        self._write(decision, verdict.reason, waiting, shown or None, tokens)

    def failed(self, decision: str, reason: str, text: str, tokens: int, *, passes: bool) -> None:
        """The hook failed on a chunk; `reason` quotes no text. `passes`: it is shown all the
        same.
        """
        waiting, self._waiting = self._waiting + text, ""
        self._write(decision, reason, waiting, waiting if passes else None, tokens)

    def _write(
        self, decision: str, reason: str, before: str, after: str | None, tokens: int
    ) -> None:
        self._tokens += tokens
        decision = self._prefix + decision
        if not self._log.wants(decision):
            return
        info = self._info
        self._log.record(
            Decided(
                phase=self._phase,
                trace_id=info.trace_id,
                request_id=info.request_id,
                output_index=info.output_index,
                tenant=info.tenant,
                hook=self._hook,
                decision=decision,
                reason=reason,
                text_before=before,
                text_after=after,
                token_count=self._tokens,
                replay=self.replay,
                lora_adapter=info.lora_adapter,
            )
        )
