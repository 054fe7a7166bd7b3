"""Whatever user code does when it is called becomes a value."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from tandem.errors import LoadError
from tandem.usercode import lifecycle
from tandem.usercode.call import Caller, Failed
from tandem.usercode.deadline import WATCH, OverdueError, Watch


def _raise(error: BaseException) -> Any:
    raise error


@pytest.mark.promise("S6-171")
@pytest.mark.parametrize(
    "error",
    [ValueError(), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), OverdueError()],
)
def test_what_a_call_raises_is_its_value(error: BaseException) -> None:
    failed = Caller(60.0).call(_raise, error)
    assert type(failed) is Failed
    assert failed.error is error
    assert failed.kind == type(error).__name__
    assert failed.place.startswith("at test_call.py:")
    assert WATCH.due == 0.0


async def test_what_an_async_call_raises_is_its_value_and_our_own_cancellation_is_not() -> None:
    async def fails(error: BaseException) -> None:
        raise error

    for error in (SystemExit(3), asyncio.CancelledError(), RuntimeError()):
        failed = await Caller(60.0).call_async(fails, error)
        assert failed.error is error
    waiting = asyncio.ensure_future(Caller(60.0).call_async(asyncio.sleep, 60))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_an_interrupt_that_comes_before_the_call_has_begun_is_a_failure_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine that stands still while the watch is told of the call."""
    monkeypatch.setattr(WATCH, "next_look", float("inf"))
    monkeypatch.setattr(WATCH, "look_at", lambda due: _raise(OverdueError()))
    failed = Caller(60.0).call(abs, -1)
    assert type(failed) is Failed
    assert failed.overdue
    assert WATCH.due == 0.0


@pytest.mark.usefixtures("watch")
def test_a_c_function_that_looks_for_signals_is_interrupted() -> None:
    ended = False

    def sleep(seconds: float) -> None:
        nonlocal ended
        time.sleep(seconds)
        ended = True

    failed = Caller(0.05).call(sleep, 30)
    assert failed.overdue
    assert not ended
    assert WATCH.due == 0.0


@pytest.mark.promise("S6-172")
@pytest.mark.usefixtures("watch")
def test_one_that_swallows_every_interrupt_is_found_out_when_it_returns() -> None:
    def swallow(times: int) -> str:
        for _ in range(times):
            try:
                time.sleep(30)
            except OverdueError:
                continue
        return "done"

    assert Caller(0.02).call(swallow, 2).overdue
    assert WATCH.due == 0.0


def test_time_in_which_the_machine_stood_still_does_not_count_by_cpu_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A watch that was never installed, as in another thread: nothing interrupts.
    monkeypatch.setattr("tandem.usercode.call.WATCH", Watch())
    assert Caller(0.001).call(time.sleep, 0.01).overdue
    assert Caller(0.05, by_cpu_time=True).call(time.sleep, 0.2) is None


class _Named(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("a secret")


class Evil(Exception, metaclass=_Named):
    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.promise("S6-171")
def test_an_exception_whose_own_code_raises_can_still_be_named() -> None:
    failed = Caller(60.0).call(_raise, Evil())
    assert failed.kind == "Evil"
    assert failed.words == "Evil: (its text raised SystemExit)"
    assert not failed.overdue


class Exits:
    """Each of its parts ends the process."""

    def __init__(self, built: bool = False) -> None:
        if not built:
            raise SystemExit(3)

    def startup(self) -> None:
        raise SystemExit(3)

    async def shutdown(self) -> None:
        raise SystemExit(3)


async def test_code_that_exits_while_it_is_built_or_started_is_a_load_error() -> None:
    with pytest.raises(LoadError, match="its constructor raised SystemExit"):
        lifecycle.build("hook 'x'", Exits, {})
    with pytest.raises(LoadError, match="its startup raised SystemExit"):
        await lifecycle.startup("hook 'x'", Exits(built=True))


def _exits() -> Exits:
    return Exits(built=True)


class Stubborn:
    async def shutdown(self) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if stubborn_may_end.is_set():
                    raise


stubborn_may_end = asyncio.Event()


@pytest.mark.parametrize(("build", "reason"), [(_exits, "SystemExit"), (Stubborn, "TimeoutError")])
async def test_a_shutdown_that_exits_or_does_not_end_is_logged_in_bounded_time(
    build: Callable[[], Any],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(lifecycle, "SHUTDOWN_SECONDS", 0.2)
    monkeypatch.setattr(lifecycle, "CANCEL_SECONDS", 0.01)
    async with asyncio.timeout(5):
        await lifecycle.shutdown("hook 'x'", build())
    assert [record.__dict__["reason"] for record in caplog.records] == [reason]
    stubborn_may_end.set()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
