"""The few things in which numpy and torch differ for what edits rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy


def is_numpy(rows: Any) -> bool:
    return type(rows).__module__ == "numpy"


def like(rows: Any, array: Any) -> Any:
    """A numpy array in the library and on the device of `rows`.

    The way to a GPU does not wait for what the GPU has to do before: CUDA copies pageable memory to
    a staging buffer before the call returns, so `array` may change afterwards.
    """
    if is_numpy(rows):
        return array
    tensor = sys.modules["torch"].from_numpy(array)
    return tensor if rows.is_cpu else tensor.to(rows.device, non_blocking=True)


def indices(places: Sequence[int]) -> Any:
    return numpy.array(places, dtype=numpy.int64)


def copied(rows: Any) -> Any:
    return rows.copy() if is_numpy(rows) else rows.clone()


def where(condition: Any, one: Any, other: Any) -> Any:
    """Element by element; unlike an index of bools, it does not make a GPU's host wait."""
    library = numpy if is_numpy(condition) else sys.modules["torch"]
    return library.where(condition, one, other)


def stream_of(rows: Any) -> int | None:
    """The address of the CUDA stream on which `rows` are being computed; None on a CPU."""
    if is_numpy(rows) or not rows.is_cuda:
        return None
    stream: int = sys.modules["torch"].cuda.current_stream(rows.device).cuda_stream
    return stream
