"""What stalls.py says over gRPC, as whoever reaches a component's port."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from tandem.cli.stack import Stack
from tandem.ids import new_trace_id
from tandem.v1 import common_pb2, router_pb2, router_pb2_grpc, worker_pb2, worker_pb2_grpc

Send = Callable[[Stack], str]
"""Returns how it was answered."""
_LARGEST = 64 * 2**20
_GRPC = [("grpc.max_send_message_length", _LARGEST), ("grpc.max_receive_message_length", _LARGEST)]


def task(stack: Stack, **fields: Any) -> common_pb2.Task:
    given = {"prompt_token_ids": [5] * 8, **fields}
    made = common_pb2.Task(trace_id=new_trace_id(), model=stack.model, want_text=True, **given)
    made.sampling.MergeFrom(
        common_pb2.SamplingParams(max_tokens=16, top_p=1, top_k=-1, repetition_penalty=1)
    )
    return made


def ended(messages: Iterator[Any]) -> str:
    """Read a call to its end."""
    try:
        count = sum(1 for _ in messages)
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"[:60]
    return f"OK, {count} messages"


def generate(n: int = 1, **fields: Callable[[], Any]) -> Send:
    """Send the router's plain call, with these fields of its task."""

    def send(stack: Stack) -> str:
        request = router_pb2.GenerateRequest(
            task=task(stack, **{name: make() for name, make in fields.items()}), n=n
        )
        with grpc.insecure_channel(stack.components["router"].address, _GRPC) as channel:
            return ended(router_pb2_grpc.RouterStub(channel).Generate(request, timeout=120))

    return send


def frontend_says(say: Callable[[Stack], Iterator[router_pb2.FrontendMessage]]) -> Send:
    """Messages of a frontend to the router, on a stream that ends some seconds later."""

    def messages(stack: Stack) -> Iterator[router_pb2.FrontendMessage]:
        yield from say(stack)
        time.sleep(3)

    def send(stack: Stack) -> str:
        with grpc.insecure_channel(stack.components["router"].address, _GRPC) as channel:
            return ended(router_pb2_grpc.RouterStub(channel).Connect(messages(stack), timeout=60))

    return send


def router_says(component: str, say: Callable[[Stack], worker_pb2.WorkerCommand]) -> Send:
    """A command of a router to a worker."""

    def commands(stack: Stack) -> Iterator[worker_pb2.WorkerCommand]:
        yield say(stack)
        time.sleep(5)

    def send(stack: Stack) -> str:
        with grpc.insecure_channel(stack.components[component].address, _GRPC) as channel:
            return ended(worker_pb2_grpc.WorkerStub(channel).Connect(commands(stack), timeout=60))

    return send


def _submits(stack: Stack, count: int, n: int) -> router_pb2.FrontendMessage:
    content = task(stack).SerializeToString()
    return router_pb2.FrontendMessage(
        submit=[
            router_pb2.Submit(
                first_sequence=1 + number * n,
                n=n,
                trace_id="0" * 31 + "1",
                model=stack.model,
                prompt_tokens=8,
                max_tokens=16,
                timeout_ms=10_000,
                task=content,
            )
            for number in range(count)
        ]
    )


def _one_submit(stack: Stack) -> Iterator[router_pb2.FrontendMessage]:
    yield _submits(stack, 1, 65_536)


def _many_submits(stack: Stack) -> Iterator[router_pb2.FrontendMessage]:
    yield _submits(stack, 20_000, 1)


def _many_siblings(stack: Stack) -> Iterator[router_pb2.FrontendMessage]:
    yield _submits(stack, 500, 128)


def _cancels(stack: Stack) -> Iterator[router_pb2.FrontendMessage]:
    yield _submits(stack, 1, 1)
    yield router_pb2.FrontendMessage(cancel=range(2, 65_000))


def _starts(stack: Stack, count: int, kept: bytes, own: bytes = b"") -> worker_pb2.WorkerCommand:
    return worker_pb2.WorkerCommand(
        keep=[worker_pb2.KeptTask(number=1, task=kept)],
        start=[
            worker_pb2.StartLeg(
                leg=1 + number,
                destination=1,
                sequence=1 + number,
                output_index=number,
                room=1 + number,
                timeout_ms=5_000,
                kept_task=1,
                task=own,
            )
            for number in range(count)
        ],
    )


def _long_siblings(stack: Stack) -> worker_pb2.WorkerCommand:
    return _starts(stack, 128, task(stack, prompt_token_ids=[5] * 100_000).SerializeToString())


def _many_starts(stack: Stack) -> worker_pb2.WorkerCommand:
    return _starts(stack, 60_000, task(stack).SerializeToString())


def _wide_metadata(stack: Stack) -> worker_pb2.WorkerCommand:
    metadata = {str(number): "" for number in range(600_000)}
    return _starts(stack, 1, task(stack, metadata=metadata).SerializeToString())


def _wide_bias(stack: Stack) -> worker_pb2.WorkerCommand:
    sampling = common_pb2.SamplingParams(logit_bias=dict.fromkeys(range(2_000_000), 1.0))
    return _starts(stack, 1, task(stack, sampling=sampling).SerializeToString())


def _many_numbers(stack: Stack) -> worker_pb2.WorkerCommand:
    return worker_pb2.WorkerCommand(
        release=range(2_000_000), forget=range(2_000_000), start=[], cancel=[]
    )


def _bias() -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(logit_bias=dict.fromkeys(range(2_000_000), 1.0))


CLASSES = {
    "Generate: 4,000,000 ids": generate(prompt_token_ids=lambda: [5] * 4_000_000),
    "Generate: text of 30 MiB": generate(prompt_text=lambda: "word " * (6 * 2**20)),
    "Generate: 2,000,000 biases": generate(sampling=_bias),
    "Submit of 65,536 outputs": frontend_says(_one_submit),
    "20,000 Submits": frontend_says(_many_submits),
    "500 Submits of 128": frontend_says(_many_siblings),
    "65,000 cancels": frontend_says(_cancels),
    "128 Starts of 100,000 ids": router_says("prefill_worker-0", _long_siblings),
    "60,000 Starts": router_says("prefill_worker-0", _many_starts),
    "task of 600,000 metadata": router_says("prefill_worker-0", _wide_metadata),
    "task of 2,000,000 biases": router_says("prefill_worker-0", _wide_bias),
    "4,000,000 leg numbers": router_says("prefill_worker-0", _many_numbers),
}
