"""Forms are compiled in processes: whatever one does there, it costs that form alone."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from hostile_compiler import PlainForm

from tandem.errors import EngineError, InvalidRequestError, QueueFullError
from tandem.logits.forms import workshop
from tandem.logits.forms.workshop import FormPlan, Workshop, WorkshopLimits
from tandem.logits.model import Model

HERE = Path(__file__).parent
WAIT_SECONDS = 60.0
DEADLY = {
    "crash": "nested too deep",
    "exit": "memory",
    "spin": "1 s of CPU time",
    "eat": "64 MiB of memory",
    "recurse": "nested too deep",
}
"""What kills a form, and what its client is told."""


def plan(*, eager: bool = False, **arguments: Any) -> FormPlan:
    return FormPlan(
        compiler="hostile_compiler:HostileCompiler",
        arguments=arguments,
        used_here=frozenset({"regex"}),
        eager=eager,
    )


@asynccontextmanager
async def open_workshop(made: FormPlan | None = None, **limits: Any) -> AsyncIterator[Workshop]:
    given: dict[str, Any] = {"cpu_seconds": 1, "seconds": 30.0, "memory_bytes": 64 * 2**20}
    shop = Workshop(made or plan(), Model(vocabulary=8), WorkshopLimits(**{**given, **limits}))
    try:
        yield shop
    finally:
        await asyncio.wait_for(shop.close(), WAIT_SECONDS)
        assert not processes()


def processes() -> list[psutil.Process]:
    """Those of workshops that this process started."""
    return [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and "forms.process" in " ".join(child.cmdline())
    ]


async def compiled(shop: Workshop, source: str, key: str = "", tenant: str = "") -> PlainForm:
    form = await asyncio.wait_for(
        shop.compiled(key or source, lambda: PlainForm(source), tenant), WAIT_SECONDS
    )
    assert isinstance(form, PlainForm)
    return form


async def until(holds: Callable[[], object]) -> None:
    """Bounded."""
    turn = asyncio.Event()
    async with asyncio.timeout(WAIT_SECONDS):
        while not holds():
            asyncio.get_running_loop().call_later(0.001, turn.set)
            await turn.wait()
            turn.clear()


async def refusal(shop: Workshop, source: str) -> str:
    with pytest.raises(InvalidRequestError) as error:
        await compiled(shop, source)
    return error.value.message


@pytest.mark.promise("S6-184")
async def test_what_kills_a_form_costs_that_form_alone_and_says_what_was_too_dear() -> None:
    async with open_workshop() as shop:
        before = (await compiled(shop, "good")).compiled
        for source, says in DEADLY.items():
            message = await refusal(shop, source)
            assert message.startswith("this form is too dear: "), source
            assert says in message, source
            assert (await compiled(shop, "good", key=f"after {source}")).compiled == before, source
        assert shop.outcomes["too_dear"] == len(DEADLY)


async def test_a_form_is_ended_by_the_kernel_and_leaves_no_core() -> None:
    async with open_workshop() as shop:
        assert (await compiled(shop, "limits")).compiled == b"(1, 2) (0, 0)"


async def test_a_form_that_only_waits_is_ended_by_the_clock() -> None:
    async with open_workshop(seconds=0.5) as shop:
        for _ in range(2):  # it is not remembered: another time the machine may be less busy
            assert "more than 0.5 s" in await refusal(shop, "sleep")
            assert shop.known("sleep") is None
        assert shop.outcomes["too_dear"] == 2


async def test_an_error_of_a_form_is_told_and_a_panic_is_none_of_the_workers() -> None:
    async with open_workshop() as shop:
        assert await refusal(shop, "wrong") == "it has an error"
        assert "cannot be compiled" in await refusal(shop, "panic")
        assert shop.outcomes["wrong"] == 2


async def test_a_refused_form_costs_nothing_again() -> None:
    async with open_workshop() as shop:
        first = await refusal(shop, "crash")
        assert await refusal(shop, "crash") == first
        with pytest.raises(InvalidRequestError):
            shop.known("crash")
        assert shop.outcomes["too_dear"] == 1


async def test_what_is_compiled_is_used_here_or_kept_for_the_engine() -> None:
    tags = '{"calls": [], "answer": true}'
    async with open_workshop() as shop:
        ours = await compiled(shop, "good")
        theirs = await shop.compiled("theirs", lambda: PlainForm(tags, "tagged"))
    assert isinstance(theirs, PlainForm)
    assert [bool(ours.compiled), bool(ours.kept)] == [True, False]
    assert [bool(theirs.compiled), bool(theirs.kept)] == [False, True]


async def test_a_form_that_many_ask_for_is_compiled_once() -> None:
    async with open_workshop() as shop:
        asked = [compiled(shop, "good") for _ in range(128)]
        forms = await asyncio.gather(*asked)
        assert len({id(form) for form in forms}) == 1
        assert shop.known("good") is forms[0]
        assert shop.outcomes["compiled"] == 1


async def test_a_lost_process_fails_its_form_for_a_while_and_is_replaced() -> None:
    async with open_workshop() as shop:
        first = (await compiled(shop, "good")).compiled
        with pytest.raises(EngineError):
            await compiled(shop, "kill the process")
        assert (await compiled(shop, "good", key="again")).compiled != first
        assert shop.outcomes["lost"] == 1


async def test_threads_of_a_library_fit_whatever_stack_the_worker_may_have() -> None:
    before = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (64 * 2**20, before[1]))  # as SGLang sets it
    try:
        async with open_workshop() as shop:
            assert (await compiled(shop, "threads")).compiled
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, before)


async def test_a_form_that_cannot_even_travel_fails_alone() -> None:
    async with open_workshop() as shop:
        with pytest.raises(EngineError):
            await compiled(shop, "\ud800")
        assert (await compiled(shop, "good")).compiled
        assert (shop.outcomes["lost"], shop.outcomes["compiled"]) == (1, 1)


async def test_a_compiler_that_cannot_be_made_fails_forms_and_nothing_else() -> None:
    async with open_workshop(plan(broken=True)) as shop:
        with pytest.raises(EngineError):
            await compiled(shop, "good")


async def test_processes_that_take_long_stand_before_the_first_form_comes() -> None:
    async with open_workshop(plan(eager=True), processes=2) as shop:
        shop.start()
        await asyncio.wait_for(shop.started(), WAIT_SECONDS)
        standing = [process.pid for process in processes()]
        assert len(standing) == 2
        assert int((await compiled(shop, "good")).compiled) in standing
        assert [process.pid for process in processes()] == standing


async def test_a_compiler_that_cannot_be_made_keeps_nobody_waiting() -> None:
    async with open_workshop(plan(eager=True, broken=True)) as shop:
        shop.start()
        await asyncio.wait_for(shop.started(), WAIT_SECONDS)


async def test_what_a_library_prints_of_a_form_is_not_shown(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with open_workshop() as shop:
        await compiled(shop, "quiet")
    assert "the client's words" not in "".join(capfd.readouterr())


async def test_who_does_not_wait_any_more_is_forgotten_while_it_is_not_its_turn() -> None:
    async with open_workshop(seconds=2.0) as shop:
        await compiled(shop, "good")
        busy = asyncio.create_task(compiled(shop, "sleep"))
        waiting = asyncio.create_task(compiled(shop, "good", key="later"))
        await until(lambda: shop.waiting == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert shop.waiting == 0
        with pytest.raises(InvalidRequestError):
            await busy
        assert shop.outcomes["compiled"] == 1


async def test_so_many_wait_and_one_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workshop, "MAX_WAITING", 2)
    async with open_workshop(seconds=2.0) as shop:
        await compiled(shop, "good")
        busy = asyncio.create_task(compiled(shop, "sleep"))
        await until(lambda: shop.is_compiling("sleep"))
        tasks = [asyncio.create_task(compiled(shop, "good", key=str(n))) for n in range(2)]
        await until(lambda: shop.waiting == 2)
        with pytest.raises(QueueFullError):
            await compiled(shop, "good", key="one more")
        with pytest.raises(InvalidRequestError):
            await busy
        await asyncio.gather(*tasks)


@pytest.mark.promise("S6-154")
async def test_another_keys_form_waits_for_one_of_a_key_that_asks_for_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workshop, "MAX_WAITING", 4)
    order: list[str] = []

    async def asked(source: str, key: str, tenant: str) -> None:
        try:
            await compiled(shop, source, key, tenant)
        finally:
            order.append(key)

    async with open_workshop(seconds=1.0) as shop:
        await compiled(shop, "good")
        busy = asyncio.create_task(asked("sleep", "busy", "greedy"))
        await until(lambda: shop.is_compiling("busy"))
        flood = [asyncio.create_task(asked("good", str(n), "greedy")) for n in range(4)]
        await until(lambda: shop.waiting == 4)
        with pytest.raises(QueueFullError):
            await compiled(shop, "good", "one more", "greedy")
        other = asyncio.create_task(asked("good", "other", "modest"))
        shared = asyncio.create_task(asked("good", "2", "third"))
        results = await asyncio.gather(busy, other, shared, *flood, return_exceptions=True)
    # The last of the greedy key's had to go at once; another's wait for one of its own.
    assert [type(result) for result in results if result is not None] == [
        InvalidRequestError,
        QueueFullError,
    ]
    assert order == ["3", "busy", "0", "other", "2", "2", "1"]
    assert shop.waiting == 0


async def test_forms_in_use_count_until_they_are_let_go_of() -> None:
    limits = {"memory_bytes": 64 * 2**20, "cache_bytes": 1}
    async with open_workshop(**limits) as shop:
        with pytest.raises(QueueFullError):
            await compiled(shop, "good")
    async with open_workshop() as shop:
        form: PlainForm | None = await compiled(shop, "good")
        size = shop.cache.used_bytes
        assert size > 0
        assert not shop.cache.make_room(10**12)
        assert (len(shop.cache), shop.cache.used_bytes) == (0, size)
        del form
        assert shop.cache.used_bytes == 0


async def test_matchers_are_made_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def use(self: PlainForm, _compiled: bytes, _model: Model) -> None:
        threads.append(threading.current_thread().name)

    monkeypatch.setattr(PlainForm, "use", use)
    async with open_workshop() as shop:
        await compiled(shop, "good")
    assert threads
    assert threads[0] != threading.main_thread().name


async def test_closing_fails_what_waits() -> None:
    async with open_workshop() as shop:
        await compiled(shop, "good")
        tasks = [asyncio.create_task(compiled(shop, text)) for text in ("sleep", "later")]
        await until(lambda: shop.waiting == 1)
        await shop.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [EngineError, EngineError]


async def test_nothing_is_left_of_a_worker_that_was_killed() -> None:
    script = (
        "import asyncio, sys; sys.path[:0] = sys.argv[1:]\n"
        "import test_forms_workshop as t\n"
        "async def main():\n"
        "    async with t.open_workshop(seconds=100.0) as shop:\n"
        "        print(int((await t.compiled(shop, 'good')).compiled), flush=True)\n"
        "        await t.compiled(shop, 'sleep')\n"
        "asyncio.run(main())\n"
    )
    worker = subprocess.Popen(  # noqa: ASYNC220 - it is only started here
        [sys.executable, "-c", script, str(HERE)], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    process = psutil.Process(int(await asyncio.to_thread(worker.stdout.readline)))
    await until(process.children)
    left = [process, *process.children()]
    worker.kill()
    await asyncio.to_thread(worker.wait, WAIT_SECONDS)
    worker.stdout.close()
    _, alive = await asyncio.to_thread(psutil.wait_procs, left, timeout=WAIT_SECONDS)
    assert not alive
