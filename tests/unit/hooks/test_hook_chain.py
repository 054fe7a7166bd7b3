"""A chain: each hook sees what those before it let through, and every one is told the end once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging import judge, judge_async

from tandem.errors import HookError, LoadError
from tandem.hooks.chain import Chain, SequenceChain
from tandem.hooks.contract import Chunk, Verdict, emit, suppress, terminate
from tandem.hooks.deferred import SequenceInfo
from tandem.hooks.loader import LoadedHook
from tandem.hooks.piece import Piece
from tandem.hooks.settings import HookEntry, HookSettings
from tandem.usercode.deadline import WATCH

INFO = SequenceInfo(request_id=7, group=1, output_index=0, streaming=True, trace_id="t")


class Recording:
    """Answers by `judge`, and remembers what it was asked."""

    def __init__(self, answer: Callable[[Chunk], Verdict] | None = None) -> None:
        self.answer = answer or (lambda chunk: emit(chunk.text_diff))
        self.calls: list[Chunk] = []
        self.closed: list[int] = []

    def __call__(self, chunk: Chunk) -> Verdict:
        self.calls.append(chunk)
        return self.answer(chunk)

    def close(self, request_id: int) -> None:
        self.closed.append(request_id)

    @property
    def ends(self) -> list[bool]:
        """For each final call whether it was aborted."""
        return [call.aborted for call in self.calls if call.is_final]


class RecordingAsync(Recording):
    async def __call__(self, chunk: Chunk) -> Verdict:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().__call__(chunk)


def _runner(hook: Any, place: int, **entry: Any) -> LoadedHook:
    settings = HookEntry(path=f"h{place}", name=f"h{place}", **entry)
    return LoadedHook(hook, entry=settings, phase="decode", model="m")


def _chain(*hooks: Any, **entry: Any) -> tuple[SequenceChain, Chain]:
    chain = Chain([_runner(hook, place, **entry) for place, hook in enumerate(hooks)])
    return chain.sequence(INFO), chain


def _piece(text: str, *token_ids: int) -> Piece:
    return Piece(text, token_ids, [f"logprob of {token_id}" for token_id in token_ids])


def test_each_hook_sees_what_the_one_before_it_let_through() -> None:
    upper = Recording(lambda chunk: emit(chunk.text_diff.upper()))
    last = Recording()
    sequence, _ = _chain(upper, last)
    assert judge(sequence, _piece("ab", 1), False) == _piece("AB", 1)
    assert judge(sequence, _piece("c", 2), True) == _piece("C", 2)
    assert [call.text for call in last.calls] == ["AB", "ABC"]
    assert [call.text for call in upper.calls] == ["ab", "abc"]


def test_what_one_hook_suppresses_reaches_no_later_one_but_for_the_final_call() -> None:
    last = Recording(lambda chunk: emit(chunk.text_diff + ("!" if chunk.is_final else "")))
    sequence, _ = _chain(Recording(lambda chunk: suppress()), last)
    assert judge(sequence, _piece("ab", 1), False) is None
    assert last.calls == []
    assert judge(sequence, _piece("c", 2), True) == Piece("!", (), None)
    (call,) = last.calls
    assert (call.text_diff, call.token_ids_diff, call.is_final) == ("", (), True)


@pytest.mark.promise("S0-013", "S0-022")
def test_a_terminate_ends_every_hook_once_and_later_ones_give_what_they_held() -> None:
    held: list[str] = []

    def holding(chunk: Chunk) -> Verdict:
        held.append(chunk.text_diff)
        return emit("".join(held)) if chunk.is_final else emit("", hold_tokens=len(held))

    def stopping(chunk: Chunk) -> Verdict:
        return terminate("enough") if chunk.text_diff == "bad" else emit(chunk.text_diff)

    first, second, third = Recording(), Recording(stopping), Recording(holding)
    sequence, _ = _chain(first, second, third)
    passed = judge(sequence, _piece("good", 1), False)
    assert passed is not None
    assert (passed.text, list(passed.token_ids)) == ("", [])
    passed = judge(sequence, _piece("bad", 2), False)
    assert passed is not None
    assert (passed.text, list(passed.token_ids)) == ("good", [1])
    assert sequence.reason == "enough"
    assert (first.ends, second.ends, third.ends) == ([True], [True], [False])
    assert first.closed == second.closed == third.closed == [7]


def test_a_terminate_may_show_a_last_text_and_later_hooks_judge_it() -> None:
    def stopping(chunk: Chunk) -> Verdict:
        return Verdict("terminate", text="last", reason="enough")

    sequence, _ = _chain(
        Recording(stopping), Recording(lambda chunk: emit(chunk.text_diff.upper()))
    )
    passed = judge(sequence, _piece("too much", 1, 2), False)
    assert passed == Piece("LAST", ())


@pytest.mark.promise("S0-019")
def test_a_failing_hook_ends_every_other_and_nothing_is_shown() -> None:
    def raising(chunk: Chunk) -> Verdict:
        raise RuntimeError("secret")

    first, last = Recording(), Recording()
    sequence, chain = _chain(first, Recording(raising), last)
    with pytest.raises(HookError, match="RuntimeError"):
        judge(sequence, _piece("x", 1), False)
    assert (first.ends, last.ends) == ([True], [True])
    assert [hook.counters.sequences for hook in chain.hooks] == [0, 0, 0]


def test_open_must_be_asked_for_and_shows_what_the_hook_failed_on_and_held() -> None:
    def answer(chunk: Chunk) -> Verdict:
        if chunk.text_diff == "x":
            raise RuntimeError
        return emit("", hold_tokens=1)

    sequence, chain = _chain(Recording(answer), on_error="open")
    assert judge(sequence, _piece("a", 1), False) == Piece("", ())
    passed = judge(sequence, _piece("x", 2), False)
    assert passed == Piece("x", (1, 2), ["logprob of 1", "logprob of 2"])
    assert chain.hooks[0].counters.verdicts["error"] == 1
    assert chain.hooks[0].counters.held_tokens == 0


def test_a_shadow_hook_changes_nothing_and_is_counted() -> None:
    verdicts = iter([emit("other"), suppress(hold_tokens=1), "nonsense", terminate("r")])
    hook = Recording(
        lambda chunk: emit("") if chunk.aborted else next(verdicts)  # type: ignore[arg-type,return-value]
    )
    sequence, chain = _chain(hook, shadow=True)
    for text in "abcd":
        assert judge(sequence, _piece(text, 1), False) == _piece(text, 1)
    assert judge(sequence, _piece("e", 2), True) == _piece("e", 2)
    assert sequence.reason is None
    counted = chain.hooks[0].counters.verdicts
    assert (counted["rewrite"], counted["suppress"], counted["terminate"]) == (1, 1, 1)
    assert (counted["error"], chain.hooks[0].counters.held_tokens) == (1, 0)
    assert hook.ends == [True], "after its terminate it is asked no more, and told the end once"
    assert hook.closed == [7]


class Holding:
    """Holds so many tokens after each chunk as its script says."""

    def __init__(self, script: Sequence[tuple[int, bool]]) -> None:
        self._script = iter(script)

    def __call__(self, chunk: Chunk) -> Verdict:
        if chunk.is_final:
            return emit(chunk.text_diff)
        hold, show = next(self._script)
        return emit(chunk.text_diff, hold_tokens=hold, show_tokens=show)


def test_held_tokens_go_with_a_later_verdict_or_are_dropped() -> None:
    sequence, chain = _chain(Holding([(1, True), (1, True), (0, False), (1, True)]))
    shown = [judge(sequence, _piece("x", token), False) for token in (1, 2, 3, 4)]
    assert [list(piece.token_ids) for piece in shown if piece] == [[], [1], [], []]
    assert chain.hooks[0].counters.held_tokens == 1
    last = judge(sequence, _piece("y", 5), True)
    assert last is not None
    assert list(last.token_ids) == [4, 5]
    assert last.extras == ["logprob of 4", "logprob of 5"]
    assert chain.hooks[0].counters.held_tokens == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.booleans()), max_size=12))
def test_every_token_is_shown_once_in_order_or_dropped_with_its_logprob(
    steps: list[tuple[int, int, bool]],
) -> None:
    """Against a model that keeps one list."""
    script, waiting, expected, token = [], [], [], 0
    pieces = []
    for count, wish, show in steps:
        ids = list(range(token, token + count))
        token += count
        waiting += ids
        hold = min(wish, len(waiting))
        script.append((hold, show))
        released, waiting = waiting[: len(waiting) - hold], waiting[len(waiting) - hold :]
        expected.append(released if show else [])
        pieces.append(_piece("x", *ids))
    expected.append(waiting)
    sequence, chain = _chain(Holding(script), Recording())
    shown = [judge(sequence, piece, False) for piece in pieces]
    shown.append(judge(sequence, _piece("end"), True))
    assert [[] if piece is None else list(piece.token_ids) for piece in shown] == expected
    for piece in shown:
        assert piece is not None
        assert list(piece.extras or ()) == [f"logprob of {token}" for token in piece.token_ids]
    assert chain.hooks[0].counters.held_tokens == 0


@pytest.fixture
def watch() -> None:
    WATCH.install()


@pytest.mark.usefixtures("watch")
@pytest.mark.parametrize(
    "hang", [lambda: time.sleep(30), lambda: _spin(30)], ids=["sleeps", "computes"]
)
def test_a_hook_that_hangs_is_interrupted_and_fails_closed(hang: Callable[[], None]) -> None:
    ended = False

    def answer(chunk: Chunk) -> Verdict:
        nonlocal ended
        if not chunk.aborted:
            hang()
            ended = True
        return emit("")

    sequence, chain = _chain(Recording(answer), timeout_ms=50)
    with pytest.raises(HookError, match="longer than its timeout"):
        judge(sequence, _piece("x", 1), False)
    assert not ended
    assert chain.hooks[0].counters.verdicts["timeout"] == 1


def _spin(seconds: float) -> None:
    """Swallows every Exception, as careless code does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(Exception):
            sum(range(100))


@pytest.mark.usefixtures("watch")
def test_a_short_timeout_after_a_long_one_is_kept() -> None:
    ended = False

    def sleeping(chunk: Chunk) -> Verdict:
        nonlocal ended
        if not chunk.aborted:
            time.sleep(30)
            ended = True
        return emit("")

    slow = Recording(sleeping)
    chain = Chain([_runner(Recording(), 0, timeout_ms=60_000), _runner(slow, 1, timeout_ms=50)])
    with pytest.raises(HookError, match="timeout"):
        judge(chain.sequence(INFO), _piece("x", 1), False)
    assert not ended


async def test_a_chain_of_plain_and_async_hooks_does_what_a_plain_one_does() -> None:
    def stopping(chunk: Chunk) -> Verdict:
        return terminate("enough") if chunk.text_diff == "C" else emit(chunk.text_diff)

    def build(second: type[Recording]) -> SequenceChain:
        upper = Recording(lambda chunk: emit(chunk.text_diff.upper()))
        return _chain(upper, second(stopping), Recording())[0]

    plain, mixed = build(Recording), build(RecordingAsync)
    for text in "abc":
        expected = judge(plain, _piece(text, 1), False)
        assert await judge_async(mixed, _piece(text, 1), False) == expected
    assert mixed.reason == plain.reason == "enough"


async def test_an_async_hook_that_hangs_or_cancels_itself_fails_closed() -> None:
    class Hanging:
        async def __call__(self, chunk: Chunk) -> Verdict:
            await asyncio.Event().wait()
            return emit("")

    class Cancelling:
        async def __call__(self, chunk: Chunk) -> Verdict:
            raise asyncio.CancelledError

    for hook, words in ((Hanging(), "timeout"), (Cancelling(), "CancelledError")):
        sequence, _ = _chain(hook, timeout_ms=20)
        with pytest.raises(HookError, match=words):
            await judge_async(sequence, _piece("x", 1), False)


async def test_cancelling_the_task_is_not_taken_for_a_failure_of_the_hook() -> None:
    entered = asyncio.Event()

    class Waiting:
        async def __call__(self, chunk: Chunk) -> Verdict:
            entered.set()
            await asyncio.Event().wait()
            return emit("")

    sequence, chain = _chain(Waiting(), timeout_ms=60_000)
    task = asyncio.ensure_future(judge_async(sequence, _piece("x", 1), False))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert chain.hooks[0].counters.verdicts["error"] == 0


def test_close_that_raises_is_counted_and_changes_nothing() -> None:
    class Raising(Recording):
        def close(self, request_id: int) -> None:
            raise RuntimeError

    sequence, chain = _chain(Raising())
    assert judge(sequence, _piece("x", 1), True) == _piece("x", 1)
    assert chain.hooks[0].counters.verdicts["error"] == 1


async def test_startup_and_shutdown_run_once_in_order_and_a_failing_startup_is_a_load_error() -> (
    None
):
    said: list[str] = []

    class Service(Recording):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        async def startup(self) -> None:
            said.append(f"{self.name} up")

        def shutdown(self) -> None:
            said.append(f"{self.name} down")

    class Broken(Recording):
        def startup(self) -> None:
            raise OSError("no route")

    _, chain = _chain(Service("a"), Service("b"))
    await chain.startup()
    await chain.shutdown()
    assert said == ["a up", "b up", "b down", "a down"]
    with pytest.raises(LoadError, match="OSError: no route"):
        await _chain(Broken())[1].startup()


def test_a_hook_gets_its_config_as_keyword_arguments_and_a_wrong_one_is_a_load_error() -> None:
    entry = HookEntry(path="tests_chain_hooks.X", name="x", config={"nonsense": 1})
    with pytest.raises(LoadError, match="tests_chain_hooks"):
        Chain.build(HookSettings(chain=(entry,)), phase="decode", model="m")
    entry = HookEntry(path="examples.hooks.UpperCase", name="up", config={"nonsense": 1})
    with pytest.raises(LoadError, match=r"'up'.*nonsense"):
        Chain.build(HookSettings(chain=(entry,)), phase="decode", model="m")
