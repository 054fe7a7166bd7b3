"""What a router says to a frontend, while clients of every kind wait for their answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from google.protobuf.message import DecodeError

from fuzzing.frontend_bench import WITH_TOKEN_IDS, FrontendBench, bench, fleet, rows
from fuzzing.messages import spoil_message
from fuzzing.requests import post
from fuzzing.target import MODEL, Target
from fuzzing.targets.http import check
from tandem.v1 import common_pb2, router_pb2

_PROMPT = {"model": MODEL, "prompt": "Hi", "max_tokens": 8}
_ASKED = [
    post(path, json.dumps(body).encode())
    for path, body in (
        ("/v1/completions", _PROMPT | {"stream": True, "n": 2, "logprobs": 2}),
        ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", _PROMPT | {"detokenize": False, "stream": True}),
    )
]
"""Their sequences are 1 and 2, 3, and the first of those with token ids."""
_IDS = WITH_TOKEN_IDS + 1


class FramesSubject:
    """Three clients for each input, with the first sequence numbers that there are."""

    def __init__(self, frontend: FrontendBench) -> None:
        self._frontend = frontend

    async def give(self, data: bytes) -> None:
        frontend = self._frontend
        demultiplexer = frontend.demultiplexer
        demultiplexer._next_plain, demultiplexer._next_with_ids = 1, _IDS
        wires = [frontend.connect() for _ in _ASKED]
        for wire, asked in zip(wires, _ASKED, strict=True):
            wire.protocol.data_received(asked)
            await frontend.settle(answering=False)
        try:
            message = router_pb2.RouterMessage.FromString(data)
            demultiplexer.receive(frontend.stream, message)
        except (DecodeError, ValueError):  # as RouterLink: the stream ends
            demultiplexer.ended(frontend.stream, drained=False)
            frontend.connect_router()
        else:
            demultiplexer.receive(frontend.stream, router_pb2.RouterMessage(fleet=fleet()))
        await frontend.settle(answering=False)
        for wire, asked in zip(wires, _ASKED, strict=True):
            cut = not wire.is_closing()
            wire.close()
            self._check(bytes(wire.written), asked, cut=cut)
        await frontend.end()

    def _check(self, written: bytes, asked: bytes, *, cut: bool) -> None:
        """A router may fail requests with any error, so a 5xx is none of the frontend's faults."""
        check(written, asked, cut=cut, fine=range(500, 600))

    async def left_open(self) -> int:
        return self._frontend.open


def _messages() -> Sequence[bytes]:
    logprobs = common_pb2.TokenLogprobs(
        sequence=1, token_id=[5], logprob=[-0.5], top_count=1, top_token_id=[5], top_logprob=[-0.5]
    )
    rich = common_pb2.TokenColumns(
        sequence=[1, 3], offset=[0, 0], token_count=[1, 2], text=["a", "b"], logprobs=[logprobs]
    )
    report = common_pb2.TokenColumns(report=[common_pb2.PhaseReport(sequence=3, worker="w")])
    failed = router_pb2.SequenceEnd(
        sequence=3, error=common_pb2.Error(code="worker_lost", message="m")
    )
    withheld = router_pb2.SequenceEnd(sequence=1, stop_reason="r")
    payloads = [rows(1), rows(3), rows(_IDS), rich, report]
    joined = b"".join(payload.SerializeToString() for payload in (rows(1), rows(2), rows(3)))
    messages = [
        *(router_pb2.RouterMessage(payload=each.SerializeToString()) for each in payloads),
        router_pb2.RouterMessage(payload=joined),
        _of_two_workers(),
        router_pb2.RouterMessage(ends=[failed, withheld]),
        router_pb2.RouterMessage(ends=[router_pb2.SequenceEnd(sequence=1, voucher=b"v")]),
        router_pb2.RouterMessage(payload=joined, ends=[failed], fleet=fleet()),
    ]
    return [message.SerializeToString() for message in messages]


def _of_two_workers() -> router_pb2.RouterMessage:
    payloads = [rows(sequence).SerializeToString() for sequence in (1, 3)]
    return router_pb2.RouterMessage(
        run_sequence=[1, 3],
        run_worker=[7, 8],
        payload=b"".join(payloads),
        part_worker=[7, 8],
        part_bytes=list(map(len, payloads)),
        lost=[9],
    )


@contextmanager
def _subject() -> Iterator[FramesSubject]:
    with bench() as (_, frontend):
        yield FramesSubject(frontend)


FRAMES = Target(
    name="frontend-frames",
    goal=100_000,
    corpus=_messages,
    spoil=partial(spoil_message, router_pb2.RouterMessage),
    subject=_subject,
)
