"""A frontend in this process: no sockets, and a router that answers each request at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tandem.engine import model_files
from tandem.upstream.demultiplexer import Demultiplexer
from tandem.upstream.router_stream import RouterStream
from tandem.v1 import common_pb2, router_pb2, worker_pb2
from tandem_frontend.config import FrontendConfig
from tandem_frontend.http.connection import Connection
from tandem_frontend.openai.prefixes import PromptPrefixes
from tandem_frontend.openai.reading.reader import Reader
from tandem_frontend.openai.reading.wire import Answered, Read, ReaderBoot, ReadingOrder
from tandem_frontend.parts import Parts

from .target import MODEL, MODEL_PATH

WITH_TOKEN_IDS = 1 << 62
PROCESSORS = ("choice", "ebnf", "forced_sequence", "json_schema", "regex")
_PATIENCE_SECONDS = 60.0
_QUIET_TURNS = 4
"""Of the event loop, between what a request waits for and what it does next."""


class Wire(asyncio.Transport):
    """A socket whose peer reads at once."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.protocol: Any = None
        self.written = bytearray()
        self._closing = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class ReadersHere:
    """Reads large bodies in this process, where what they do is seen."""

    def __init__(self, config: FrontendConfig) -> None:
        self._reader = Reader.load(config)

    async def read(
        self,
        order: ReadingOrder,
        boot: ReaderBoot,
        *,
        tenant: str,
        prefixes: PromptPrefixes | None = None,
    ) -> Read | Answered:
        return self._reader.read(order, prefixes)

    def waiting(self, size: str) -> int:
        return 0


class FrontendBench:
    """The app, and the two ends that a test plays: clients and the router."""

    def __init__(self, loop: asyncio.AbstractEventLoop, **settings: Any) -> None:
        """`settings`: of the frontend, beside the bench's own."""
        self._loop = loop
        self.config = FrontendConfig(
            model_path=str(MODEL_PATH),
            allow_reports=True,
            allow_external_scores=True,
            client_logits_processors=("forced_sequence",),
            allowed_hosts=("*",),
            **settings,
        )
        readers: Any = ReadersHere(self.config)
        parts = Parts(self.config, readers=readers)
        self.budget, self.endpoints = parts.budget, parts.endpoints
        self.demultiplexer = parts.demultiplexer
        self._server = parts.server()
        self._server.config.load()
        self.stream = RouterStream(self.budget)

    @property
    def open(self) -> int:
        state = self._server.server_state
        return len(state.connections) + len(state.tasks) + self.demultiplexer.open_requests

    def connect_router(self) -> None:
        """A router with one pair."""
        self.stream = RouterStream(self.budget)
        self.stream.opened = True
        self.demultiplexer.opened(self.stream)
        self.demultiplexer.receive(self.stream, router_pb2.RouterMessage(fleet=fleet()))

    def connect(self, wire: Wire | None = None) -> Wire:
        """A client."""
        wire = wire or Wire()
        wire.protocol = self._server.config.http_protocol_class(
            config=self._server.config,
            server_state=self._server.server_state,
            app_state={},
            _loop=self._loop,
        )
        wire.protocol.connection_made(wire)
        return wire

    async def settle(self, *, answering: bool = True) -> None:
        """Until nothing happens by itself any longer, the router's answers included."""
        quiet = 0
        while quiet < _QUIET_TURNS:
            await asyncio.sleep(0)
            message = self.stream._take() if answering else None
            if message is not None:
                self.answer(message)
            reading = any(each._reading_on for each in self._server.connections)
            quiet = 0 if message or reading else quiet + 1

    async def end(self) -> None:
        """Until nothing is left of clients that have gone."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while self.open:
                await self.settle()

    def answer(self, message: router_pb2.FrontendMessage) -> None:
        """Two rows and an end for each output."""
        for submit in message.submit:
            for sequence in range(submit.first_sequence, submit.first_sequence + submit.n):
                payload = rows(sequence).SerializeToString()
                self.demultiplexer.receive(self.stream, router_pb2.RouterMessage(payload=payload))


def rows(sequence: int) -> common_pb2.TokenColumns:
    """The whole output of a sequence: two rows and its end."""
    ids = [11, 12, 13] if sequence & WITH_TOKEN_IDS else []
    finish = common_pb2.Finish(
        sequence=sequence,
        reason=common_pb2.FINISH_REASON_STOP,
        completion_tokens=3,
        rows=2,
        stop_tokens=[13],
    )
    return common_pb2.TokenColumns(
        sequence=[sequence] * 2,
        offset=[0, 1],
        token_count=[1, 2],
        text=["", ""] if ids else ["Hel", "lo"],
        token_id=ids,
        finish=[finish],
    )


def fleet() -> router_pb2.Fleet:
    limits = worker_pb2.Limits(max_sequences=64, context_length=4096, vocabulary=2048)
    model = router_pb2.ServedModel(
        name=MODEL,
        tokenizer_sha256=model_files.tokenizer_sha256(MODEL_PATH),
        limits=limits,
        ready_pairs=1,
        logits_processors=PROCESSORS,
    )
    return router_pb2.Fleet(models=[model])


@contextmanager
def bench() -> Iterator[tuple[asyncio.AbstractEventLoop, FrontendBench]]:
    loop = asyncio.get_running_loop()
    made = FrontendBench(loop)
    made.connect_router()
    yield loop, made


__all__ = ["Connection", "Demultiplexer", "FrontendBench", "Wire", "bench", "fleet", "rows"]
