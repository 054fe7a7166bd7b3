"""The few things in which numpy and torch differ for what edits rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy

_STAGED_BYTES = 1 << 16
"""CUDA's own staging waits where a step's copies find no room in it: four of 128 KiB were seen to
wait, sixteen of 64 KiB were not."""


def is_numpy(rows: Any) -> bool:
    return type(rows).__module__ == "numpy"


def like(rows: Any, array: Any) -> Any:
    """A numpy array in the library and on the device of `rows`.

    The way to a GPU does not wait for what the GPU has to do before, and `array` may change
    afterwards: CUDA copies a small one to a staging buffer before the call returns. For a large one
    its staging buffer would have to be free, so torch's own is taken.
    """
    if is_numpy(rows):
        return array
    tensor = sys.modules["torch"].from_numpy(array)
    if rows.is_cpu:
        return tensor
    if array.nbytes >= _STAGED_BYTES:
        tensor = tensor.pin_memory()
    return tensor.to(rows.device, non_blocking=True)


def number(rows: Any, value: float) -> Any:
    """`value` for arithmetic with `rows`, and to be written into places of them.

    A GPU gets it as a scalar of its own: a Python float written to places is copied there and
    waited for, and a division by one is a product with its inverse, whose last bit may differ from
    that of a division by an array.
    """
    if is_numpy(rows) or rows.is_cpu:
        return value
    return sys.modules["torch"].full((), value, dtype=rows.dtype, device=rows.device)


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
