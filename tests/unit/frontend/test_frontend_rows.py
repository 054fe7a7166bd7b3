"""Which rows of a stream are shown as they come, and which wait for what else their message has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import pytest
from fake_router import Reply
from harness import Start, events
from test_frontend_dispatch import Bench

from tandem.errors import EngineError, InternalError
from tandem.upstream.answer import Row
from tandem.upstream.request_state import RequestState
from tandem.v1 import common_pb2
from tandem_frontend.http.connection import Connection


class Stream:
    """The handler of a streamed answer, with a client that reads as the test says."""

    def __init__(self, state: RequestState) -> None:
        self.state = state
        self.reads = True
        self.fails = False
        self.told: list[str | list[str]] = []
        """The texts of rows that were shown alone, and those of each take."""
        state.show, state.pump = self._show, self._pump

    def _show(self, row: Row, now: float) -> bool:
        if self.fails:
            raise ZeroDivisionError
        if self.reads:
            self.told.append(row[1])
        return self.reads

    def _pump(self) -> bool:
        if self.reads:
            self.take()
        return self.reads

    def take(self) -> None:
        self.told.append([row[1] for row in self.state.take()[0]])


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    with ExitStack() as stack:
        yield Bench(stack)


def says(bench: Bench, stream: Any, *rows: tuple[Stream, int, str], end_of: Any = None) -> None:
    """One message with these rows: of whom, how many came before, the text."""
    columns: dict[str, Any] = {
        "sequence": [each.state.base for each, _, _ in rows],
        "offset": [offset for _, offset, _ in rows],
        "token_count": [1] * len(rows),
        "text": [text for _, _, text in rows],
    }
    if end_of is not None:
        end = common_pb2.Finish(sequence=end_of.state.base, rows=1, completion_tokens=1)
        columns["finish"] = [end]
    bench.rows(stream, **columns)


async def test_a_row_that_its_message_has_no_more_of_is_shown_at_once(bench: Bench) -> None:
    router = bench.router()
    one, two = (Stream(bench.ask()) for _ in range(2))
    says(bench, router, (one, 0, "a"))
    says(bench, router, (one, 1, "b"), (two, 0, "x"))
    assert (one.told, two.told) == (["a", "b"], ["x"])


async def test_rows_of_one_message_are_taken_together(bench: Bench) -> None:
    router = bench.router()
    one, two = (Stream(bench.ask()) for _ in range(2))
    says(bench, router, (one, 0, "a"), (two, 0, "x"), (one, 1, "b"))
    assert (one.told, two.told) == ([["a", "b"]], [["x"]])


async def test_a_last_row_is_taken_together_with_the_end(bench: Bench) -> None:
    router = bench.router()
    one, two = (Stream(bench.ask()) for _ in range(2))
    says(bench, router, (one, 0, "a"), (two, 0, "x"), end_of=one)
    assert (one.told, two.told) == ([], ["x"])
    assert one.state.is_over
    one.take()
    assert one.told == [["a"]]


async def test_no_row_overtakes_those_that_wait(bench: Bench) -> None:
    router = bench.router()
    one = Stream(bench.ask())
    one.reads = False
    says(bench, router, (one, 0, "a"))
    assert one.state.backlog
    one.reads = True
    says(bench, router, (one, 1, "b"))
    assert one.told == [["a", "b"]]


async def test_a_row_that_cannot_be_shown_ends_its_request_alone(bench: Bench) -> None:
    router = bench.router()
    one, two = (Stream(bench.ask()) for _ in range(2))
    one.fails = True
    says(bench, router, (one, 0, "a"), (two, 0, "x"))
    assert isinstance(one.state.error, InternalError)
    assert two.state.error is None
    assert two.told == ["x"]


async def test_a_first_row_with_a_failure_is_not_shown(start: Start) -> None:
    async def script(reply: Reply) -> None:
        reply.text("a")
        reply.end(error=EngineError("it broke").to_proto())

    frontend = await start(script)
    answer = await frontend.complete(stream=True)
    assert answer.status_code == EngineError.http_status


async def test_what_a_step_brought_for_all_outputs_leaves_together(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(reply: Reply) -> None:
        for _ in range(3):
            for output in range(2):
                reply.text("a", output=output)
            await reply.flush()
        for output in range(2):
            reply.finish(output=output)

    written: list[bytes] = []
    original = Connection.write_chunk

    def write_chunk(client: Connection, body: bytes) -> None:
        written.append(body)
        original(client, body)

    monkeypatch.setattr(Connection, "write_chunk", write_chunk)
    frontend = await start(script)
    answer = await frontend.complete(stream=True, n=2)
    assert [body.count(b"data: ") for body in written] == [2, 2]
    assert len(events(answer.text)) == 8
