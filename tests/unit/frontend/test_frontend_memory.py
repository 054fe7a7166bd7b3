"""What a frontend holds for its clients: collected answers, backlogs and full sockets, under one
budget, and where a client that does not read is noticed.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from fake_router import Reply
from harness import (
    COMPLETION,
    PATIENCE,
    Harness,
    Start,
    error_of,
    request_bytes,
    say_hello,
)
from test_frontend_dispatch import Bench
from upstream_parts import FakeClient, submission

from tandem.byte_budget import ByteBudget
from tandem.errors import QueueFullError, SlowClientError
from tandem.upstream.request_state import RequestState
from tandem.upstream.submission import SubmittedPrompt
from tandem.v1 import common_pb2
from tandem_frontend.http import connection

HELD = "tandem_frontend_held_bytes"
RECEIVE_BYTES = 4096
"""Of a client's own kernel, which Linux doubles."""
ROW = "x" * 1000
ROW_BYTES = 1250
"""As an event of a stream, at most."""


@pytest.fixture
def unread() -> Iterator[list[socket.socket]]:
    """Sockets of clients that never read."""
    opened: list[socket.socket] = []
    yield opened
    for client in opened:
        client.close()


async def never_read(
    frontend: Harness, opened: list[socket.socket], *, stream: bool, prompt: int = 1
) -> None:
    """A request of a client that reads nothing."""
    client = socket.socket()
    opened.append(client)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", frontend.port))
    body = json.dumps({**COMPLETION, "prompt": [prompt], "stream": stream}).encode()
    await loop.sock_sendall(client, request_bytes(body, path="/v1/completions"))


@pytest.mark.promise("S6-188")
async def test_a_client_that_never_reads_is_given_up_at_the_bound_of_the_manual(
    start: Start, unread: list[socket.socket]
) -> None:
    rows = 0

    async def script(reply: Reply) -> None:
        nonlocal rows
        while not reply.cancelled.is_set():
            for _ in range(8):
                reply.text(ROW)
            rows += 8
            await reply.flush()
            # A few at a time: what is on its way between router and frontend does not count.
            await asyncio.sleep(0.002)  # or the first look mostly comes too early
            await frontend.until_metric("tandem_frontend_completion_tokens_total", rows)

    backlog = 40_000
    frontend = await start(script, max_backlog_bytes=backlog)
    await never_read(frontend, unread, stream=True)
    await frontend.until_metric("tandem_frontend_slow_clients_total", 1)
    await frontend.router.until(lambda router: len(router.cancels) == 1)
    beside = connection._BUFFER_BYTES + connection.KERNEL_BYTES + 2 * RECEIVE_BYTES
    assert backlog < rows * ROW_BYTES < backlog + beside + 10 * ROW_BYTES


@pytest.mark.promise("S6-188")
async def test_an_answer_of_ordinary_size_that_nobody_reads_is_held_and_cut_off_in_its_time(
    start: Start, unread: list[socket.socket]
) -> None:
    async def script(reply: Reply) -> None:
        for _ in range(200):
            reply.text(ROW)
        reply.finish()

    frontend = await start(script, client_stall_seconds=1.0)
    await frontend.until_metric("tandem_frontend_connections", 1)
    await never_read(frontend, unread, stream=False)
    await frontend.router.until(lambda router: len(router.replies) == 1)
    held = 0.0
    async with asyncio.timeout(PATIENCE):
        while held < 200_000 - connection.KERNEL_BYTES:  # past the request's own prompt
            held = await frontend.metric(HELD)
    assert held < 200_000 + 2 * connection.KERNEL_BYTES
    await frontend.until_metric(HELD, 0)
    await frontend.until_metric("tandem_frontend_connections", 1)


@pytest.mark.promise("S6-187", "S6-189")
async def test_of_collected_answers_that_find_no_room_the_largest_ends_with_429(
    start: Start,
) -> None:
    large_ended = asyncio.Event()

    async def script(reply: Reply) -> None:
        if reply.task.prompt_token_ids[0] == 1:
            while not reply.cancelled.is_set():
                reply.text(ROW)
                await reply.flush()
            large_ended.set()
            return
        for _ in range(50):
            reply.text("small")
            await reply.flush()
        await large_ended.wait()
        reply.finish()

    frontend = await start(script, max_held_bytes=200_000, max_body_bytes=10_000)
    small = asyncio.create_task(frontend.complete(prompt=[2]))
    await frontend.until_metric("tandem_frontend_completion_tokens_total", 50)
    assert error_of(await frontend.complete(prompt=[1])) == (429, "queue_full", None)
    answer = await asyncio.wait_for(small, PATIENCE)
    assert answer.json()["choices"][0]["text"] == "small" * 50
    await frontend.until_metric(HELD, 0)


@pytest.mark.promise("S5-250")
@pytest.mark.parametrize("stream", [True, False])
async def test_a_prompt_is_held_until_it_has_output(start: Start, stream: bool) -> None:
    steps = asyncio.Queue[None]()

    async def script(reply: Reply) -> None:
        await steps.get()
        reply.text("first")
        await reply.flush()
        await steps.get()
        reply.finish()

    frontend = await start(script)
    prompt = [2_000] * 4_000
    asking = asyncio.create_task(frontend.complete(prompt=prompt, stream=stream))
    await frontend.router.until(lambda router: len(router.replies) == 1)
    assert await frontend.metric(HELD) >= len(prompt)
    steps.put_nowait(None)
    await frontend.until_metric("tandem_frontend_completion_tokens_total", 1)
    assert await frontend.metric(HELD) < 1_000
    steps.put_nowait(None)
    assert (await asking).status_code == 200
    await frontend.until_metric(HELD, 0)


@pytest.mark.promise("S6-188", "S6-189")
async def test_of_clients_that_do_not_read_those_that_hold_the_most_make_room(
    start: Start, unread: list[socket.socket]
) -> None:
    answer = asyncio.Event()

    async def script(reply: Reply) -> None:
        size = reply.task.prompt_token_ids[0]
        if not size:
            await say_hello(reply)
            return
        await answer.wait()
        for _ in range(100 * size):
            reply.text(ROW)
        reply.finish()

    limit = 1_000_000
    frontend = await start(script, max_held_bytes=limit, max_body_bytes=10_000)
    await frontend.until_metric("tandem_frontend_connections", 1)
    for size in (1, 2, 3, 4, 3, 2, 1):  # of 100 kB each, together far more than fits
        await never_read(frontend, unread, stream=False, prompt=size)
    await frontend.router.until(lambda router: len(router.replies) == 7)
    answer.set()
    await frontend.until_metric("tandem_frontend_open_requests", 0)
    held = await frontend.metric(HELD)
    assert limit // 3 < held <= limit
    assert 2 < await frontend.metric("tandem_frontend_connections") < 8
    while unread:
        unread.pop().close()
    await frontend.until_metric(HELD, 0)
    assert (await frontend.complete(prompt=[0])).status_code == 200


@pytest.mark.promise("S6-188")
async def test_each_accepted_socket_has_the_small_buffer_and_sends_without_delay(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: set[tuple[int, int]] = set()
    made = connection.Connection.connection_made

    def spy(self: connection.Connection, transport: asyncio.Transport) -> None:
        accepted = transport.get_extra_info("socket")
        size = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        options.add((size, accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
        made(self, transport)

    monkeypatch.setattr(connection.Connection, "connection_made", spy)
    frontend = await start(say_hello)
    assert (await frontend.chat(stream=True)).status_code == 200
    assert options == {(connection.KERNEL_BYTES, 1)}


# --- what comes for requests, without HTTP --------------------------------------------------------


class OneRouter(Bench):
    """A demultiplexer with one router, whose requests have one budget."""

    def __init__(self, stack: ExitStack, limit: int) -> None:
        super().__init__(stack, budget=ByteBudget(limit))
        self.stream = self.router()
        self._rows = Counter[int]()

    def row(self, state: RequestState, text: str, logprobs: int = 0) -> None:
        """The request's next one. `logprobs`: how many alternatives its token has."""
        offset = self._rows[state.base]
        self._rows[state.base] += 1
        entry = common_pb2.TokenLogprobs(
            sequence=state.base,
            token_id=[1],
            logprob=[-1.0],
            top_count=logprobs,
            top_token_id=range(logprobs),
            top_logprob=[-1.0] * logprobs,
        )
        self.rows(
            self.stream,
            sequence=[state.base],
            offset=[offset],
            token_count=[1],
            text=[text],
            logprobs=[entry] if logprobs else [],
        )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


async def test_a_collected_answer_is_counted_some_rows_at_once_and_given_back(
    stack: ExitStack,
) -> None:
    bench = OneRouter(stack, 1_000_000)
    with bench.demultiplexer.submit(submission(model="m", streaming=False), FakeClient()) as state:
        for _ in range(15):
            bench.row(state, "y" * 100)
        assert bench.budget.held == 0
        bench.row(state, "y" * 100)
        assert bench.budget.held == 16 * 100 + 200, "they are one row now"
        assert state.backlog == 0, "no client reads slowly"
        rows, _ = state.take()
        assert rows == [(0, "y" * 1600, [], (), 16)]
        assert bench.budget.held == 0
        for _ in range(16):
            bench.row(state, "y")
        assert bench.budget.held
    assert bench.budget.held == 0


async def test_kept_log_probabilities_count_and_keep_nothing_of_their_message(
    stack: ExitStack,
) -> None:
    bench = OneRouter(stack, 1_000_000)
    plain, rich = bench.ask(streaming=False), bench.ask(streaming=False)
    for _ in range(16):
        bench.row(plain, "y")
    without = bench.budget.held
    for _ in range(16):
        bench.row(rich, "y", logprobs=20)
    assert bench.budget.held - without > without + 16 * 20 * 5
    ((_, text, _, logprobs, _),), _ = rich.take()
    assert text == "y" * 16
    assert [len(each.top_logprob) for each in logprobs] == [20] * 16


async def test_collected_rows_of_several_outputs_are_joined_each_with_its_own(
    stack: ExitStack,
) -> None:
    bench = OneRouter(stack, 1_000_000)
    state = bench.ask(streaming=False, n=2, want_token_ids=True)
    for place in range(8):
        bench.rows(
            bench.stream,
            sequence=[state.base, state.base + 1],
            offset=[place] * 2,
            token_count=[1, 1],
            text=["", ""],
            token_id=[place, 100 + place],
        )
    rows, _ = state.take()
    assert [(choice, ids, tokens) for choice, _, ids, _, tokens in rows] == [
        (0, [*range(8)], 8),
        (1, [*range(100, 108)], 8),
    ]


async def test_what_a_writer_holds_counts_until_the_end_and_is_no_backlog(
    stack: ExitStack,
) -> None:
    bench = OneRouter(stack, 1_000_000)
    state = bench.ask()
    state.pump = lambda: False
    state.hold(5000)
    bench.row(state, "y" * 100)
    assert bench.budget.held > 5100
    assert 100 < state.backlog < 5000
    state.take()
    assert (bench.budget.held, state.backlog) == (5000, 0)
    state.close()
    assert bench.budget.held == 0


async def test_rows_of_a_stream_are_not_joined(stack: ExitStack) -> None:
    bench = OneRouter(stack, 1_000_000)
    state = bench.ask()
    state.pump = lambda: False
    bench.rows(
        bench.stream,
        sequence=[state.base] * 16,
        offset=range(16),
        token_count=[1] * 16,
        text=["y"] * 16,
    )
    assert state.backlog
    assert len(state.take()[0]) == 16


@pytest.mark.promise("S5-250")
async def test_a_prompt_is_let_go_with_its_first_tokens(stack: ExitStack) -> None:
    bench = OneRouter(stack, 1_000_000)
    prompts = [SubmittedPrompt.of([token] * 100, max_tokens=4) for token in (3, 4)]
    sizes = [len(each.task) for each in prompts]
    given_back: list[int] = []
    state = bench.ask(prompts=prompts, n=2)
    state.let_go = given_back.append
    second = state.to_submit(state.firsts[1], seconds=1.0)
    for place, told in ((1, [sizes[0]]), (0, [sizes[0]]), (2, sizes), (3, sizes)):
        bench.rows(
            bench.stream, sequence=[state.base + place], offset=[0], token_count=[1], text=["y"]
        )
        assert given_back == told
        if len(told) == 1:
            assert state.to_submit(state.firsts[1], seconds=1.0) == second, "it may be sent again"
    assert [each.task for each in prompts] == [b"", b""]
    assert state.common_task == b""


@pytest.mark.promise("S6-189")
async def test_output_that_finds_no_room_ends_what_holds_the_most_and_nothing_else(
    stack: ExitStack,
) -> None:
    bench = OneRouter(stack, 12_000)
    slow, gone = bench.ask(), FakeClient()
    slow.pump = lambda: False
    slower = bench.ask(gone)
    slower.pump = lambda: False
    collected = bench.ask(streaming=False)
    for _ in range(2):
        bench.row(slow, "y" * 800)
    for _ in range(4):
        bench.row(slower, "y" * 1800)
    assert bench.budget.held == 2 * 1000 + 4 * 2000
    for _ in range(16):
        bench.row(collected, "y" * 188)  # 3,208 bytes, that are not there
    assert isinstance(slower.error, SlowClientError)
    assert gone.aborted
    assert (slow.error, collected.error) == (None, None)
    assert bench.budget.held == 2 * 1000 + 16 * 188 + 200
    for _ in range(16):
        bench.row(collected, "y" * 500)
    assert isinstance(collected.error, QueueFullError)
    assert slow.error is None
    assert bench.budget.held == 2 * 1000


async def test_what_of_a_stream_s_end_waits_for_a_full_socket_counts(stack: ExitStack) -> None:
    bench = OneRouter(stack, 12_000)
    client = FakeClient()
    state = bench.ask(client)
    state.keep(9_000)
    assert bench.budget.held == 9_000
    other = bench.ask()
    other.keep(4_000)
    assert client.aborted
    assert bench.budget.held == 4_000
