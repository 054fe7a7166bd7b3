"""When a silent stream is sent a comment, and when its head leaves: in virtual time, without
sockets.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fuzzing.frontend_bench import FrontendBench, Wire
from harness import CHAT, COMPLETION, request_bytes

from tandem.errors import (
    ConfigError,
    DeadlineError,
    HookError,
    InvalidRequestError,
    QueueFullError,
    TandemError,
)
from tandem.upstream.demultiplexer import Demultiplexer
from tandem.v1 import common_pb2, router_pb2
from tandem_frontend import parts
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai import generation
from tandem_frontend.openai.keep_alive import COMMENT, KeepAlive

SECONDS = 15.0
PATHS = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION}


class Client(Wire):
    """Sends one request, and notes when it gets what."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[tuple[float, bytes]] = []

    def write(self, data: Any) -> None:
        now = asyncio.get_running_loop().time()
        self.got.append((round(now - self.began, 3), bytes(data)))

    def ask(self, path: str = "/v1/completions", *, version: bytes = b"1.1", **fields: Any) -> None:
        self.began = asyncio.get_running_loop().time()
        self.version = version
        body = json.dumps({**PATHS[path], "stream": True, **fields}).encode()
        sent = request_bytes(body, path=path).replace(b"HTTP/1.1", b"HTTP/" + version)
        self.protocol.data_received(sent)

    def get_write_buffer_size(self) -> int:
        return 0

    @property
    def comments(self) -> list[float]:
        """When they came."""
        return [at for at, data in self.got if COMMENT in data]

    @property
    def all(self) -> bytes:
        return b"".join(data for _, data in self.got)

    @property
    def events(self) -> bytes:
        """The body, out of its chunks, which HTTP/1.0 does not have, without comments."""
        head, _, rest = self.all.partition(b"\r\n\r\n")
        assert (b"transfer-encoding: chunked" in head) == (self.version == b"1.1")
        if self.version == b"1.0":
            return rest.replace(COMMENT, b"")
        body = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        return body.replace(COMMENT, b"")


class Bench(FrontendBench):
    """A frontend, its router, and one client."""

    def __init__(self, loop: asyncio.AbstractEventLoop, **settings: Any) -> None:
        super().__init__(loop, **{"sse_keep_alive_seconds": SECONDS, **settings})
        self.client = Client()
        self.connect(self.client)
        self._rows = 0

    async def admit(self, after: float = 0.0) -> None:
        """The router takes a request, and has nothing against it."""
        await self.settle(answering=False)
        await asyncio.sleep(after)
        message = self.stream._take()
        assert message is not None
        (self.submit,) = message.submit

    def say(self, text: str, *, end: bool = False) -> None:
        """One more token; `end`: the last one."""
        sequence = self.submit.first_sequence
        columns = common_pb2.TokenColumns(
            sequence=[sequence], offset=[self._rows], token_count=[1], text=[text]
        )
        self._rows += 1
        if end:
            finish = columns.finish.add(sequence=sequence, rows=self._rows)
            finish.reason = common_pb2.FINISH_REASON_STOP
            finish.completion_tokens = self._rows
        self._receive(payload=columns.SerializeToString())

    def fail(self, error: TandemError, *, refused: bool = False) -> None:
        sequence = self.submit.first_sequence
        end = router_pb2.SequenceEnd(sequence=sequence, error=error.to_proto(), refused=refused)
        self._receive(ends=[end])

    def _receive(self, **fields: Any) -> None:
        self.demultiplexer.receive(self.stream, router_pb2.RouterMessage(**fields))


Start = Callable[..., Bench]


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Each is asserted to end up idle."""
    loop = asyncio.get_running_loop()
    timed = functools.partial(Demultiplexer, clock=loop.time)
    monkeypatch.setattr(parts, "Demultiplexer", timed)
    started: list[Bench] = []

    def go(**settings: Any) -> Bench:
        started.append(Bench(loop, **settings))
        started[-1].connect_router()
        return started[-1]

    yield go
    for bench in started:
        bench.client.abort()
        await bench.end()


@pytest.mark.promise("S6-320")
@pytest.mark.parametrize("path", PATHS)
async def test_a_silent_stream_is_sent_a_comment_after_each_time_of_silence(
    start: Start, path: str
) -> None:
    bench = start()
    bench.client.ask(path)
    await bench.admit()
    await asyncio.sleep(50)
    assert bench.client.comments == [15, 30, 45]
    head, comment = bench.client.got[0][1].split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"text/event-stream" in head
    assert comment == b"%x\r\n%b\r\n" % (len(COMMENT), COMMENT)
    bench.say("Hel")
    await asyncio.sleep(20)
    bench.say("lo", end=True)
    await asyncio.sleep(100)
    assert bench.client.comments == [15, 30, 45, 65], "from the last bytes on, and none at the end"
    assert bench.client.all.count(b"HTTP/1.1") == 1
    assert re.findall(rb'"(?:text|content)":"([^"]+)"', bench.client.events) == [b"Hel", b"lo"]
    assert bench.client.events.endswith(b"data: [DONE]\n\n")


@pytest.mark.promise("S6-320")
async def test_events_are_those_of_a_stream_without_comments(start: Start) -> None:
    answers = []
    for seconds in (0, SECONDS):
        bench = start(sse_keep_alive_seconds=seconds)
        bench.client.ask("/v1/chat/completions", n=1, stream_options={"include_usage": True})
        await bench.admit()
        for text in ("Hel", "lo"):
            await asyncio.sleep(40)
            bench.say(text)
        await asyncio.sleep(40)
        bench.say("!", end=True)
        await bench.settle()
        assert bool(bench.client.comments) == bool(seconds)
        answers.append(re.sub(rb'"(id|created)":[^,]+,', b"", bench.client.events))
    assert answers[0] == answers[1]
    assert b'"completion_tokens":3' in answers[0]


@pytest.mark.promise("S6-320")
async def test_a_stream_that_shows_something_gets_no_comment_and_no_timer_for_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    original = KeepAlive._look

    def look(keep_alive: KeepAlive) -> None:
        nonlocal looks
        looks += 1
        original(keep_alive)

    monkeypatch.setattr(KeepAlive, "_look", look)
    bench = start()
    bench.client.ask()
    await bench.admit()
    for _ in range(1000):
        await asyncio.sleep(0.1)
        bench.say("x")
    assert looks <= 100 / (SECONDS - 0.1)
    assert not bench.client.comments
    await asyncio.sleep(16)
    assert bench.client.comments == [115], "a look comes where the silence ends"
    bench.say("", end=True)
    await bench.settle()
    looks = 0
    await asyncio.sleep(100)
    assert not looks, "nothing is left of the timer"


@pytest.mark.promise("S6-320")
async def test_tokens_that_show_nothing_are_silence(start: Start) -> None:
    bench = start()
    bench.client.ask()
    await bench.admit()
    for _ in range(40):
        bench.say("")  # as what a guard withholds
        await asyncio.sleep(1)
    assert bench.client.comments == [15, 30]


@pytest.mark.promise("S6-320")
async def test_an_answer_that_is_not_streamed_has_no_comment(start: Start) -> None:
    bench = start()
    bench.client.ask(stream=False)
    await bench.admit()
    await asyncio.sleep(100)
    assert not bench.client.got
    bench.say("Hello", end=True)
    await bench.settle()
    assert COMMENT not in bench.client.all


def test_a_negative_time_or_one_too_short_is_refused() -> None:
    with pytest.raises(ConfigError, match="sse_keep_alive_seconds must be at least 0"):
        FrontendConfig(model_path="x", sse_keep_alive_seconds=-1)
    with pytest.raises(ConfigError, match=r"sse_keep_alive_seconds must be 0 or at least 0\.01"):
        FrontendConfig(model_path="x", sse_keep_alive_seconds=0.001)


@pytest.mark.promise("S6-321")
async def test_nothing_is_sent_while_no_router_has_the_request(start: Start) -> None:
    bench = start(router_wait_seconds=100)
    bench.demultiplexer.ended(bench.stream, drained=True)
    bench.client.ask()
    await asyncio.sleep(99)
    assert not bench.client.got
    await asyncio.sleep(2)
    assert bench.client.all.startswith(b"HTTP/1.1 503 ")
    assert b'"router_lost"' in bench.client.all


@pytest.mark.promise("S6-321")
async def test_who_waited_for_a_router_is_silent_until_that_has_had_its_time_to_refuse(
    start: Start,
) -> None:
    bench = start(router_wait_seconds=100)
    bench.demultiplexer.ended(bench.stream, drained=True)
    bench.client.ask()
    await asyncio.sleep(40)
    bench.connect_router()
    await bench.admit(after=14)
    bench.fail(QueueFullError("full"), refused=True)  # it waits on, and is sent again
    await bench.admit(after=1)
    await asyncio.sleep(14)
    assert not bench.client.got
    await asyncio.sleep(2)
    assert len(bench.client.comments) == 1
    assert 69 < bench.client.comments[0] < 71


@pytest.mark.promise("S6-321")
async def test_what_a_router_refuses_keeps_its_status(start: Start) -> None:
    bench = start()
    bench.client.ask()
    await bench.admit()
    await asyncio.sleep(14.9)
    bench.fail(QueueFullError("full"), refused=True)
    await asyncio.sleep(60)
    assert bench.client.all.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: 1" in bench.client.all
    assert COMMENT not in bench.client.all


@pytest.mark.promise("S6-321")
async def test_a_comment_that_is_due_in_the_turn_of_a_failure_is_not_sent(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether timers or tasks come first in a turn is the loop's own affair."""
    sends: list[Callable[[], object]] = []
    original = KeepAlive.__init__

    def init(keep_alive: KeepAlive, seconds: float, **named: Any) -> None:
        sends.append(named["send"])
        original(keep_alive, seconds, **named)

    monkeypatch.setattr(generation.KeepAlive, "__init__", init)
    bench = start()
    bench.client.ask()
    await bench.admit()
    bench.fail(DeadlineError("late"))
    sends[0]()
    await bench.settle()
    assert bench.client.all.startswith(b"HTTP/1.1 504 ")


@pytest.mark.promise("S6-321")
async def test_a_failure_behind_a_comment_is_the_streams_last_event(start: Start) -> None:
    bench = start()
    bench.client.ask()
    await bench.admit(after=20)
    bench.fail(HookError("raised"))
    await bench.settle()
    assert bench.client.comments == [15]
    events = bench.client.events
    assert json.loads(events.removeprefix(b"data: "))["error"]["code"] == "hook_failed"
    assert bench.client.all.endswith(b"0\r\n\r\n")


@pytest.mark.promise("S6-321")
async def test_a_failure_behind_a_comment_names_the_field_as_the_client_does(start: Start) -> None:
    bench = start()
    bench.client.ask(guided_regex="a+")
    await bench.admit(after=20)
    bench.fail(InvalidRequestError("it is too dear", param="logits_processors[0]"))
    await bench.settle()
    error = json.loads(bench.client.events.removeprefix(b"data: "))["error"]
    assert error["param"] == "guided_regex"


@pytest.mark.promise("S6-322")
async def test_a_client_that_does_not_read_gets_no_comments_and_is_given_up_in_its_time(
    start: Start,
) -> None:
    bench = start(client_stall_seconds=40)
    bench.client.ask()
    await bench.admit(after=20)
    assert bench.client.comments == [15]
    bench.client.protocol.pause_writing()  # as a transport does that is full
    await asyncio.sleep(39)
    assert not bench.client.is_closing()
    await asyncio.sleep(2)
    assert bench.client.is_closing()
    assert bench.client.comments == [15]
    await bench.end()
    assert bench.stream._take().cancel == [bench.submit.first_sequence]


@pytest.mark.promise("S6-322")
async def test_a_client_that_reads_again_gets_comments_again(start: Start) -> None:
    bench = start(client_stall_seconds=60)
    bench.client.ask()
    await bench.admit(after=20)
    bench.client.protocol.pause_writing()
    await asyncio.sleep(45)
    bench.client.protocol.resume_writing()
    await asyncio.sleep(20)
    assert bench.client.comments == [15, 75]


@pytest.mark.promise("S6-322")
async def test_a_client_that_leaves_while_it_is_kept_alive_cancels_its_request(
    start: Start,
) -> None:
    bench = start()
    bench.client.ask()
    await bench.admit(after=20)
    bench.client.abort()
    await asyncio.sleep(100)
    assert bench.client.comments == [15]
    assert bench.stream._take().cancel == [bench.submit.first_sequence]
    await bench.end()


@pytest.mark.promise("S6-322")
async def test_a_client_of_http_1_0_is_kept_alive_in_the_framing_of_its_stream(
    start: Start,
) -> None:
    answers = []
    for seconds in (0, SECONDS):
        bench = start(sse_keep_alive_seconds=seconds)
        bench.client.ask(version=b"1.0")
        await bench.admit(after=20)
        bench.say("Hello", end=True)
        await bench.settle()
        head = bench.client.all.partition(b"\r\n\r\n")[0]
        names = [line.partition(b":")[0] for line in head.split(b"\r\n")]
        answers.append((names, re.sub(rb'"(id|created)":[^,]+,', b"", bench.client.events)))
        assert bench.client.is_closing()
    assert bench.client.comments == [15]
    assert answers[0] == answers[1]
