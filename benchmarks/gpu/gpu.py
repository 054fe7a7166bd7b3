"""What the benchmarks of this folder share: the machine, and what the host waits for."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))  # its modules are shared with this folder

import machine


def parser(text: str | None) -> argparse.ArgumentParser:
    """Takes the arguments of every benchmark here; `text` is its module's docstring."""
    made = argparse.ArgumentParser(description=(text or "").splitlines()[0])
    made.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    made.add_argument("--json", type=Path, help="write the figures to this file")
    return made


def numbers(text: str) -> list[int]:
    """The numbers of an argument such as 1,64."""
    return [int(each) for each in text.split(",")]


def describe(device: str, *packages: str) -> str:
    """One line that names the machine, and the versions that a figure depends on."""
    names = ["torch", *packages]
    versions = ", ".join(f"{name} {_version(name)}" for name in names)
    where = torch.cuda.get_device_name() if device == "cuda" else "no GPU"
    return f"{machine.describe()}; {versions}; {where}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table, of which floats get one digit after the point."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        cells = (f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def report(path: Path | None, **figures: object) -> None:
    """Write them as JSON, where a file was asked for."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=2))


def settle(device: str) -> None:
    """Wait until the device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def microseconds(device: str, function: Callable[[], object], repeats: int = 20) -> float:
    """The median from a call to the end of its last kernel, on a device that is idle before."""
    took = []
    for _ in range(repeats):
        settle(device)
        began = time.perf_counter()
        function()
        settle(device)
        took.append((time.perf_counter() - began) * 1e6)
    return median(took)


class Busy:
    """A GPU that has `milliseconds` of work to do before whatever it is given next."""

    def __init__(self, milliseconds: float) -> None:
        self._cycles = 1_000_000
        torch.cuda._sleep(self._cycles)  # the first one loads the kernel
        took = microseconds("cuda", lambda: torch.cuda._sleep(self._cycles), 5) / 1e3
        self._cycles = int(self._cycles * milliseconds / took)

    def queue(self) -> None:
        """Give it that work, which nobody waits for here."""
        torch.cuda._sleep(self._cycles)

    def host_microseconds(self, function: Callable[[], object], repeats: int = 5) -> float:
        """How long a call keeps the host meanwhile, the median."""
        took = []
        for _ in range(repeats):
            torch.cuda.synchronize()
            self.queue()
            began = time.perf_counter()
            function()
            took.append((time.perf_counter() - began) * 1e6)
        torch.cuda.synchronize()
        return median(took)


def waits(function: Callable[[], object]) -> list[str]:
    """The places, file and line, at which `function` makes the host wait for the GPU, as torch sees
    them: one for each time.
    """
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            function()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return [_place(each) for each in seen if "synchronizing CUDA operation" in str(each.message)]


def _place(warning: Any) -> str:
    return f"{Path(warning.filename).name}:{warning.lineno}"
