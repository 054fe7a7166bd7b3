"""Whether a processor's limit counts its own time: its Python and its kernels, and not what the GPU
has to do for the engine before it answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any, ClassVar

import gpu
import torch
from processor_kinds import request

from tandem.logits import BaseLogitsProcessor, Model, Need, Row, TokenHistory, backlog
from tandem.logits.registry import Registry
from tandem.usercode.deadline import WATCH
from tandem_sglang.rows import RowEditor

CHEAP = "reads a number"
PYTHON = "computes in Python for two limits"
KERNEL = "queues a kernel of two limits, and reads"
LEAVES = "queues one, and does not read"
HOSTS = (CHEAP, PYTHON)
"""What needs no GPU."""
BLAMED = {PYTHON, KERNEL}
VOCABULARY = 4096
_REPEATS = 1000


class Busybody(BaseLogitsProcessor):
    """Does what it is named after, and spares every token."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.POSITION})
    keeps_state: ClassVar[bool] = False
    seconds: ClassVar[float] = 0.0
    busy: ClassVar[gpu.Busy | None] = None

    def __init__(self, does: str) -> None:
        self._does = does

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        if self._does == PYTHON:
            until = perf_counter() + self.seconds
            while perf_counter() < until:
                pass
        if self._does in (KERNEL, LEAVES):
            assert self.busy is not None
            self.busy.queue()
        if self._does in (CHEAP, KERNEL):
            logits[0].item()


def judged(device: str, limit_ms: float) -> list[dict[str, Any]]:
    """What became of each, alone and with rows before and after that read, behind a kernel of two
    limits.
    """
    WATCH.install()  # as in a scheduler
    Busybody.seconds = 2 * limit_ms / 1e3
    busy = Busybody.busy = gpu.Busy(2 * limit_ms) if device == "cuda" else None
    kinds = HOSTS if busy is None else (*HOSTS, KERNEL, LEAVES)
    steps = [[kind] for kind in kinds] + [[CHEAP, kind, CHEAP] for kind in kinds]
    _ended(device, limit_ms, [CHEAP], None)  # and is warm
    return [{"rows": each, "ended": _ended(device, limit_ms, each, busy)} for each in steps]


def _ended(
    device: str, limit_ms: float, kinds: Sequence[str], busy: gpu.Busy | None
) -> list[str | None]:
    """What each row of a step ended with; None where it did not."""
    registry = Registry(seconds=limit_ms / 1e3)
    registry.register("busybody", Busybody)
    editor = RowEditor(registry, Model(vocabulary=VOCABULARY, eos_token_ids=[1]))
    asked = [request("busybody", {"does": kind}) for kind in kinds]
    logits = torch.randn(len(kinds), VOCABULARY, device=device)
    gpu.settle(device)
    if busy is not None:
        busy.queue()
    verdicts = editor.edit(logits, [each.params for each in asked])
    for each in asked:
        each.ended = None
    if verdicts is not None:
        verdicts.tell(lambda each, error: setattr(each, "ended", error.message))
    return [each.ended for each in asked]


def verdict(found: Sequence[dict[str, Any]], limit_ms: float) -> str:
    wrong = [
        f"{kind} among {len(each['rows'])} row(s)"
        for each in found
        for kind, error in zip(each["rows"], each["ended"], strict=True)
        if (error is not None) != (kind in BLAMED)
    ]
    if wrong:
        return f"Verdict: WRONG about a limit of {limit_ms:g} ms: {', '.join(wrong)}."
    return f"Verdict: a limit of {limit_ms:g} ms counts a processor's own time."


def mark_microseconds(device: str) -> float | None:
    """What the host of a GPU pays for each call, in µs; None without one."""
    marks = backlog.of(torch.zeros(1, device=device))
    if marks is None:
        return None
    took = []
    for _ in range(5):
        gpu.settle(device)
        began = perf_counter()
        for _ in range(_REPEATS):
            marks.mark()
        took.append((perf_counter() - began) / _REPEATS * 1e6)
    return median(took)
