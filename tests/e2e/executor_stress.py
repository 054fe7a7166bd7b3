"""Threads, or tasks, that enqueue, await and cancel at random while their router is killed and
started again: each request gets one final response, with its own tokens, and nobody hangs.

    make stress                                             # 200 threads, then 5,000 tasks
    python tests/e2e/executor_stress.py --seconds 10 --threads 50 --tasks 500

Half of them wait for their own requests by id; the other half, on an executor of their own, for
whatever is ready.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from executor_book import MOST_TOKENS, Book

from tandem.cli.stack import Stack
from tandem.testing.sim_stack import sim_stack
from tandem_executor import AsyncExecutor, Executor, ExecutorConfig, Request, SamplingConfig

PLACES = 96
HANG_SECONDS = 90.0
"""Longer than any request may take."""
CONFIG = ExecutorConfig(
    max_open_sequences=PLACES,
    max_unread_tokens=PLACES * MOST_TOKENS,
    request_timeout_seconds=60.0,
    router_wait_seconds=30.0,
    request_stats_max_iterations=10,
)
LARGEST = Request(
    [101, 102, 103, 104],
    max_tokens=MOST_TOKENS,
    sampling_config=SamplingConfig(num_return_sequences=PLACES),
)
"""Takes every place and all credit, so it starts only once nothing else holds any."""
MORE_KILLS = 4
"""Of a router, at most, where the others lost nothing."""
PATIENCE = (0.01, 0.1, 1.0)
TASKS_PATIENCE = (0.1, 1.0, 10.0)
"""Thousands of tasks share one loop with the executor."""


def run_threads(stack: Stack, *, count: int, seconds: float, kills: int, seed: int) -> list[Book]:
    """So many threads on two executors; what came of it."""
    over = threading.Event()
    router = stack.components["router"].address
    with Executor(router, CONFIG) as first, Executor(router, CONFIG) as second:
        own, shared = Book(first, seed, shared=False), Book(second, seed, shared=True)
        running = [
            threading.Thread(
                target=_by_id if n % 2 else _by_any,
                args=(own if n % 2 else shared, count, seed + n, over),
                daemon=True,
            )
            for n in range(count)
        ]
        for thread in running:
            thread.start()
        _kill_router(stack, [own, shared], seconds, kills, over)
        until = time.monotonic() + HANG_SECONDS
        for thread in running:
            thread.join(max(0.0, until - time.monotonic()))
        for book in (own, shared):
            book.faults += ["a thread hangs" for thread in running if thread.is_alive()][:1]
            request_id = book.executor.enqueue_request(LARGEST)
            ended = 0
            while ended < PLACES and (found := book.executor.await_responses(request_id, 30)):
                ended += sum(not each.has_error() for each in found)
            _close(book, ended)
        return [own, shared]


async def run_tasks(
    stack: Stack, *, count: int, seconds: float, kills: int, seed: int
) -> list[Book]:
    """So many tasks on two executors; what came of it."""
    over = threading.Event()
    router = stack.components["router"].address
    async with AsyncExecutor(router, CONFIG) as first, AsyncExecutor(router, CONFIG) as second:
        own, shared = Book(first, seed, shared=False), Book(second, seed, shared=True)
        tasks = [
            asyncio.create_task(
                _task_by_id(own, seed + n, over)
                if n % 2
                else _task_by_any(shared, count, seed + n, over)
            )
            for n in range(count)
        ]
        await asyncio.to_thread(_kill_router, stack, [own, shared], seconds, kills, over)
        _, hanging = await asyncio.wait(tasks, timeout=HANG_SECONDS)
        for task in hanging:
            task.cancel()
        for task in set(tasks) - hanging:
            task.result()
        for book in (own, shared):
            book.faults += ["a task hangs" for _ in hanging][:1]
            request_id = book.executor.enqueue_request(LARGEST)
            ended = 0
            while ended < PLACES and (found := await book.executor.await_responses(request_id, 30)):
                ended += sum(not each.has_error() for each in found)
            _close(book, ended)
        return [own, shared]


def _by_id(book: Book, count: int, seed: int, over: threading.Event) -> None:
    """One request after the other, each awaited by its id."""
    rng = random.Random(seed)
    while not over.is_set():
        request_id, until = book.enqueue(), time.monotonic() + HANG_SECONDS
        while book.is_open(request_id) and time.monotonic() < until:
            if rng.random() < 0.1:
                book.cancel(request_id)
            book.take(book.executor.await_responses(request_id, rng.choice(PATIENCE)))


def _by_any(book: Book, count: int, seed: int, over: threading.Event) -> None:
    """Requests that whoever comes first reads, and cancels."""
    rng = random.Random(seed)
    until = float("inf")
    while not over.is_set() or (book.open and time.monotonic() < until):
        if over.is_set():
            until = min(until, time.monotonic() + HANG_SECONDS)
        elif book.open < count:
            book.enqueue()
        if rng.random() < 0.1:
            book.cancel(book.some_id())
        book.take(book.executor.await_responses(timeout=rng.choice(PATIENCE)))


async def _task_by_id(book: Book, seed: int, over: threading.Event) -> None:
    rng = random.Random(seed)
    while not over.is_set():
        request_id, until = book.enqueue(), time.monotonic() + HANG_SECONDS
        while book.is_open(request_id) and time.monotonic() < until:
            if rng.random() < 0.05:
                book.cancel(request_id)
            patience = rng.choice(TASKS_PATIENCE)
            async with _cancelled_after(patience if rng.random() < 0.5 else None):
                book.take(await book.executor.await_responses(request_id, patience))
        await asyncio.sleep(0)


async def _task_by_any(book: Book, count: int, seed: int, over: threading.Event) -> None:
    rng = random.Random(seed)
    until = float("inf")
    while not over.is_set() or (book.open and time.monotonic() < until):
        if over.is_set():
            until = min(until, time.monotonic() + HANG_SECONDS)
        elif book.open < count:
            book.enqueue()
        if rng.random() < 0.05:
            book.cancel(book.some_id())
        patience = rng.choice(TASKS_PATIENCE)
        async with _cancelled_after(patience if rng.random() < 0.5 else None):
            book.take(await book.executor.await_responses(timeout=patience))
        await asyncio.sleep(0)


@asynccontextmanager
async def _cancelled_after(seconds: float | None) -> AsyncIterator[None]:
    """A wait that is cancelled, as a task's may be."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        pass


def _kill_router(
    stack: Stack, books: Sequence[Book], seconds: float, kills: int, over: threading.Event
) -> None:
    """Kill it at even times and start it again; in the end say that it is over. A router that is
    not up yet, or that nobody has reached, has nothing to lose: neither has one whose answers no
    executor has begun to read, so the router is killed until something was lost.
    """
    try:
        for killed in range(kills + MORE_KILLS):
            stack.wait_ready(timeout_seconds=HANG_SECONDS)
            if killed >= kills and any(book.endings["router_lost"] for book in books):
                break
            _wait_for_answers(books)
            time.sleep(seconds / (kills + 1))
            router = stack.components["router"].process
            router.send_signal(signal.SIGKILL)
            router.wait(HANG_SECONDS)
            stack.restart("router")
        time.sleep(seconds / (kills + 1))
    finally:
        over.set()


def _wait_for_answers(books: Sequence[Book]) -> None:
    """Until each executor has had one more."""
    before = [book.endings["LENGTH"] for book in books]
    until = time.monotonic() + HANG_SECONDS
    while time.monotonic() < until and any(
        book.endings["LENGTH"] <= count for book, count in zip(books, before, strict=True)
    ):
        time.sleep(0.05)


def _close(book: Book, ended: int) -> None:
    """All has ended, and nothing is held. `ended`: sequences of the largest request."""
    if ended != PLACES:
        book.faults.append("places or credit are lost")
    if book.open or book.executor.get_num_responses_ready():
        book.faults.append(f"{book.open} requests are open")


def _tell(name: str, books: Sequence[Book], seconds: float) -> list[str]:
    """Print what came of it; returns the faults."""
    endings: Counter[str] = sum((book.endings for book in books), Counter())
    each = ", ".join(f"{count} {how}" for how, count in sorted(endings.items()))
    print(f"{name}: {endings.total()} requests in {seconds:.0f} s: {each}", flush=True)
    return [fault for book in books for fault in book.faults]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each form")
    parser.add_argument("--threads", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=6, help="of the router, in each form")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    given = {"seconds": options.seconds, "kills": options.kills, "seed": options.seed}
    with sim_stack() as running:
        began = time.monotonic()
        books = run_threads(running.stack, count=options.threads, **given)
        faults = _tell(f"{options.threads} threads", books, time.monotonic() - began)
        began = time.monotonic()
        books = asyncio.run(run_tasks(running.stack, count=options.tasks, **given))
        faults += _tell(f"{options.tasks} tasks", books, time.monotonic() - began)
    print("\n".join(faults[:20]))
    sys.exit(f"{len(faults)} faults" if faults else 0)


if __name__ == "__main__":
    main()
