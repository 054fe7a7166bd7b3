"""Calls of every kind, between ours and gRPC's own core and grpc-go, both ways: what one end says
the other hears, and an end of a call is the same whoever serves and whoever calls.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from echo_service import KINDS, MOST_BYTES, Echo, Stub, open_channel, serving
from go_end import GO
from one_case import one_case

from tandem_loop_grpc.stream import WINDOW

PATIENCE = 60.0
PAIRS = [pair for pair in itertools.product((*KINDS, "go"), repeat=2) if "ours" in pair]
pytestmark = pytest.mark.parametrize(
    ("client", "server"),
    [pytest.param(*pair, id="-".join(pair), marks=GO if "go" in pair else ()) for pair in PAIRS],
)
Code = grpc.StatusCode


@pytest.fixture
async def echo() -> Echo:
    return Echo()


@pytest.fixture
async def stub(client: str, server: str, echo: Echo) -> AsyncIterator[Stub]:
    async with (
        serving(server, echo) as port,
        open_channel(client, port) as channel,
    ):
        yield Stub(channel)


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


@pytest.mark.promise("S5-445")
@one_case("size", [0, 1, *range(16_370, 16_385), 70_000, WINDOW + 1, MOST_BYTES - 9])
async def test_a_message_of_any_size_arrives(stub: Stub, size: int) -> None:
    message = bytes(itertools.islice(itertools.cycle(range(251)), size))
    assert await stub.one(message, timeout=PATIENCE) == message


@pytest.mark.promise("S5-445")
async def test_messages_keep_their_order_both_ways(stub: Stub) -> None:
    sent = [b"%d" % number * (number % 7) for number in range(2_000)]

    async def requests() -> AsyncIterator[bytes]:
        for message in sent:
            yield message

    assert [message async for message in stub.talk(requests())] == sent


@pytest.mark.promise("S5-445")
async def test_large_messages_of_several_calls_share_a_connection(stub: Stub) -> None:
    """Together they are more than any window."""
    calls = [stub.talk() for _ in range(5)]

    async def converse(call: Any, letter: bytes) -> None:
        for _ in range(3):
            message = letter * 3_000_000
            await call.write(message)
            assert await call.read() == message
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF

    await asyncio.gather(*(converse(call, b"%d" % n) for n, call in enumerate(calls)))


@pytest.mark.promise("S5-445")
async def test_one_request_is_answered_by_many(stub: Stub) -> None:
    assert [message async for message in stub.many(b"300")] == [b"%d" % n for n in range(300)]


@pytest.mark.promise("S5-445")
async def test_a_call_that_is_written_to_and_read(stub: Stub) -> None:
    call = stub.talk()
    for number in range(5):
        await call.write(b"%d" % number)
        assert await call.read() == b"%d" % number
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.read() is grpc.aio.EOF


@pytest.mark.promise("S5-445")
async def test_metadata_goes_both_ways(stub: Stub) -> None:
    said = (("word", "plain"), ("raw-bin", b"\x00\xfe"))
    answer = await stub.one(b"metadata", metadata=said, timeout=PATIENCE)
    assert answer == rb"plain b'\x00\xfe'"
    error = await refused(stub.one(b"abort", timeout=PATIENCE))
    assert error.code() is Code.FAILED_PRECONDITION
    assert error.details() == "100 % no: \u00e9\n" + "x" * 100
    trailing = dict(error.trailing_metadata())
    assert (trailing["why"], trailing["raw-bin"]) == ("asked", b"\x00\xff")


@pytest.mark.promise("S5-445")
async def test_a_stream_is_aborted_after_what_was_written(stub: Stub) -> None:
    call = stub.talk()
    await call.write(b"first")
    await call.write(b"abort")
    assert await call.read() == b"first"
    error = await refused(call.read())
    assert (error.code(), error.details()) == (Code.ABORTED, "as was asked")


@pytest.mark.promise("S5-445")
async def test_what_is_not_served_is_said_so(stub: Stub) -> None:
    assert (await refused(stub.none(b"", timeout=PATIENCE))).code() is Code.UNIMPLEMENTED


@pytest.mark.promise("S5-445")
async def test_a_servicers_fault_costs_its_call(stub: Stub) -> None:
    assert (await refused(stub.one(b"raise", timeout=PATIENCE))).code() is Code.UNKNOWN
    assert await stub.one(b"after", timeout=PATIENCE) == b"after"


@pytest.mark.promise("S5-445")
async def test_a_deadline_ends_a_call_on_both_sides(stub: Stub, echo: Echo) -> None:
    error = await refused(stub.one(b"slow", timeout=0.2))
    assert error.code() is Code.DEADLINE_EXCEEDED
    await asyncio.wait_for(echo.ended.wait(), PATIENCE)


@pytest.mark.promise("S5-445")
async def test_a_cancelled_call_ends_its_handler(stub: Stub, echo: Echo) -> None:
    call = stub.talk()
    await call.write(b"first")
    assert await call.read() == b"first"
    assert call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.read()
    await asyncio.wait_for(echo.ended.wait(), PATIENCE)
    assert await stub.one(b"after", timeout=PATIENCE) == b"after"


@pytest.mark.promise("S5-445")
async def test_whoever_does_not_read_holds_the_writer_up(stub: Stub, echo: Echo) -> None:
    """And nobody else."""
    call = stub.talk()
    await call.write(b"hold")
    written = 0
    try:
        async with asyncio.timeout(1.5):
            while True:
                await call.write(bytes(100_000))
                written += 100_000
    except TimeoutError:
        pass
    assert 0 < written < 30_000_000
    assert await stub.one(b"beside", timeout=PATIENCE) == b"beside"
    call.cancel()


@pytest.mark.promise("S5-445")
async def test_a_reader_that_is_late_gets_all(stub: Stub) -> None:
    call = stub.flood()
    await call.write(b"40 200000")
    await asyncio.sleep(0.5)
    sizes = [len(message) async for message in call]
    assert sizes == [200_000] * 40


@pytest.mark.promise("S5-445")
async def test_too_large_a_request_is_refused_and_the_connection_lives(stub: Stub) -> None:
    error = await refused(stub.one(bytes(MOST_BYTES + 1), timeout=PATIENCE))
    assert error.code() is Code.RESOURCE_EXHAUSTED
    assert await stub.one(b"after", timeout=PATIENCE) == b"after"


@pytest.mark.promise("S5-445")
async def test_many_calls_at_once(stub: Stub) -> None:
    asked = [b"%d" % number for number in range(90)]
    answers = await asyncio.gather(*(stub.one(each, timeout=PATIENCE) for each in asked))
    assert answers == asked


@pytest.mark.promise("S5-445")
async def test_too_large_an_answer_is_refused(client: str, server: str, echo: Echo) -> None:
    async with (
        serving(server, echo) as port,
        open_channel(client, port, most_bytes=10_000) as channel,
    ):
        stub = Stub(channel)
        error = await refused(stub.one(bytes(10_001), timeout=PATIENCE))
        assert error.code() is Code.RESOURCE_EXHAUSTED
        assert await stub.one(bytes(9_000), timeout=PATIENCE) == bytes(9_000)


@pytest.mark.promise("S5-445")
async def test_a_server_that_stops_ends_what_is_open(client: str, server: str, echo: Echo) -> None:
    async with serving(server, echo) as port:
        channel = open_channel(client, port)
        call = Stub(channel).talk()
        await call.write(b"first")
        assert await call.read() == b"first"
    error = await refused(call.read())
    assert error.code() in {Code.UNAVAILABLE, Code.CANCELLED}
    assert (await refused(Stub(channel).one(b"", timeout=PATIENCE))).code() is Code.UNAVAILABLE
    await channel.close()
