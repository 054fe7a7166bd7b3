"""No message keeps a router's event loop: what would take long to parse is refused unparsed, what a
message asks for is done in slices, and what a component says stays within what others read.
"""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError

from tandem.byte_budget import ByteBudget
from tandem.message_limits import MAX_REQUEST_MESSAGE_BYTES, MAX_TASK_BYTES
from tandem.upstream.router_stream import RouterStream
from tandem.v1 import common_pb2, router_pb2, router_pb2_grpc, worker_pb2
from tandem.wire import bounded
from tandem.wire.grpc import Server, open_channel
from tandem_router import ingress
from tandem_router.core import actions
from tandem_router.links import MOST_ITEMS, WorkerLink


def _submits(outputs: list[int]) -> router_pb2.FrontendMessage:
    submits = [router_pb2.Submit(first_sequence=place, n=n) for place, n in enumerate(outputs)]
    return router_pb2.FrontendMessage(submit=submits, cancel=range(300))


@pytest.mark.promise("S6-186")
@pytest.mark.parametrize(
    "outputs", [[], [1], [1024], [1] * 1000, [128] * 9, [2000, 1, 1, 2000, 300]], ids=len
)
def test_submits_and_cancels_are_acted_on_some_at_once_and_in_order(outputs: list[int]) -> None:
    message = _submits(outputs)
    parts = list(ingress.slices(message))
    assert [each for part in parts for each in part] == [*message.submit, *message.cancel]
    for part in parts:
        assert len(part) <= ingress.SLICE_ITEMS
        assert len({type(item) for item in part}) == 1
        wanted = sum(each.n for each in part if isinstance(each, router_pb2.Submit))
        assert len(part) == 1 or wanted <= ingress.SLICE_OUTPUTS


def _task(**given: Any) -> router_pb2.GenerateRequest:
    return router_pb2.GenerateRequest(task=common_pb2.Task(**given))


_BIASES = common_pb2.SamplingParams(logit_bias=dict.fromkeys(range(10_000), 1.0))
TOO_MUCH: dict[str, Any] = {
    "entries of a map": _task(sampling=_BIASES),
    "metadata": _task(metadata={str(number): "" for number in range(10_000)}),
    "ids": _task(prompt_token_ids=[5] * (bounded.MOST_NUMBERS_BYTES + 1)),
    "text": _task(prompt_text="x" * (bounded.MOST_TEXT_BYTES + 1)),
    "submits": router_pb2.FrontendMessage(
        submit=[router_pb2.Submit(n=1, priority=1, model="m" * 24)] * 3_000
    ),
    "cancels": router_pb2.FrontendMessage(cancel=range(600_000)),
    "starts": worker_pb2.WorkerCommand(start=[worker_pb2.StartLeg(leg=1, task=b"12345")] * 10_000),
    "releases": worker_pb2.WorkerCommand(release=range(600_000)),
}


@pytest.mark.promise("S6-186")
@pytest.mark.parametrize("message", TOO_MUCH.values(), ids=list(TOO_MUCH))
def test_what_would_take_long_to_parse_is_not_parsed(message: Any) -> None:
    data, kind = message.SerializeToString(), type(message)
    assert len(data) > bounded.SMALL_BYTES
    with pytest.raises(DecodeError):
        bounded.bounded(kind.FromString, streams=True)(data)
    assert bounded.bounded(kind.FromString, streams=False)(data) is None


@pytest.mark.promise("S6-186")
@pytest.mark.parametrize(
    "message",
    [
        router_pb2.FrontendMessage(submit=[router_pb2.Submit(task=b"x" * MAX_TASK_BYTES)]),
        worker_pb2.WorkerCommand(keep=[worker_pb2.KeptTask(task=b"x" * MAX_TASK_BYTES)]),
        _task(prompt_token_ids=[2000] * 131_072),
        _task(prompt_text="x" * 1_000_000),
    ],
    ids=["submit", "keep", "ids", "text"],
)
def test_a_large_message_of_few_parts_is_parsed(message: Any) -> None:
    data = message.SerializeToString()
    assert len(data) < MAX_REQUEST_MESSAGE_BYTES
    assert bounded.bounded(type(message).FromString, streams=True)(data) == message


def _start(leg: int) -> actions.StartLeg:
    return actions.StartLeg(
        worker="w",
        command=worker_pb2.StartLeg(
            leg=leg,
            destination=2**32 - 1,
            sequence=2**64 - 1,
            output_index=1023,
            room=2**63 - 1,
            kv_peer="host.of.a.worker:12345",
            timeout_ms=2**32 - 1,
            hold_output=True,
            parent_span=2**64 - 1,
        ),
        task=b"",
    )


def _check(message: Any) -> None:
    """As who is told reads it."""
    bounded.check(message.SerializeToString(), message.DESCRIPTOR)


@pytest.mark.promise("S6-186")
async def test_however_much_waits_a_worker_is_told_no_more_than_it_reads() -> None:
    link = WorkerLink()
    for leg in range(3000):
        link.start(_start(leg))
        link.cancel(actions.CancelLeg("w", leg, "the client cancelled"))
    messages = link.outbox.messages()
    started, cancelled = [], []
    while len(cancelled) < 3000:
        command = await anext(messages)
        _check(command)
        assert max(len(command.start), len(command.cancel)) <= MOST_ITEMS
        started += [each.leg for each in command.start]
        cancelled += [each.leg for each in command.cancel]
    assert started == cancelled == list(range(3000))


@pytest.mark.promise("S6-186")
async def test_however_much_waits_a_router_is_told_no_more_than_it_reads() -> None:
    stream = RouterStream(ByteBudget())
    submits = [
        router_pb2.Submit(
            first_sequence=number + 1,
            n=128,
            trace_id="0" * 32,
            model="m" * 40,
            prompt_tokens=100,
            max_tokens=100,
            timeout_ms=2**31,
            priority=-1,
            want_report=True,
            task=b"t" * 50,
            parent_span=1,
            tenant="key",
            weight=3,
        )
        for number in range(5000)
    ]
    stream.submit(submits)
    messages, told = stream.outbox.messages(), []
    while len(told) < 5000:
        message = await anext(messages)
        _check(message)
        told += message.submit
    assert told == submits
    stream.release([submit.first_sequence for submit in submits], cancel=True)
    cancelled: list[int] = []
    while len(cancelled) < 5000:
        cancelled += (await anext(messages)).cancel
    assert cancelled == list(range(1, 5001))


@pytest.mark.promise("S6-186")
async def test_every_call_of_a_server_reads_within_these_bounds() -> None:
    class Told(router_pb2_grpc.RouterServicer):
        async def Generate(self, request: Any, context: Any) -> Any:  # type: ignore[override]
            yield router_pb2.GenerateResponse(text=str(request is None))

        async def Connect(self, request_iterator: Any, context: Any) -> Any:  # type: ignore[override]
            try:
                async for _ in request_iterator:
                    yield router_pb2.RouterMessage()
            except DecodeError:
                yield router_pb2.RouterMessage(draining=True)

    server = Server()
    server.add(
        lambda at: router_pb2_grpc.add_RouterServicer_to_server(Told(), at), "tandem.v1.Router"
    )
    port = await server.start("127.0.0.1:0")
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = router_pb2_grpc.RouterStub(channel)
            for message, refused in ((_task(prompt_text="x"), False), (TOO_MUCH["text"], True)):
                answers = [each.text async for each in stub.Generate(message)]
                assert answers == [str(refused)]

            async def says() -> Any:
                yield router_pb2.FrontendMessage(cancel=[1])
                yield TOO_MUCH["cancels"]

            heard = [each.draining async for each in stub.Connect(says())]
            assert heard == [False, True]
    finally:
        await server.stop(0)
