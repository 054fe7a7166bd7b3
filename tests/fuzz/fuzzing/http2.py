"""HTTP/2's frames, spoilt by what they are: kinds, flags, streams, lengths, headers, messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import hpack

from tandem_loop_grpc import frames
from tandem_loop_grpc.frames import HEAD, HEAD_BYTES, MESSAGE_HEAD, frame

from .values import spoil_bytes

Frame = tuple[int, int, int, bytes]
"""Kind, flags, stream, payload."""
STREAMS = (0, 1, 2, 3, 5, 7, 9, 199, 201, 2**31 - 1)
NUMBERS = (0, 1, 2, 4, 255, 4096, 16_383, 16_384, 65_535, 65_536, 2**24, 2**31 - 1, 2**31)
_SETTINGS = (1, 2, 3, 4, 5, 6, 8, 0x99)
_MOST_FRAMES = 400
_ODD_HEADERS = (
    (b":path", b"/fuzz.Echo/One"), (b":path", b""), (b":method", b"GET"), (b":scheme", b"http"),
    (b":status", b"200"), (b":status", b"9" * 5000), (b":unknown", b"x"), (b":authority", b"a@b"),
    (b"grpc-status", b"0"), (b"grpc-status", b"9" * 5000), (b"grpc-status", b"-1"),
    (b"grpc-status", b"\xd9\xa3"), (b"grpc-message", b"%"), (b"grpc-message", b"%e2%82"),
    (b"grpc-timeout", b"1n"), (b"grpc-timeout", b"99999999H"), (b"grpc-timeout", b"1" * 5000),
    (b"grpc-encoding", b"gzip"), (b"content-length", b"5"), (b"content-length", b"9" * 5000),
    (b"te", b"gzip"), (b"connection", b"close"), (b"transfer-encoding", b"chunked"),
    (b"UPPER", b"x"), (b"", b"x"), (b"x", b"\0\r\n"), (b"x-bin", b"!!!"), (b"x-bin", b"AAAA,BB"),
    (b"content-type", b"text/html"), (b"content-type", b"application/grpc+json"),
    (b"x", b"y" * 7000), (b"\xff", b"\xff"), (b"cookie", b"a=b"), (b"expect", b"100-continue"),
)  # fmt: skip


def split(data: bytes) -> list[Frame]:
    """The frames of a connection; what is left at the end is the last one's, whatever its length
    says.
    """
    found = []
    place = 0
    while place + HEAD_BYTES <= len(data):
        upper, lower, kind, flags, stream = HEAD.unpack_from(data, place)
        start = place + HEAD_BYTES
        place = start + (upper << 8 | lower)
        found.append((kind, flags, stream, data[start:place]))
    return found


def join(parts: Sequence[Frame]) -> bytes:
    return b"".join(frame(*each) for each in parts)


def spoil(data: bytes, random: Random) -> bytes:
    """One change, in one of ten to plain bytes."""
    parts = split(data)
    if not parts or not random.randrange(10):
        return spoil_bytes(data, random)
    at = random.randrange(len(parts))
    kind, flags, stream, payload = parts[at]
    match random.randrange(12):
        case 0:
            parts[at] = random.choice((random.randrange(12), kind)), flags, stream, payload
        case 1:
            parts[at] = kind, flags ^ 1 << random.randrange(8), stream, payload
        case 2:
            parts[at] = kind, flags, random.choice(STREAMS), payload
        case 3:
            del parts[at]
        case 4:
            parts[at:at] = [parts[at]] * random.choice((1, 1, 2, 20, 300))
        case 5:
            other = random.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
        case 6:
            parts.insert(at, _made(random))
        case 7:
            return _lying(parts, at, random)
        case _:
            parts[at] = kind, flags, stream, _payload(kind, payload, random)
    return join(parts[:_MOST_FRAMES])


def _lying(parts: Sequence[Frame], at: int, random: Random) -> bytes:
    """A frame whose length is not its payload's."""
    kind, flags, stream, payload = parts[at]
    size = random.choice((0, 1, len(payload) + 1, 16_384, 16_385, 2**24 - 1, len(payload) // 2))
    head = HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream)
    return join(parts[:at]) + head + payload + join(parts[at + 1 :])


def _payload(kind: int, payload: bytes, random: Random) -> bytes:
    if random.randrange(2):
        return spoil_bytes(payload, random)[: 2**14]
    return _PAYLOADS.get(kind, _bytes)(random)


def _made(random: Random) -> Frame:
    kind = random.randrange(10)
    flags = random.choice((0, 0, 1, 4, 5, 8, 0x20, random.randrange(256)))
    return kind, flags, random.choice(STREAMS), _PAYLOADS.get(kind, _bytes)(random)


def _bytes(random: Random) -> bytes:
    return random.randbytes(random.choice((0, 1, 4, 5, 8, 100)))


def _settings(random: Random) -> bytes:
    count = random.choice((0, 1, 2, 2, 2730))
    pairs = [(random.choice(_SETTINGS), random.choice(NUMBERS)) for _ in range(min(count, 4))]
    entries = [name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in pairs]
    return b"".join(entries) * (1 if count < 5 else count // 4)


def _number(random: Random) -> bytes:
    return random.choice(NUMBERS).to_bytes(4, "big")


def _two_numbers(random: Random) -> bytes:
    return _number(random) + _number(random) + random.choice((b"", b"why"))


def _headers(random: Random) -> bytes:
    """A block: whole calls or answers with odd fields, table sizes, indices, and noise before."""
    encoder = hpack.Encoder()
    fields = list(random.choice((CALL, ANSWER, TRAILERS, ())))
    for _ in range(random.choice((0, 1, 1, 2, 40))):
        fields.insert(random.randrange(len(fields) + 1), random.choice(_ODD_HEADERS))
    block = encoder.encode(fields, huffman=bool(random.randrange(2)))
    if random.randrange(4):
        return block[: 2**14]
    before = random.choice((b"", b"\x20", b"\x3f\xe1\x1f", b"\x20\x3f\xe1\x1f\x20"))
    after = random.choice((b"", b"\xbe" * random.choice((1, 50, 3000)), b"\xff\xff\xff\x7f"))
    return (before + block + after)[: 2**14]


def _messages(random: Random) -> bytes:
    """gRPC messages in DATA: whole, cut, huge by their head, compressed, or thousands of none."""
    whole = message(b"x" * random.choice((0, 1, 100, 5000)))
    match random.randrange(5):
        case 0:
            return whole
        case 1:
            return MESSAGE_HEAD.pack(0, random.choice((2**20, 2**31, 2**32 - 1))) + b"part"
        case 2:
            return MESSAGE_HEAD.pack(random.choice((1, 2, 255)), 3) + b"abc"
        case 3:
            return MESSAGE_HEAD.pack(0, 0) * random.choice((2, 60, 3276))
    return whole[: random.randrange(len(whole) + 1)]


def message(value: bytes) -> bytes:
    """A gRPC message that holds BytesValue."""
    size = len(value)
    varint = bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])
    body = b"\x0a" + varint + value if value else b""
    return MESSAGE_HEAD.pack(0, len(body)) + body


CALL = (
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/fuzz.Echo/Talk"),
    (b":authority", b"router.tandem"), (b"te", b"trailers"),
    (b"content-type", b"application/grpc"), (b"grpc-timeout", b"20S"),
)  # fmt: skip
ANSWER = ((b":status", b"200"), (b"content-type", b"application/grpc"))
TRAILERS = ((b"grpc-status", b"0"), (b"grpc-message", b"fine"))
_PAYLOADS: dict[int, Callable[[Random], bytes]] = {
    frames.DATA: _messages,
    frames.HEADERS: _headers,
    frames.RST_STREAM: _number,
    frames.SETTINGS: _settings,
    frames.PING: lambda random: bytes(random.choice((8, 8, 0, 7, 9))),
    frames.GOAWAY: _two_numbers,
    frames.WINDOW_UPDATE: _number,
    frames.CONTINUATION: _headers,
    frames.PRIORITY: lambda random: bytes(random.choice((5, 5, 4))),
}
