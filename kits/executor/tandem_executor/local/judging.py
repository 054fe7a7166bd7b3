"""A program's classifiers, judging outputs of workers in another process.

The worker has a stand-in for each (`StandIns`), which sends what is to be judged over the process's
socket; the program's side (`Judges`) asks the classifier itself, and sends the answer back.
Messages are those of tandem.pool.frames, of JSON.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

from tandem.errors import LoadError
from tandem.hooks.classifiers.classifier_set import ClassifierSet
from tandem.hooks.classifiers.contract import ScoringContext, ScoringError
from tandem.hooks.classifiers.runner import ask, reason_of
from tandem.hooks.classifiers.scores import ClassifierAnswer, read
from tandem.ids import counter
from tandem.usercode.call import Caller, Failed
from tandem_executor.errors import ShutDownError
from tandem_executor.live import LiveClassifier

Send = Callable[[bytes], object]
Scored = tuple[dict[str, Any] | None, str]
"""What a classifier answered, or None and one word of why it did not."""
REGISTER, ANSWER = "register", "answer"
"""What the program says."""
REGISTERED, SCORE, CANCEL = "registered", "score", "cancel"
"""What the workers' process says."""

_GIVEN = tuple(each.name for each in fields(ScoringContext))


def message(word: str, *values: Any) -> bytes:
    """One thing that either side says."""
    return json.dumps([word, *values]).encode()


# --- the program's side ---------------------------------------------------------------------------


class Judges:
    """A program's classifiers, on the event loop of its engines."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._closed = False
        self._hooks: dict[str, LiveClassifier] = {}
        self._registering: dict[str, asyncio.Future[None]] = {}
        self._calls: dict[int, asyncio.Task[Scored]] = {}

    async def register(self, hook: LiveClassifier) -> None:
        """Until outputs that begin are judged by it. Raises LoadError where its name is taken, and
        ShutDownError.
        """
        if self._closed:
            raise ShutDownError("The executor has failed")
        if hook.name in self._hooks:
            raise LoadError(f"there are two classifiers named {hook.name!r}")
        self._hooks[hook.name] = hook
        done = self._registering[hook.name] = asyncio.get_running_loop().create_future()
        self._send(message(REGISTER, hook.name, hook.blocking, hook.timeout_ms))
        try:
            await done
        except BaseException:
            del self._hooks[hook.name]
            raise
        finally:
            del self._registering[hook.name]

    def take(self, word: str, *values: Any) -> None:
        """One message of the workers' process."""
        match word, values:
            case "registered", (name, refusal):
                done = self._registering.get(name)
                if done is not None and not done.done():
                    done.set_exception(LoadError(refusal)) if refusal else done.set_result(None)
            case "score", (call, name, given):
                task = asyncio.get_running_loop().create_task(self._score(name, given))
                self._calls[call] = task
                task.add_done_callback(partial(self._scored, call))
            case "cancel", (call,) if call in self._calls:
                self._calls[call].cancel()

    def close(self) -> None:
        """Expect no more messages. Calls that are left end with the event loop."""
        self._closed = True
        for done in self._registering.values():
            done.cancel()

    async def _score(self, name: str, given: dict[str, Any]) -> Scored:
        hook = self._hooks[name]
        caller = Caller(hook.timeout_ms / 1000)
        found = await ask(
            hook, ScoringContext(**given), caller, partial(read, blocking=hook.blocking)
        )
        if isinstance(found, Failed):
            return None, reason_of(found, caller)
        return _plain(found), ""

    def _scored(self, call: int, task: asyncio.Task[Scored]) -> None:
        """The worker waits for one answer to each call, cancelled ones too: some never began."""
        del self._calls[call]
        answer, failure = (None, "cancelled") if task.cancelled() else task.result()
        self._send(message(ANSWER, call, answer, failure))


def _plain(answer: ClassifierAnswer) -> dict[str, Any]:
    """What reads as the same answer."""
    given = {} if answer.replacement is None else {"replacement": answer.replacement}
    return {**answer.scores, **given}


# --- the side of the workers' process -------------------------------------------------------------


class StandIns:
    """What stands in for a program's classifiers in the workers' process."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._classifiers: ClassifierSet | None = None
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_call = counter()

    def take_classifiers(self, classifiers: ClassifierSet) -> None:
        """Take the decode worker's classifiers, to which the program may add."""
        self._classifiers = classifiers

    def take(self, word: str, *values: Any) -> None:
        """One message of the program."""
        match word, values:
            case "register", (name, blocking, timeout_ms):
                self._send(message(REGISTERED, name, self._register(name, blocking, timeout_ms)))
            case "answer", (call, answer, failure) if call in self._calls:
                done = self._calls.pop(call)
                if answer is None:
                    done.set_exception(ScoringError(failure))
                else:
                    done.set_result(answer)

    def _register(self, name: str, blocking: bool, timeout_ms: float) -> str:
        """Returns why not; empty: it is registered."""
        if self._classifiers is None:
            return "there is no decode worker"
        try:
            self._classifiers.register_external_classifier_hook(
                StandIn(name, blocking, timeout_ms, self)
            )
        except LoadError as error:
            return str(error)
        return ""

    async def ask(self, name: str, ctx: ScoringContext) -> dict[str, Any]:
        """What the program's classifier answers. Raises ScoringError where it fails. Cancelled, it
        cancels the call there, and ends when that does.
        """
        call = self._next_call()
        asked = message(SCORE, call, name, {each: getattr(ctx, each) for each in _GIVEN})
        done = self._calls[call] = asyncio.get_running_loop().create_future()
        self._send(asked)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            self._send(message(CANCEL, call))
            await asyncio.wait({done})
            raise


class StandIn:
    """One classifier of the program's."""

    def __init__(self, name: str, blocking: bool, timeout_ms: float, stand_ins: StandIns) -> None:
        self.name, self.blocking, self.timeout_ms = name, blocking, timeout_ms
        self._stand_ins = stand_ins

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        return await self._stand_ins.ask(self.name, ctx)
