"""What logits processors cost a step of SGLang: CPU time of its `apply_custom_logit_processor`,
with Tandem's processor in it, for a batch of 64 rows of which some are active.

Beside it stands the same work through SGLang's bare interface: a custom processor that loops over
its rows and calls the same code, without a time limit, without a check of what it left, and without
a batched form. No model runs: a step's own time is what the figures are to be compared with.

On a GPU the time is the clock's, from the call to the last kernel's end, and beside it stands how
often a step makes the host wait for the GPU.

    python benchmarks/logits_cost.py                    # both tables, some minutes
    python benchmarks/logits_cost.py --device cuda
    python benchmarks/logits_cost.py --vocabulary 32768 --kind forced_sequence
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from types import SimpleNamespace
from typing import Any

import machine
import torch
from processor_kinds import KINDS, TOKENIZER, Request, request
from sglang.srt.layers.sampler import apply_custom_logit_processor

from tandem.logits import Model, TokenHistory, state
from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorEntry
from tandem_sglang import delayed_sampling
from tandem_sglang.rows import RowEditor

BATCH = 64
ACTIVE = (1, 8, 64)
VOCABULARIES = (32_768, 131_072)
STEPS, WARM_UP = 100, 5
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


class Bare:
    """The same processors through SGLang's interface as it is."""

    def __init__(self, processors: Sequence[Any]) -> None:
        self._processors = processors

    def __call__(self, logits: Any, params: Sequence[Mapping[str, Any]]) -> Any:
        for row, given, processor in zip(logits, params, self._processors, strict=True):
            request = given["__req__"]
            processor(TokenHistory(request.origin_input_ids, request.output_ids), row)
        return logits


class Tandem:
    """What the scheduler of a worker runs."""

    def __init__(self, editor: RowEditor) -> None:
        self._editor = editor

    def __call__(self, logits: Any, params: Sequence[Mapping[str, Any]]) -> Any:
        verdicts = self._editor.edit(logits, params)
        if verdicts is not None:
            verdicts.tell(_failed)
        return logits


def _failed(_request: Any, error: Exception) -> None:
    raise SystemExit(f"a processor failed: {error}")


class Batch:
    """SGLang's SamplingBatchInfo, as far as `apply_custom_logit_processor` reads it."""

    def __init__(
        self, requests: Sequence[Request], processor: Any, active: int, device: str
    ) -> None:
        indices = torch.arange(active, device=device)
        entry = SimpleNamespace(rows=list(range(active)), indices=indices, processor=processor)
        self.custom_logit_processor = {0: entry}
        self.custom_params = [request.params for request in requests]
        self.device = device

    def __len__(self) -> int:
        return len(self.custom_params)


@dataclass(frozen=True)
class Side:
    """Tandem's processor, or the bare one, with requests of its own."""

    requests: Sequence[Request]
    batch: Batch

    @staticmethod
    def of(name: str, args: Mapping[str, Any], active: int, logits: Any, bare: bool) -> Side:
        model = Model(vocabulary=logits.shape[1], eos_token_ids=[1], tokenizer_path=TOKENIZER)
        registry = Registry.builtin()
        requests = [request(name, args) for _ in range(BATCH)]
        entry = LogitsProcessorEntry(name, args)
        processor: Any = (
            Bare([registry.create(entry, model) for _ in range(active)])
            if bare
            else Tandem(RowEditor(registry, model))
        )
        return Side(requests, Batch(requests, processor, active, logits.device.type))

    def step(self, number: int, logits: Any) -> float:
        """Seconds of one step, CPU time or with a GPU the clock's; then every sequence grows by one
        token.
        """
        rows = logits.clone()
        if logits.is_cuda:
            torch.cuda.synchronize()
        clock = time.perf_counter if logits.is_cuda else time.thread_time
        began = clock()
        apply_custom_logit_processor(rows, self.batch)
        if logits.is_cuda:
            torch.cuda.synchronize()
        took = clock() - began
        for each in self.requests:
            each.grow(200 + number % 50)
        return took

    def waits(self, logits: Any) -> int:
        """How often one step makes the host wait for the GPU."""
        rows = logits.clone()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            apply_custom_logit_processor(rows, self.batch)
            torch.cuda.set_sync_debug_mode("default")
        return sum("synchronizing CUDA operation" in str(each.message) for each in seen)


def microseconds(
    name: str, args: Mapping[str, Any], active: int, logits: Any
) -> tuple[list[float], list[int]]:
    """What a step costs with Tandem, bare, and the ratio of the two; then, on a GPU, the waits of a
    step of each.

    The two take turns, because the machine's own speed changes. The figures are those that nine
    steps in ten exceed, because whatever else runs on the machine can only add.
    """
    sides = [Side.of(name, args, active, logits, bare) for bare in (False, True)]
    took: list[list[float]] = [[], []]
    for number in range(WARM_UP + STEPS):
        for side, measured in zip(sides, took, strict=True):
            measured.append(side.step(number, logits) * 1e6)
    ours, bare = (quantiles(measured[WARM_UP:], n=10)[0] for measured in took)
    waits = [side.waits(logits) for side in sides] if logits.is_cuda else []
    return [ours, bare, ours / bare], waits


def inactive() -> float:
    """Seconds that Tandem adds to a step whose batch has no processor: the question whether one
    reads tokens, and whether there is any state to forget.
    """
    batch = SimpleNamespace(
        sampling_info=SimpleNamespace(has_custom_logit_processor=False), reqs=[None] * BATCH
    )

    delayed = delayed_sampling.DelayedSampling()
    return _per_call(lambda: delayed.decide(batch)) + _per_call(state.alive)


def _per_call(function: Callable[[], object], count: int = 200_000) -> float:
    began = time.perf_counter()
    for _ in range(count):
        function()
    return (time.perf_counter() - began) / count


def keep_memory() -> None:
    """Let the C library keep what is freed, as torch does on a GPU: else a step of many rows is
    spent on getting the same pages again, with a processor or without.
    """
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def table(vocabulary: int, kinds: Sequence[str], device: str, rows: list[dict[str, Any]]) -> str:
    """The figures as a Markdown table; each one is added to `rows` too."""
    logits = torch.randn(BATCH, vocabulary, device=device)
    what = "µs, bare, ratio" + ("; waits, bare" if logits.is_cuda else "")
    head = " | ".join(f"{active} active: {what}" for active in ACTIVE)
    lines = [f"| {vocabulary} tokens | {head} |", "| --- |" + " --- |" * len(ACTIVE)]
    for name in kinds:
        cells = []
        for active in ACTIVE:
            (ours, bare, ratio), waits = microseconds(name, KINDS[name], active, logits)
            row = {"kind": name, "vocabulary": vocabulary, "active": active, "waits": waits}
            rows.append({**row, "us_per_step": ours, "bare_us_per_step": bare, "ratio": ratio})
            cells.append(f"{ours:.0f}, {bare:.0f}, {ratio:.2f}")
            if waits:
                cells[-1] += "; {}, {}".format(*waits)
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
        sys.stderr.write(lines[-1] + "\n")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vocabulary", type=int, choices=VOCABULARIES, action="append")
    parser.add_argument("--kind", choices=sorted(KINDS), action="append")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    keep_memory()
    torch.set_num_threads(1)  # as the engine on a CPU
    where = torch.cuda.get_device_name() if asked.device == "cuda" else "one thread"
    print(f"Measured on {machine.describe()}, torch {torch.__version__} on {where}.\n")
    print(f"A step without an active row: {inactive() * 1e9:.0f} ns.\n")
    for vocabulary in asked.vocabulary or VOCABULARIES:
        print(table(vocabulary, asked.kind or list(KINDS), asked.device, rows), end="\n\n")
    if asked.json:
        asked.json.write_text(json.dumps({"machine": machine.describe(), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
