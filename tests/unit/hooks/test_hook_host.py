"""A chain behind the seam for deferred hooks, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pooled_hooks
import pytest
from hook_rulings import WAIT_SECONDS, Rulings, settings, work

from tandem.errors import HookError, LoadError
from tandem.hooks.chain import Chain
from tandem.hooks.contract import Chunk, Verdict, emit, terminate
from tandem.hooks.loader import LoadedHook
from tandem.hooks.runner import in_this_process
from tandem.hooks.runner.async_ import AsyncRunner
from tandem.hooks.settings import HookEntry

Judge = Callable[[Chunk], Coroutine[Any, Any, Verdict]]


class Recording:
    """An async hook that asks `judge`, and remembers its calls."""

    def __init__(self, judge: Judge | None = None) -> None:
        self.judge = judge
        self.calls: list[tuple[int, str, bool]] = []
        self.closed: list[int] = []

    async def __call__(self, chunk: Chunk) -> Verdict:
        self.calls.append((chunk.request_id, chunk.text_diff, chunk.aborted))
        return emit(chunk.text_diff) if self.judge is None else await self.judge(chunk)

    def close(self, request_id: int) -> None:
        self.closed.append(request_id)


@asynccontextmanager
async def _hosting(hook: Any, *, timeout_ms: float = 5000, **limits: Any) -> AsyncIterator[Rulings]:
    entry = HookEntry(path="h", timeout_ms=timeout_ms)
    chain = Chain([LoadedHook(hook, entry=entry, phase="decode", model="m")])
    host = AsyncRunner(chain, **limits) if limits else in_this_process(chain)
    rulings = Rulings(host)
    await host.start(rulings.deliver)
    yield rulings
    await asyncio.wait_for(host.close(), WAIT_SECONDS)
    assert host.open_sequences == 0


def _tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def test_a_chain_without_async_hooks_answers_within_submit() -> None:
    async with _hosting(pooled_hooks.Upper()) as rulings:
        rulings.open(1, 2)
        rulings.hooks.submit([work(1, "a", 7), work(2, "b", 8)])
        ((first, second),) = rulings.deliveries
        assert first.piece == work(1, "A", 7).piece
        assert (second.request_id, rulings.texts(2)) == (2, ["B"])


@pytest.mark.promise("S0-005")
async def test_two_hosts_in_one_process_share_no_state() -> None:
    chains = [Chain.build(settings("Counting"), phase="decode", model="m") for _ in range(2)]
    hosts = [Rulings(in_this_process(chain)) for chain in chains]
    for rulings in hosts:
        await rulings.hooks.start(rulings.deliver)
        rulings.open(1)
        await rulings.ask([work(1, "a")])
    assert [rulings.texts(1) for rulings in hosts] == [["1/1"], ["1/1"]]
    assert chains[0].hooks[0].hook is not chains[1].hooks[0].hook


async def test_work_of_an_ended_or_unknown_sequence_fails_closed() -> None:
    async with _hosting(pooled_hooks.Obeying()) as rulings:
        rulings.open(1, 2)
        rulings.hooks.submit([work(1, "stop"), work(1, "more"), work(2, "raise"), work(9, "x")])
        stopped, again, raised, unknown = rulings.all
        assert (stopped.piece, stopped.reason, stopped.error) == (None, "enough", None)
        assert (again.piece, again.reason, again.error) == (None, "enough", None)
        assert str(raised.error) == "the output hook failed: RuntimeError"
        assert isinstance(unknown.error, HookError)
        rulings.hooks.submit([work(2, "later")])
        assert isinstance(rulings.all[-1].error, HookError)
        assert rulings.all[-1].piece is None


async def test_what_slow_hooks_take_long_for_is_delivered_in_parts_but_no_request_is_parted() -> (
    None
):
    async with _hosting(pooled_hooks.Obeying()) as rulings:
        rulings.open(1, 2)
        rulings.open(3, 4, group="n")
        rulings.hooks.submit(
            [work(1, "slow"), work(3, "slow"), work(2, "a"), work(4, "slow"), work(1, "b")]
        )
        ids = [[ruling.request_id for ruling in delivery] for delivery in rulings.deliveries]
        assert ids == [[1, 3, 2, 4, 1]]
        rulings.hooks.submit([work(2, "slow"), work(3, "slow"), work(4, "a"), work(1, "a")])
        ids = [[ruling.request_id for ruling in delivery] for delivery in rulings.deliveries[1:]]
        assert ids == [[2], [3, 4], [1]]


@pytest.mark.promise("S0-022")
async def test_a_sequence_that_is_aborted_or_still_open_at_the_close_is_told_once() -> None:
    for hook in (Recording(), pooled_hooks.Upper()):
        told: list[int] = []
        hook.close = told.append  # type: ignore[union-attr, method-assign]
        async with _hosting(hook) as rulings:
            rulings.open(1, 2, 3)
            await rulings.ask([work(1, "a"), work(3, "z", final=True)])
            rulings.hooks.abort(1)
            rulings.hooks.abort(1)
            rulings.hooks.abort(3)
        assert sorted(told) == [1, 2, 3]


async def test_an_async_requests_chunks_come_in_order_while_others_go_on() -> None:
    gate = asyncio.Event()

    async def judge(chunk: Chunk) -> Verdict:
        if chunk.text_diff == "wait":
            await gate.wait()
        return emit(chunk.text_diff)

    hook = Recording(judge)
    async with _hosting(hook) as rulings:
        rulings.open(1, 2)
        rulings.hooks.submit([work(1, "wait"), work(2, "a")])
        rulings.hooks.submit([work(1, "b"), work(2, "b")])
        await rulings.until(2)
        assert rulings.texts(2) == ["a", "b"]
        assert [call for call in hook.calls if call[0] == 1] == [(1, "wait", False)]
        gate.set()
        await rulings.until(4)
        assert rulings.texts(1) == ["wait", "b"]
        rulings.hooks.abort(1)
        rulings.hooks.abort(2)
        await asyncio.wait(_tasks(), timeout=WAIT_SECONDS)
        assert not _tasks(), "a lane with nothing to do owns no task"


@pytest.mark.promise("S0-029")
async def test_the_outputs_of_one_request_are_answered_together() -> None:
    async def judge(chunk: Chunk) -> Verdict:
        for _ in range(chunk.output_index * 3):
            await asyncio.sleep(0)
        return terminate("enough") if chunk.text_diff == "bad" else emit(chunk.text_diff)

    async with _hosting(Recording(judge)) as rulings:
        rulings.open(1, 2, 3, group="n")
        await rulings.ask([work(1, "a"), work(2, "b"), work(3, "bad")])
        ((one, two, three),) = rulings.deliveries
        assert [one.request_id, two.request_id, three.request_id] == [1, 2, 3]
        assert three.reason == "enough"


async def test_an_aborted_sequence_is_told_after_the_call_in_progress_and_gets_no_ruling() -> None:
    gate, began = asyncio.Event(), asyncio.Event()

    async def judge(chunk: Chunk) -> Verdict:
        if chunk.text_diff == "wait":
            began.set()
            await gate.wait()
        return emit(chunk.text_diff)

    hook = Recording(judge)
    async with _hosting(hook) as rulings:
        rulings.open(1, 2, group="n")
        rulings.hooks.submit([work(1, "wait"), work(2, "a")])
        rulings.hooks.submit([work(1, "never judged")])
        await began.wait()
        rulings.hooks.abort(1)
        gate.set()
        await rulings.until(1)
        assert rulings.texts(2) == ["a"]
        await rulings.ask([work(2, "b")])
    assert hook.calls[:3] == [(1, "wait", False), (2, "a", False), (1, "", True)]
    assert hook.calls[3:] == [(2, "b", False), (2, "", True)]


async def test_a_request_whose_hook_lags_too_far_behind_fails_closed_and_others_go_on() -> None:
    async def judge(chunk: Chunk) -> Verdict:
        if chunk.request_id == 1 and not chunk.aborted:
            await asyncio.sleep(3600)
        return emit(chunk.text_diff)

    hook = Recording(judge)
    async with _hosting(hook, max_waiting=3) as rulings:
        rulings.open(1, 2)
        for place in range(5):
            rulings.hooks.submit([work(1, str(place))])
            await asyncio.sleep(0)
        await rulings.until(5)
        assert all(ruling.piece is None for ruling in rulings.all)
        assert {str(ruling.error) for ruling in rulings.all} == {
            "the output hook failed: more than 3 chunks wait for the hook"
        }
        await rulings.ask([work(2, "a"), work(1, "later")])
        assert rulings.texts(2) == ["a"]
        assert hook.closed == [1]


async def test_an_async_hook_that_ignores_its_timeout_fails_its_request_alone_in_bounded_time() -> (
    None
):
    stop = asyncio.Event()

    async def judge(chunk: Chunk) -> Verdict:
        while chunk.text_diff == "stubborn" and not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue
        return emit(chunk.text_diff)

    hook = Recording(judge)
    asyncio.get_running_loop().call_later(2 * WAIT_SECONDS, stop.set)
    limits = {"timeout_ms": 20, "margin_seconds": 0.05, "close_seconds": 0.1}
    async with _hosting(hook, **limits) as rulings:
        rulings.open(1, 2)
        rulings.open(3, 4, group="n")
        rulings.hooks.submit([work(1, "stubborn"), work(2, "a"), work(3, "b")])
        rulings.hooks.submit([work(1, "waits")])
        await rulings.until(4)
        assert rulings.texts(2) == ["a"]
        assert rulings.texts(1) == [None, None]
        assert "ignores its timeout" in str(rulings.of(1)[0].error)
        await rulings.hooks.close()
        assert not stop.is_set(), "a stubborn hook does not hold up the close"
        assert set(hook.closed) == {2, 3, 4}
        stop.set()
        await asyncio.wait(_tasks(), timeout=WAIT_SECONDS)
        assert not _tasks()


async def test_a_close_breaks_off_what_is_being_judged_and_delivers_nothing() -> None:
    began = asyncio.Event()

    async def judge(chunk: Chunk) -> Verdict:
        if not chunk.aborted:
            began.set()
            await asyncio.sleep(3600)
        return emit(chunk.text_diff)

    hook = Recording(judge)
    async with _hosting(hook) as rulings:
        rulings.open(1)
        rulings.hooks.submit([work(1, "a")])
        await began.wait()
    assert rulings.deliveries == []
    assert hook.calls == [(1, "a", False), (1, "", True)]


async def test_a_startup_that_fails_is_a_load_error() -> None:
    class Failing(Recording):
        def startup(self) -> None:
            raise OSError("no such list")

    with pytest.raises(LoadError, match="no such list"):
        async with _hosting(Failing()):
            pass
