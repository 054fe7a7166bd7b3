"""The log lines of those actions of the core that are logged and change nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from tandem_router import suspects
from tandem_router.core import actions

log = logging.getLogger(__name__)


def _log_rejected(action: actions.PairRejected) -> None:
    log.warning(
        "pair refused",
        extra={"worker": action.worker, "reason": action.reason, "count": action.pairs},
    )


def _log_stalled(action: actions.WorkerStalled) -> None:
    said = "a worker's engine has work and makes no step: it gets nothing new"
    if not action.stalled:
        said = "a worker's engine makes steps again"
    log.warning(said, extra={"address": action.worker, "seconds": action.step_age})


def _log_canary(action: actions.CanaryFailed) -> None:
    log.warning(
        "a canary failed: no KV has moved between two workers",
        extra={"prefill": action.prefill, "decode": action.decode, "reason": action.reason},
    )


def _log_hanging(action: actions.CanaryHangs) -> None:
    log.warning(
        "a canary hangs: no KV has moved between two workers yet",
        extra={"prefill": action.prefill, "decode": action.decode, "seconds": action.seconds},
    )


def _log_ejected(action: actions.WorkerEjected) -> None:
    log.error(
        "worker ejected",
        extra={"address": action.worker, "reason": action.reason, "seconds": action.seconds},
    )


def _log_returned(action: actions.WorkerReturned) -> None:
    log.warning(
        "worker no longer ejected", extra={"address": action.worker, "reason": action.reason}
    )


def _log_overdue(action: actions.SettleOverdue) -> None:
    log.warning(
        "a cancelled leg is overdue; its slot stays taken",
        extra={"trace_id": action.trace_id, "worker": action.worker, "leg": action.leg},
    )


WRITERS: Mapping[type[Any], Callable[[Any], None]] = {
    actions.WorkerDied: suspects.log_death,
    actions.WorkerStalled: _log_stalled,
    actions.CanaryFailed: _log_canary,
    actions.CanaryHangs: _log_hanging,
    actions.WorkerEjected: _log_ejected,
    actions.WorkerReturned: _log_returned,
    actions.PairRejected: _log_rejected,
    actions.SettleOverdue: _log_overdue,
}
"""What logs an action, by the action's type."""
