"""How long ready-made logits processors keep the host of a busy GPU, and where they wait for it.

The path is the scheduler's: `RowEditor.edit` on the rows of a step. Under overlap scheduling the
host starts a step while the GPU computes the one before; a processor that waits ends that. So each
step is called behind a kernel of ten milliseconds, or of twice the step where that takes longer,
and the clock runs until the call returns.

Then whether such a wait is charged to the processor: some that do more or less than their limit
allows are called behind such a kernel, and the right ones must end (limits.py).

Needs torch alone, and no SGLang. On a machine without a GPU there is nothing to wait for: it shows
the host's time.

    python benchmarks/gpu/processors.py
    python benchmarks/gpu/processors.py --device cpu --vocabulary 4096 --rows 1,4
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gpu
import limits
import torch
from processor_kinds import KINDS, TOKENIZER, Request, request

from tandem.logits import Model
from tandem.logits.registry import Registry
from tandem_sglang.rows import RowEditor, Verdicts

ROWS = (1, 64, 256)
VOCABULARY = 128_256
"""Llama 3's, the largest that is common."""
BUSY_MS = 10.0
"""At least; a kernel that ends while the host is still at the step shows no wait."""
WARM_UP = 3
ALL: Mapping[str, Mapping[str, Any]] = {
    **KINDS,
    "forced_prefix": {"text": "Sure, here it is"},
    "max_new_tokens": {"count": 1000},
}
MIXED = "each row another kind"
HALF = "every other row has none"


class Step:
    """One step of a batch, again and again: each call is for the sequences' next token."""

    def __init__(self, names: Sequence[str], rows: int, vocabulary: int, device: str) -> None:
        model = Model(vocabulary=vocabulary, eos_token_ids=[1], tokenizer_path=TOKENIZER)
        self._editor = RowEditor(Registry.builtin(), model)
        self._logits = torch.randn(rows, vocabulary, device=device)
        self._requests: list[Request] = []
        for row in range(rows):
            name = names[row % len(names)]
            self._requests.append(request(name, ALL[name]))
        self._number = 0
        self._verdicts: list[Verdicts] = []

    def __call__(self) -> None:
        verdicts = self._editor.edit(self._logits, [each.params for each in self._requests])
        if verdicts is not None:
            self._verdicts.append(verdicts)

    def grow(self) -> None:
        """Let every sequence have the token of this step."""
        for each in self._requests:
            each.grow(200 + self._number % 50)
        self._number += 1

    def next(self) -> None:
        """Grow, and edit the rows of the step after."""
        self.grow()
        self()

    def check(self) -> None:
        """That no row of the steps so far failed, for which the GPU is waited for."""
        for verdicts in self._verdicts:
            verdicts.tell(_failed)
        self._verdicts.clear()


class HalfStep(Step):
    """A step of twice the rows, of which every other one has a processor: SGLang's way of editing
    some rows of a batch, which are gathered and written back.
    """

    def __init__(self, names: Sequence[str], rows: int, vocabulary: int, device: str) -> None:
        super().__init__(names, max(1, rows // 2), vocabulary, device)
        self._batch = torch.randn(rows, vocabulary, device=device)
        self._places = torch.arange(0, 2 * len(self._requests), 2, device=device).clamp(
            max=rows - 1
        )

    def __call__(self) -> None:
        self._logits = self._batch[self._places]
        super().__call__()
        self._batch[self._places] = self._logits


def _failed(_request: Any, error: Exception) -> None:
    raise SystemExit(f"a processor failed: {error}")


def measured(name: str, rows: int, vocabulary: int, device: str) -> dict[str, Any]:
    """One row of figures; those of waiting are missing without a GPU."""
    names = [*ALL] if name in (MIXED, HALF) else [name]
    made = HalfStep if name == HALF else Step
    step = made(names, rows, vocabulary, device)
    for _ in range(WARM_UP):
        step.next()
    figures: dict[str, Any] = {"kind": name, "rows": rows}
    figures["us"] = gpu.microseconds(device, step.next)
    if device == "cuda":
        figures["busy_us"] = max(BUSY_MS * 1e3, 2 * figures["us"])
        busy = gpu.Busy(figures["busy_us"] / 1e3)
        figures["behind_us"] = busy.host_microseconds(step.next)
        step.grow()
        figures["waits"] = gpu.waits(step)
    step.check()
    return figures


def verdict(found: Sequence[Mapping[str, Any]]) -> str:
    """What the figures say of a step whose rows have processors."""
    waiting = _kinds(found, lambda each: each["waits"])
    unseen = _kinds(found, _waited_unseen)
    if not waiting + unseen:
        return (
            "Verdict: no processor makes the host wait; overlap scheduling stays whole with them."
        )
    kinds = sorted({*waiting, *unseen})
    said = [", ".join(kinds)]
    if waiting:
        most = max(len(each["waits"]) for each in found)
        places = Counter(place for each in found for place in each["waits"])
        said.append(f"{most} time(s) a step at most, at {', '.join(places)}")
    if unseen:
        said.append(f"unseen by torch: {', '.join(unseen)}")
    return (
        f"Verdict: {len(kinds)} of {len(ALL)} kinds wait ({'; '.join(said)}): a row that has one "
        "costs its batch the overlap of host and GPU. The others keep it."
    )


def _kinds(
    found: Sequence[Mapping[str, Any]], chosen: Callable[[Mapping[str, Any]], object]
) -> list[str]:
    return sorted({each["kind"] for each in found if chosen(each)} - {MIXED, HALF})


def _waited_unseen(figures: Mapping[str, Any]) -> bool:
    """As where a copy to the GPU finds no room in CUDA's staging buffers: nearer to the kernel's
    time than to the step's own.
    """
    return not figures["waits"] and 2 * figures["behind_us"] > figures["us"] + figures["busy_us"]


def main() -> None:
    parser = gpu.parser(__doc__)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--rows", type=gpu.numbers, default=list(ROWS))
    parser.add_argument("--limit-ms", type=float, default=BUSY_MS / 2)
    parser.add_argument("--kind", choices=[*ALL, MIXED, HALF], action="append")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"Measured on {gpu.describe(asked.device)}; {asked.vocabulary} tokens, float32.\n")
    found = []
    for name in asked.kind or [*ALL, MIXED, HALF]:
        for rows in asked.rows:
            found.append(measured(name, rows, asked.vocabulary, asked.device))
            sys.stderr.write(f"{found[-1]}\n")
    on_gpu = asked.device == "cuda"
    waiting = ["host behind a busy GPU, µs", "waits"] if on_gpu else []
    print(gpu.table(["kind", "rows", "a step, µs", *waiting], map(_cells, found)), end="\n\n")
    print(verdict(found) if on_gpu else "No GPU, so nothing to wait for: no verdict.")
    judged = limits.judged(asked.device, asked.limit_ms)
    cells = (
        [", ".join(each["rows"]), ", ".join(error or "goes on" for error in each["ended"])]
        for each in judged
    )
    print("\n" + gpu.table(["rows of a step", "each"], cells), end="\n\n")
    print(limits.verdict(judged, asked.limit_ms))
    mark = limits.mark_microseconds(asked.device)
    if mark is not None:
        print(f"Knowing so costs {mark:.1f} µs for each call of a processor.")
    gpu.report(
        asked.json,
        machine=gpu.describe(asked.device),
        rows=found,
        judged=judged,
        mark_us=mark,
    )


def _cells(figures: Mapping[str, Any]) -> list[object]:
    cells = [f"`{figures['kind']}`", figures["rows"], figures["us"]]
    if "waits" in figures:
        cells += [figures["behind_us"], len(figures["waits"])]
    return cells


if __name__ == "__main__":
    main()
