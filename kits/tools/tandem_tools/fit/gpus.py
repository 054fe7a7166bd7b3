"""The GPUs that `tandem plan-fit` knows by name, and those that are given in MiB."""

from __future__ import annotations

import argparse
from typing import NamedTuple

_LEAST_MIB, _MOST_MIB = 4096, 4 * 1024 * 1024


class Gpu(NamedTuple):
    name: str
    mib: int
    """What NVIDIA's driver reports (`nvidia-smi`, memory.total), by which SGLang goes."""
    generation: int = 0
    """As of shape.Serving.gpu_generation."""


KNOWN = (
    Gpu("l4", 23_034, 8),
    Gpu("a30", 24_576, 8),
    Gpu("a100-40gb", 40_960, 8),
    Gpu("l40s", 46_068, 8),
    Gpu("h100", 81_559, 9),
    Gpu("a100", 81_920, 8),
    Gpu("h20", 97_871, 9),
    Gpu("rtx-pro-6000", 97_887, 12),
    Gpu("h200", 143_771, 9),
    Gpu("b200", 183_359, 10),
    Gpu("gb200", 189_471, 10),
    Gpu("b300", 275_040, 10),
    Gpu("gb300", 284_208, 10),
)


def of(text: str) -> Gpu:
    """A GPU by its name, or by a number of MiB. Raises ArgumentTypeError for any other text."""
    found = next((gpu for gpu in KNOWN if gpu.name == text.lower()), None)
    if found:
        return found
    if text.isascii() and text.isdigit() and _LEAST_MIB <= int(text[:9]) <= _MOST_MIB:
        return Gpu(f"{int(text):,} MiB", int(text))
    names = ", ".join(gpu.name for gpu in KNOWN)
    raise argparse.ArgumentTypeError(
        f"{text!r} is none of {names}, and no number of MiB from {_LEAST_MIB} to {_MOST_MIB}"
    )
