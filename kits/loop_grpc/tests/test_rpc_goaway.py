"""A server that goes away tells callers why: as much of it as a line of a log may hold."""

from __future__ import annotations

import struct

import grpc
import grpc.aio
import pytest
from raw_peer import talking

from tandem_loop_grpc import frames
from tandem_loop_grpc.frames import Code, frame

CALM = int(Code.ENHANCE_YOUR_CALM)


@pytest.mark.promise("S6-192")
@pytest.mark.parametrize("last", [0, 1], ids=["left-out", "lost"])
@pytest.mark.parametrize(
    ("code", "said", "told"),
    [
        (
            CALM,
            b"there are too many connections",
            "ENHANCE_YOUR_CALM, there are too many connections",
        ),
        (CALM, b"x\r\nERROR forged \x1b[31m\xff", "ENHANCE_YOUR_CALM, x??ERROR forged ?[31m?"),
        (CALM, b"y" * 5_000, "ENHANCE_YOUR_CALM, " + "y" * 200),
        (0, b"", "NO_ERROR"),
        (77, b"", "code 77"),
    ],
    ids=["plain", "forged", "long", "silent", "unknown"],
)
async def test_callers_are_told_why_a_server_goes_away(
    code: int, said: bytes, told: str, last: int
) -> None:
    """Those whose call it leaves out, and those whose call is lost with its connection."""
    async with talking() as (call, peer):
        peer.send(frame(frames.GOAWAY, 0, 0, struct.pack(">II", last, code) + said))
        await peer.writer.drain()
        peer.writer.close()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    details = caught.value.details()
    assert details is not None
    assert details.endswith(f": {told}")
