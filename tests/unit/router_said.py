"""Actions of the router's core in words: a verb, a thing and a note, as in `end 1 (cancelled)`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from trace_files import Said, said

from tandem.v1 import common_pb2
from tandem_router.core import actions
from tandem_router.core.story import Story

FLAGS = {
    "hold_output": "held",
    "say_made": "says what it makes",
    "say_logprobs": "says logprobs",
    "context_only": "parks",
}


class Names:
    """What earlier actions named: legs by label, vouchers by sequence, the fleet as last told."""

    def __init__(self) -> None:
        self.started: dict[str, actions.StartLeg] = {}
        self.labels: dict[int, str] = {}
        self.vouchers: dict[int, common_pb2.Voucher] = {}
        self.canaries: dict[int, int] = {}
        self.fleet: actions.FleetChanged | None = None
        self.stories: dict[str, Story] = {}
        """Of requests that have ended, by trace id."""
        self.messages: list[str] = []
        """Those of the errors that a frontend was told."""

    def label(self, start: actions.StartLeg) -> str:
        """Names a new leg: `1p` and `1d` of sequence 1, `1p.2` of its second attempt, `c1p` of the
        first canary.
        """
        command = start.command
        name = f"{command.sequence}"
        if command.canary:
            name = f"c{self.canaries.setdefault(command.sequence, len(self.canaries) + 1)}"
        name += "p" if "prefill" in start.worker else "d"
        attempt = 1 + sum(each.partition(".")[0] == name for each in self.started)
        label = name if attempt == 1 else f"{name}.{attempt}"
        self.started[label], self.labels[start.leg] = start, label
        return label

    def words(self, done: Sequence[actions.Action | Said]) -> list[Said]:
        """What is in words already stays as it is."""
        ended = [each.story for each in done if isinstance(each, actions.RequestEnded)]
        self.stories |= {each.trace_id: each for each in ended}
        ends = {
            (each.sequence, code(each)) for each in done if isinstance(each, actions.EndSequence)
        }
        return [
            each
            for action in done
            if not (isinstance(action, actions.RequestEnded) and _said_by_ends(action, ends))
            for each in SAID[type(action)](self, action)
        ]


def code(end: actions.EndSequence) -> str:
    return end.error.code if end.error else f"hook: {end.stop_reason}"


def other(label: str) -> str:
    """The label of the other leg of its sequence."""
    return re.sub("[pd]", lambda found: "d" if found[0] == "p" else "p", label)


def _said_by_ends(ended: actions.RequestEnded, ends: set[tuple[int, str]]) -> bool:
    return any(told == ended.story.outcome or told.startswith("hook") for _, told in ends)


def _start(names: Names, start: actions.StartLeg) -> list[Said]:
    command, label = start.command, names.label(start)
    thing = " ".join(
        [
            f"{label} {start.worker}",
            *[f"computes {command.to_compute}"] * (command.to_compute > 1),
            *[words for name, words in FLAGS.items() if getattr(command, name)],
            *_of_voucher(names, command.room, command.task_digest),
        ]
    )
    prefill = names.started.get(other(label)) if start.command.kv_peer else None
    usual_ms = 330_000 if command.canary else 60_000
    notes: list[object] = [
        command.timeout_ms != usual_ms and f"in {command.timeout_ms / 1000:g} s",
        command.kv_peer != (f"kv-of-{prefill.worker}" if prefill else "")
        and f"from {command.kv_peer}",
        prefill and prefill.command.room != command.room and "another room",
        start.overlay and f"over its task: {start.overlay.decode()}",
        start.made and f"made: {start.made.decode()}",
        not (start.task or command.canary) and "without its task",
        set(start.task) - {*b"tx"} and f"task: {start.task.decode()}",
    ]
    return said("start", thing, *notes)


def _end(names: Names, end: actions.EndSequence) -> list[Said]:
    if end.error:
        names.messages.append(end.error.message)
    counts = (("prompt", end.prompt_tokens), ("completion", end.completion_tokens))
    tokens = [f"{count} {kind} tokens" for kind, count in counts if count]
    return said("end", end.sequence, code(end), end.refused and "refused", *tokens)


def _voucher(names: Names, given: actions.GiveVoucher) -> list[Said]:
    found = names.vouchers[given.sequence] = given.voucher
    rooms = [
        start.command.room
        for label, start in names.started.items()
        if label.partition(".")[0] == f"{given.sequence}p"
    ]
    return said(
        "voucher",
        f"{given.sequence} {found.model} {found.kv_peer}",
        f"first tokens {' '.join(map(str, found.first_token_ids))}",
        f"until {given.expires_at:g} s",
        found.room != rooms[-1] and "another room",
    )


def _of_voucher(names: Names, room: int, digest: bytes) -> list[str]:
    """Which voucher a leg goes on from."""
    known = {(each.room, each.task_digest): number for number, each in names.vouchers.items()}
    return [f"of voucher {known.get((room, digest))}"] if digest else []


def _fleet(names: Names, told: actions.FleetChanged) -> list[Said]:
    names.fleet = told
    return [
        each
        for model in told.models
        for each in said(
            "fleet",
            f"{model.name} {model.tokenizer_sha256} {model.ready_pairs}",
            model.waits and "waits",
            model.ready_pairs and not model.simulated and "not simulated",
        )
    ]


SAID: dict[type[Any], Callable[[Names, Any], list[Said]]] = {
    Said: lambda names, its: [its],
    actions.StartLeg: _start,
    actions.EndSequence: _end,
    actions.GiveVoucher: _voucher,
    actions.FleetChanged: _fleet,
    actions.ReleaseLeg: lambda names, its: said("release", names.labels[its.leg]),
    actions.CancelLeg: lambda names, its: said("cancel", names.labels[its.leg], its.reason),
    actions.QueueWait: lambda names, its: said(
        "queued", its.sequence, f"{its.seconds:g} s", its.cause
    ),
    actions.TellWait: lambda names, its: said("waits", its.sequence, its.what),
    actions.RequestEnded: lambda names, its: said("over", its.story.trace_id, its.story.outcome),
    actions.SequenceTraced: lambda names, its: said("traced", its.output_index, its.outcome),
    actions.WorkerDied: lambda names, its: said(
        "died", its.worker, *(each.submit.trace_id for each in its.suspects)
    ),
    actions.WorkerStalled: lambda names, its: said(
        "stands" if its.stalled else "steps again", its.worker
    ),
    actions.GiveUpWorker: lambda names, its: said(
        "give up", its.worker, its.reason, its.died and "died"
    ),
    actions.CanaryFailed: lambda names, its: said(
        "canary failed", f"{its.prefill} {its.decode}", its.reason
    ),
    actions.CanaryHangs: lambda names, its: said(
        "canary hangs", f"{its.prefill} {its.decode}", f"{its.seconds:g} s"
    ),
    actions.WorkerEjected: lambda names, its: said(
        "eject", its.worker, f"{its.seconds:g} s", its.reason
    ),
    actions.WorkerReturned: lambda names, its: said("return", its.worker, its.reason),
    actions.RefuseFrontend: lambda names, its: said("refuse frontend", "", its.reason),
    actions.WorkerPaired: lambda names, its: said("paired", its.worker),
    actions.PairRejected: lambda names, its: said(
        "no pair", its.worker, its.reason, its.pairs != 1 and f"{its.pairs} pairs"
    ),
    actions.SettleOverdue: lambda names, its: said("overdue", names.labels[its.leg]),
}
