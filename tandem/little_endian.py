"""Numbers of a fixed size as bytes, the lowest byte first, on any machine."""

from __future__ import annotations

import sys
from array import array
from typing import Final

TOKEN_ID_BYTES: Final = 4
"""A token id's size in a task: an item of array("I")."""


def to_bytes(numbers: array[int] | array[float]) -> bytes:
    """The bytes of the numbers, each of the array's item size."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def to_numbers(kind: str, data: bytes | memoryview) -> array[int]:
    """The numbers of these bytes, as an array of that kind: `I` for 4 bytes each, `Q` for 8. Raises
    ValueError for a rest.
    """
    numbers = array(kind)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
