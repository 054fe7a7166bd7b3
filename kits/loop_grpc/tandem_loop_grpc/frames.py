"""HTTP/2's frames as bytes (RFC 9113, 4 and 6)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD: Final = struct.Struct(">HBBBI")
"""The length's upper 16 of 24 bits, its lower 8, kind, flags, stream."""
HEAD_BYTES: Final = HEAD.size
MESSAGE_HEAD: Final = struct.Struct(">BI")
"""gRPC's own head of a message: whether it is compressed, and its length."""
MESSAGE_HEAD_BYTES: Final = MESSAGE_HEAD.size
MESSAGE_FRAME_HEAD: Final = struct.Struct(">IBIBI")
"""Both heads of a frame that holds one message: the frame's length and kind in one number, its
flags and its stream; whether the message is compressed, and the message's length. DATA is kind 0.
"""
_NUMBER: Final = struct.Struct(">I")
_SETTING: Final = struct.Struct(">HI")
_TWO_NUMBERS: Final = struct.Struct(">II")
_MOST_REASON: Final = 200
_MOST_SETTINGS: Final = 32
"""In a frame, as nghttp2 has it: HTTP/2 knows six."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY = range(8)
WINDOW_UPDATE, CONTINUATION = 8, 9
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 1, 2, 3, 4
MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 5, 6

FIRST_WINDOW: Final = 65_535
"""What may be sent before a peer says otherwise, by a stream and by the connection."""
LARGEST_WINDOW: Final = 2**31 - 1
LAST_STREAM: Final = 2**31 - 1
LEAST_FRAME: Final = 16_384
"""Bytes of a frame that everybody takes; we take no larger ones."""
LARGEST_FRAME: Final = 2**24 - 1
PRIORITY_BYTES: Final = 5
PING_BYTES: Final = 8


class Code(IntEnum):
    """Why a stream or a connection ends (RFC 9113, 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ProtocolError(Exception):
    """The peer does what HTTP/2 forbids, or more than it may: its connection ends."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame; the payload fits into it."""
    size = len(payload)
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def message_frame(stream: int, message: bytes) -> bytes:
    """A DATA frame that holds one message of gRPC, and nothing else."""
    size = len(message)
    return MESSAGE_FRAME_HEAD.pack(size + MESSAGE_HEAD_BYTES << 8, 0, stream, 0, size) + message


def settings(values: Mapping[int, int]) -> bytes:
    """What we ask of the peer."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in values.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Raises ProtocolError where it is not made of settings, or of more than anybody has."""
    if len(payload) % _SETTING.size:
        raise ProtocolError(Code.FRAME_SIZE_ERROR, "settings of another size")
    if len(payload) > _MOST_SETTINGS * _SETTING.size:
        raise ProtocolError(Code.ENHANCE_YOUR_CALM, f"more than {_MOST_SETTINGS} settings")
    return list(_SETTING.iter_unpack(payload))


def check_setting(name: int, value: int) -> None:
    """Raises ProtocolError where a setting cannot be that."""
    if name == ENABLE_PUSH and value > 1:
        raise ProtocolError(Code.PROTOCOL_ERROR, "a setting that is neither yes nor no")
    if name == INITIAL_WINDOW_SIZE and value > LARGEST_WINDOW:
        raise ProtocolError(Code.FLOW_CONTROL_ERROR, "too large a window")
    if name == MAX_FRAME_SIZE and not LEAST_FRAME <= value <= LARGEST_FRAME:
        raise ProtocolError(Code.PROTOCOL_ERROR, "no size of a frame")


def check_priority(stream: int, payload: bytes) -> None:
    """Raises ProtocolError where a stream's priority cannot be: else it means nothing here."""
    if not stream:
        raise ProtocolError(Code.PROTOCOL_ERROR, "a priority of no stream")
    if len(payload) != PRIORITY_BYTES:
        raise ProtocolError(Code.FRAME_SIZE_ERROR, "a priority of another size")
    if number(payload[: _NUMBER.size]) & LAST_STREAM == stream:
        raise ProtocolError(Code.PROTOCOL_ERROR, "a stream that depends on itself")


def window_update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, _NUMBER.pack(more))


def reset(stream: int, code: Code) -> bytes:
    return frame(RST_STREAM, 0, stream, _NUMBER.pack(code))


def goaway(last_stream: int, code: Code, reason: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, _TWO_NUMBERS.pack(last_stream, code) + reason.encode())


def number(payload: bytes) -> int:
    """The one number of a frame that holds nothing else. Raises ProtocolError."""
    if len(payload) != _NUMBER.size:
        raise ProtocolError(Code.FRAME_SIZE_ERROR, "a number of another size")
    value: int = _NUMBER.unpack(payload)[0]
    return value


def header_frames(stream: int, block: bytes, *, ends: bool, most: int) -> bytes:
    """A header block, in as many frames of at most `most` bytes as it takes."""
    parts = [block[place : place + most] for place in range(0, len(block), most)]
    frames = []
    for at, part in enumerate(parts):
        flags = END_HEADERS if at == len(parts) - 1 else 0
        if at == 0:
            frames.append(frame(HEADERS, flags | (END_STREAM if ends else 0), stream, part))
        else:
            frames.append(frame(CONTINUATION, flags, stream, part))
    return b"".join(frames)


def read_goaway(payload: bytes) -> tuple[int, int]:
    """The last stream that the peer works on, and its code. Raises ProtocolError."""
    if len(payload) < _TWO_NUMBERS.size:
        raise ProtocolError(Code.FRAME_SIZE_ERROR, "a GOAWAY of another size")
    last, code = _TWO_NUMBERS.unpack_from(payload)
    return last & 0x7FFFFFFF, code


def goaway_reason(payload: bytes) -> str:
    """Why a peer goes away, for people and logs: its code, and the beginning of what it says,
    with "?" for each byte that ASCII does not print. Raises ProtocolError.
    """
    _, code = read_goaway(payload)
    name = Code(code).name if code in Code._value2member_map_ else f"code {code}"
    start = _TWO_NUMBERS.size
    said = payload[start : start + _MOST_REASON].decode("latin-1")
    printed = "".join(each if " " <= each <= "~" else "?" for each in said)
    return f"{name}, {printed}" if printed else name


def table_updates(block: bytes) -> int:
    """How many changes of the dynamic table's size a header block begins with (RFC 7541, 6.3)."""
    place = count = 0
    while place < len(block) and block[place] & 0xE0 == 0x20:
        count += 1
        goes_on = block[place] & 0x1F == 0x1F
        place += 1
        while goes_on and place < len(block):
            goes_on = bool(block[place] & 0x80)
            place += 1
    return count


def unpadded(payload: bytes) -> bytes:
    """What a PADDED frame holds. Raises ProtocolError."""
    if not payload or payload[0] >= len(payload):
        raise ProtocolError(Code.PROTOCOL_ERROR, "more padding than there is")
    return payload[1 : len(payload) - payload[0]]
