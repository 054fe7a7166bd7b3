"""The hook that is checked, and a probe that sees every call of it."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from array import array
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from tandem.hooks.chain import Chain
from tandem.hooks.contract import Chunk, Phase, Verdict
from tandem.hooks.loader import LoadedHook
from tandem.hooks.settings import HookEntry, HookSettings
from tandem.usercode.deadline import OverdueError

MODEL = "check-hook"
TOOK_LONGER = "took longer than"
Told = tuple[str, str, str]
"""Action, text and reason of a verdict."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A hook class with its config."""

    path: str
    config: Mapping[str, Any]

    @asynccontextmanager
    async def fresh(self, phase: Phase = "decode") -> AsyncIterator[tuple[Chain, Probe]]:
        """A new instance, as a worker runs it. Raises LoadError."""
        entry = HookEntry(path=self.path, name=self.path, config=dict(self.config))
        chain = Chain.build(HookSettings(chain=(entry,)), phase=phase, model=MODEL)
        probe = Probe(chain.hooks[0])
        await chain.startup()
        try:
            yield chain, probe
        finally:
            await chain.shutdown()


class Probe:
    """Stands between the runner and the hook, and writes down what happens there."""

    def __init__(self, runner: LoadedHook) -> None:
        self.hook = runner.hook
        self.is_async = runner.is_async
        self.verdicts: Counter[str] = Counter()
        self.told: defaultdict[int, list[Told]] = defaultdict(list)
        """The verdicts that were applied, by request_id."""
        self.problems: dict[str, str] = {}
        """What went wrong, and where it first did."""
        self.seconds = array("d")
        """Seconds that each call took, from its begin to its verdict."""
        self.blocked = array("d")
        """Seconds of each call in which nothing else could run in the process."""
        self._timeout = runner.caller.seconds
        self._call, self._close = runner.function, runner.forget
        runner.function = self._call_async if runner.is_async else self._call_sync
        if self._close is not None:
            runner.forget = self._closed

    def _call_sync(self, chunk: Chunk) -> object:
        began = perf_counter()
        try:
            verdict = self._call(chunk)
        except BaseException as error:
            self._raised(error, began, f"on {describe(chunk)}")
            raise
        finally:
            self.seconds.append(perf_counter() - began)
            self.blocked.append(self.seconds[-1])
        return self._answered(chunk, verdict)

    async def _call_async(self, chunk: Chunk) -> object:
        began = perf_counter()
        steps = _TimedSteps(self._call(chunk))
        try:
            verdict = await steps
        except BaseException as error:
            self._raised(error, began, f"on {describe(chunk)}")
            raise
        finally:
            self.seconds.append(perf_counter() - began)
            self.blocked.append(steps.blocked)
        return self._answered(chunk, verdict)

    def _answered(self, chunk: Chunk, verdict: object) -> object:
        if chunk.aborted:
            self.verdicts["aborted"] += 1
        elif isinstance(verdict, Verdict):
            changed = verdict.action == "emit" and verdict.text != chunk.text_diff
            self.verdicts["rewrite" if changed else verdict.action] += 1
            told = (verdict.action, verdict.text, verdict.reason)
            self.told[chunk.request_id].append(told)
        return verdict

    def _closed(self, request_id: int) -> None:
        assert self._close is not None
        began = perf_counter()
        try:
            result = self._close(request_id)
        except BaseException as error:
            self._raised(error, began, "in close()")
            raise
        if inspect.iscoroutine(result):
            result.close()
            self.problems["close() is async, and is not awaited"] = ": write a plain def"

    def _raised(self, error: BaseException, began: float, where: str) -> None:
        if was_cut(error) or perf_counter() - began >= self._timeout:
            what = f"{TOOK_LONGER} {self._timeout:g} s"
        else:
            last = traceback.extract_tb(error.__traceback__)[-1]
            words = f"{type(error).__name__}: {error}".removesuffix(": ")
            what = f"raised {words} ({Path(last.filename).name}:{last.lineno})"
        self.problems.setdefault(what, f" {where}")


def was_cut(error: BaseException) -> bool:
    """Whether whoever makes the call ended the call. Its time began before the probe's."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, OverdueError)


class _TimedSteps:
    """Awaits a coroutine, and adds up the time it holds the event loop."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self.blocked = 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        work = self._work.__await__()
        step, value = work.send, None
        while True:
            began = perf_counter()
            try:
                awaited = step(value)
            except StopIteration as done:
                return done.value
            finally:
                self.blocked += perf_counter() - began
            try:
                value = yield awaited
                step = work.send
            except BaseException as error:  # noqa: BLE001 - it is the coroutine's to handle
                value, step = error, work.throw


def describe(chunk: Chunk) -> str:
    if chunk.aborted:
        return "the final call of an aborted request"
    kind = "final chunk" if chunk.is_final else "chunk"
    text = repr(chunk.text_diff[:40]) if chunk.text_diff else "without text"
    return f"{chunk.phase}'s {kind} {text}"
