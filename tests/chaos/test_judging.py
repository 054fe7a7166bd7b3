"""What the book of a chaos run takes for wrong, for hung and for a fault."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from chaotic import load
from chaotic.book import Asked, Book
from chaotic.memory import Held, grown
from chaotic.trial import Kind, Row, fails, judge
from sim_oracle import Oracle

SEED = 1


async def nothing(fleet: object, rng: random.Random) -> None:
    """No fault."""


KIND = Kind(
    name="any",
    strike=nothing,
    codes=frozenset({"worker_lost"}),
    most_failed=0.5,
    shows=fails,
)


@pytest.fixture
def book() -> Book:
    return Book(Oracle())


@pytest_asyncio.fixture
async def silent() -> AsyncIterator[str]:
    """The URL of a server that answers nothing."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        await over.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"
        over.set()


@pytest.fixture
def asked(book: Book) -> Asked:
    return book.ask([101, 102, 103], 4)


@pytest.mark.promise("S5-231")
def test_an_answer_that_is_whole_and_right_is_not_wrong(book: Book, asked: Asked) -> None:
    book.hear(asked, asked.expected[:1])
    book.hear(asked, asked.expected[1:])
    book.finish(asked, "length")
    assert (book.wrong, book.failed, book.hung) == ([], Counter(), 0)


@pytest.mark.promise("S5-231")
@pytest.mark.parametrize(
    ("heard", "end"),
    [
        (lambda right: right[:3], lambda book, asked: book.finish(asked, "length")),
        (lambda right: right, lambda book, asked: book.finish(asked, "stop")),
        (lambda right: [right[0], right[1] ^ 1], lambda book, asked: book.fail(asked, "lost")),
        (lambda right: [right[0], right[1] ^ 1], lambda book, asked: book.hang(asked)),
        (lambda right: [*right, 101], lambda book, asked: book.fail(asked, "lost")),
    ],
    ids=["lacks the last", "another reason", "wrong, fails", "wrong, hangs", "one too many"],
)
def test_an_answer_that_is_not_whole_and_right_is_wrong(
    book: Book, asked: Asked, heard: Callable[[Any], Any], end: Callable[[Book, Asked], None]
) -> None:
    book.hear(asked, heard(asked.expected))
    end(book, asked)
    assert len(book.wrong) == 1


@pytest.mark.promise("S5-231")
async def test_a_request_that_hangs_is_noticed(
    book: Book, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "DEADLINE_SECONDS", 0.2)
    monkeypatch.setattr(load, "MARGIN_SECONDS", 0.1)
    await load.Load(silent, book, random.Random(SEED)).burst(3)
    assert (book.requests, book.hung) == (3, 3)


def row(**fields: object) -> Row:
    """One that nobody objects to, with changes."""
    good = {"requests": 9, "in_flight": 3, "failed": Counter(worker_lost=2)}
    return Row(**{"name": "any"} | good | fields)  # type: ignore[arg-type]


def test_a_row_that_is_as_its_kind_says_has_no_fault() -> None:
    assert judge(KIND, row()) == []


@pytest.mark.promise("S5-231")
@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"hung": 1}, "1 requests hang"),
        ({"failed": Counter(internal_error=1)}, "internal_error was not to be expected"),
        ({"failed": Counter(worker_lost=5)}, "5 of 9 requests failed"),
        ({"requests": 2}, "no request was answered"),
        ({"in_flight": 0}, "nothing was in flight"),
        ({"failed": Counter()}, "nobody noticed the fault"),
    ],
)
def test_what_should_not_be_is_a_fault(fields: dict[str, object], fault: str) -> None:
    assert fault in judge(KIND, row(**fields))


@pytest.mark.promise("S5-232")
def test_a_client_that_goes_away_is_no_failure_and_what_it_got_is_judged(book: Book) -> None:
    good, bad = (book.ask([101, 102, 103], 4) for _ in range(2))
    book.hear(good, good.expected[:2])
    book.hear(bad, [bad.expected[0], bad.expected[1] ^ 1])
    book.leave(good)
    book.leave(bad)
    assert (book.left, book.failed, len(book.wrong)) == (2, Counter(), 1)


@pytest.mark.promise("S5-232")
async def test_a_client_that_goes_away_does_so_before_its_answer(book: Book, silent: str) -> None:
    await load.Load(silent, book, random.Random(SEED), leave=1.0).burst(3)
    assert (book.requests, book.left, book.hung) == (3, 3, 0)


def held(memory: list[float], files: int = 0, threads: int = 0) -> Held:
    """`files`, `threads`: how many more there are with each sample."""
    count = len(memory)
    return Held(
        memory, [9 + files * n for n in range(count)], [3 + threads * n for n in range(count)]
    )


FLAT = [30.0] * 30
WARM = [30.0 - 20.0 * 0.5**n for n in range(30)]
NOISY = [30.0 + (n % 3) for n in range(30)]
LEAK = [30.0 + 0.1 * n for n in range(30)]


@pytest.mark.promise("S5-232")
@pytest.mark.parametrize("memory", [FLAT, WARM, NOISY], ids=["flat", "warm-up", "noise"])
def test_memory_that_is_flat_after_its_warm_up_is_no_fault(memory: list[float]) -> None:
    assert grown("any", held(memory)) == []


@pytest.mark.promise("S5-232")
@pytest.mark.parametrize(
    ("leaking", "what"),
    [(held(LEAK), "memory"), (held(FLAT, files=1), "files"), (held(FLAT, threads=1), "threads")],
    ids=["memory", "files", "threads"],
)
def test_what_grows_to_the_end_is_a_fault(leaking: Held, what: str) -> None:
    (fault,) = grown("any", leaking)
    assert what in fault
