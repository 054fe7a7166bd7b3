"""tandem.testing.run_hook shows what a client would be shown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem.hooks.contract import Chunk, Verdict, emit, suppress, terminate
from tandem.testing import HookRun, run_hook, run_hook_async, run_outputs


class Script:
    """Answers by the chunk's text; writes down what it was told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, chunk: Chunk) -> Verdict:
        self.calls.append(
            f"{chunk.output_index}:{chunk.text_diff}" + "!" * chunk.is_final + "#" * chunk.aborted
        )
        if "stop" in chunk.text_diff:
            return terminate("told to")
        if "hide" in chunk.text_diff:
            return suppress()
        if "hold" in chunk.text_diff:
            return emit("", hold_tokens=1)
        if "fail" in chunk.text_diff:
            raise KeyError("words")
        return emit(chunk.text_diff.upper())

    def close(self, request_id: int) -> None:
        self.calls.append(f"close {request_id}")


def test_what_is_shown_comes_with_its_tokens() -> None:
    hook = Script()
    run = run_hook(hook, ["a", ("bc", (7, 8)), "d"])
    assert run == HookRun("ABCD", (1, 7, 8, 2), ("A", "BC", "D"), None, None)
    assert hook.calls == ["0:a", "0:bc", "0:d!", "close 1"]


def test_held_tokens_come_later_and_suppressed_ones_never() -> None:
    run = run_hook(Script(), ["a", "hold", "b", "hide", "c"])
    assert run.shown == ("A", "", "B", None, "C")
    assert run.token_ids == (1, 2, 3, 5)


def test_a_terminate_ends_the_run_with_its_reason() -> None:
    hook = Script()
    run = run_hook(hook, ["a", "stop", "never"])
    assert (run.text, run.token_ids, run.stop_reason) == ("A", (1,), "told to")
    assert hook.calls == ["0:a", "0:stop", "0:!#", "close 1"]


def test_a_failure_is_an_error_as_a_worker_would_make_it_one() -> None:
    run = run_hook(Script(), ["a", "fail", "never"])
    assert run.text == "A"
    assert run.error is not None
    assert run.error.code == "hook_failed"
    assert isinstance(run.error.__cause__, KeyError)


@pytest.mark.parametrize(
    ("ending", "last"), [("last", "0:b!"), ("empty", "0:!"), ("abort", "0:!#")]
)
def test_the_answer_ends_as_asked_for(ending: Any, last: str) -> None:
    hook = Script()
    run_hook(hook, ["a", "b"], ending=ending)
    assert hook.calls[-2:] == [last, "close 1"]


def test_an_answer_without_chunks_has_a_final_one() -> None:
    hook = Script()
    assert run_hook(hook, []).text == ""
    assert hook.calls == ["0:!", "close 1"]


def test_several_hooks_run_in_order() -> None:
    class Exclaim:
        def __call__(self, chunk: Chunk) -> Verdict:
            assert chunk.text_diff.isupper()
            return emit(chunk.text_diff + "!")

    assert run_hook([Script(), Exclaim()], ["a", "b"]).text == "A!B!"


class Answers:
    """Async, with a life of its own."""

    def __init__(self) -> None:
        self.life: list[str] = []

    async def startup(self) -> None:
        self.life.append("up")

    async def __call__(self, chunk: Chunk) -> Verdict:
        await asyncio.sleep(0)
        return emit(f"<{chunk.text_diff}>")

    def shutdown(self) -> None:
        self.life.append("down")


def test_an_async_hook_is_awaited_and_has_its_life() -> None:
    hook = Answers()
    assert run_hook(hook, ["a", "b"]).text == "<a><b>"
    assert hook.life == ["up", "down"]


async def test_in_an_async_test_the_run_is_awaited() -> None:
    assert (await run_hook_async(Answers(), ["a"])).text == "<a>"
    with pytest.raises(RuntimeError, match="await run_hook_async"):
        run_hook(Answers(), ["a"])


def test_a_late_async_hook_fails() -> None:
    class Late:
        async def __call__(self, chunk: Chunk) -> Verdict:
            await asyncio.Event().wait()
            return emit(chunk.text_diff)

    run = run_hook(Late(), ["a"], timeout_ms=10)
    assert run.error is not None
    assert "longer than its timeout" in run.error.message


def test_outputs_run_together_and_end_together() -> None:
    hook = Script()
    first, second, third = run_outputs(hook, ["a", "b", "c"], ["x", "stop"], ["p"])
    assert (first.text, second.text, third.text) == ("A", "X", "P")
    assert (first.stop_reason, second.stop_reason) == (None, "told to")
    assert hook.calls == [
        *("0:a", "1:x", "2:p!", "close 3"),
        *("0:b", "1:stop!", "close 2"),
        *("0:!#", "close 1"),
    ]
