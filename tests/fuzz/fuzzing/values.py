"""Values that code was not written for, and changes to plain bytes."""

from __future__ import annotations

from random import Random

INTEGERS = (
    *(0, 1, 2, 3, -1, 7, 63, 64, 127, 128, 255, 256, 1023, 4095, 4096, 65_535, 65_536),
    *(2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**53, 2**62, 2**62 + 1, 2**63 - 1),
    *(2**63, -(2**63), 2**64 - 1, 2**64, 10**30),
)
FLOATS = (0.0, -0.0, 1e-300, 1e-9, 0.5, 1.0, 2.0, 1e9, 1e300, -1e300, 3.4e38, 1.5)
ODD_FLOATS = (float("inf"), float("-inf"), float("nan"))
TEXTS = (
    *("", " ", "\0", "\n", "\r\n", "a", "0", "null", "true", "-1", "1e999", "\u202e", "\ufeff"),
    *("é", "😀", "\ud7ff", "data: [DONE]", "\r\n\r\n", "{}", "[[", "%00", "../..", "<|im_end|>"),
    *("x" * 65, "x" * 300, "y" * 5_000, "0" * 32, "G" * 32, "é" * 600, "a?" * 60, "(" * 70),
)
_WORDS = (b"\0", b"\xff", b"\r\n", b"\n", b"\r", b" ", b":", b"{", b"[", b'"', b"\\u0000", b"\x80")


def spoil_bytes(data: bytes, random: Random) -> bytes:
    """Change, drop, repeat or insert a few bytes anywhere."""
    at = random.randrange(len(data) + 1)
    length = random.choice((1, 1, 2, 4, 8, 64))
    match random.randrange(6):
        case 0:
            return data[:at] + random.randbytes(1) + data[at + 1 :]
        case 1:
            return data[:at] + data[at + length :]
        case 2:
            return data[:at] + data[at : at + length] * random.choice((2, 3, 50)) + data[at:]
        case 3:
            return data[:at] + random.choice(_WORDS) * random.choice((1, 1, 2, 20)) + data[at:]
        case 4:
            return data[:at]
    swapped = bytearray(data)
    if swapped:
        swapped[at % len(data)] ^= 1 << random.randrange(8)
    return bytes(swapped)
