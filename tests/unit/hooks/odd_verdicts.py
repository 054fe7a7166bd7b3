"""Answers that no hook should give: what each is called, how it is made, and what is said of it.

A chunk's text names the answer, so that one hook gives them all, in whatever process it runs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tandem.hooks.contract import Chunk, Verdict, emit, suppress, terminate
from tandem.usercode.call import Failed

ARRAY = np.array([1, 2])
MILLION = 1_000_000


def _exit(*_: Any, **__: Any) -> Any:
    raise SystemExit(9)


class RaisingText(str):
    """Raises whatever is asked of it."""

    __slots__ = ()
    __eq__ = __hash__ = __len__ = __bool__ = __str__ = __repr__ = __add__ = __iter__ = _exit  # type: ignore[assignment]
    __reduce__ = __reduce_ex__ = __contains__ = __getitem__ = __format__ = __ne__ = _exit  # type: ignore[assignment]
    encode = isascii = startswith = _exit  # type: ignore[assignment]


class LyingText(str):
    """Says that it is short, equal to everything, and valid."""

    __slots__ = ()

    def __len__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__

    def __str__(self) -> str:
        return "a lie"

    def encode(self, *_: Any, **__: Any) -> bytes:
        return b""


class RaisingKind(type):
    __eq__ = __hash__ = __instancecheck__ = __subclasscheck__ = _exit  # type: ignore[assignment]
    __name__ = property(_exit)  # type: ignore[assignment]


class TextOfRaisingKind(str, metaclass=RaisingKind):
    __slots__ = ()


class OddIndex(int):
    __index__ = __eq__ = __hash__ = __le__ = __lt__ = __bool__ = __add__ = _exit  # type: ignore[assignment]


class LyingIndex(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__

    def __index__(self) -> int:
        return 10**9


class Subclass(Verdict):
    """Its fields run code."""

    text = property(_exit)  # type: ignore[assignment]

    def __init__(self) -> None:
        self.action = "emit"


class Changing(Verdict):
    """Another text each time that it is asked."""

    def __init__(self) -> None:
        super().__init__("emit", "x")
        self.asked = 0

    @property
    def text(self) -> Any:
        self.asked += 1
        return "first" if self.asked == 1 else 7

    @text.setter
    def text(self, value: str) -> None:
        pass


class Pretending:
    """Says of itself that it is a verdict."""

    __class__ = Verdict  # type: ignore[assignment]
    action, text, reason, hold_tokens, show_tokens = "emit", "x", "", 0, True


class LongErrorError(Exception):
    """Neither its text nor its traceback can be read."""

    __traceback__ = property(_exit)  # type: ignore[assignment]
    __str__ = __repr__ = _exit  # type: ignore[assignment]


LongErrorError.__name__ = "Long" * MILLION


def _lacks_a_field() -> Verdict:
    verdict = emit("x")
    del verdict.text
    return verdict


def _raise(error: BaseException) -> Any:
    raise error


def _generator() -> Iterator[Verdict]:
    yield emit("x")


async def _coroutine() -> Verdict:
    return emit("x")


def _any(**fields: Any) -> Any:
    return Verdict(**{"action": "emit", "text": "x", **fields})


FAILING: dict[str, tuple[Callable[[], Any], str]] = {
    "an array as verdict": (lambda: ARRAY, "answered ndarray"),
    "an array as text": (lambda: _any(text=ARRAY), "text is ndarray"),
    "an array as held": (lambda: _any(hold_tokens=ARRAY), "ValueError"),
    "an array as shown": (lambda: _any(show_tokens=ARRAY), "ValueError"),
    "an array as action": (lambda: _any(action=ARRAY), "unknown action"),
    "an array as reason": (lambda: _any(action="terminate", reason=ARRAY), "reason is ndarray"),
    "a lying action": (lambda: _any(action=LyingText("nonsense")), "unknown action"),
    "a lying invalid text": (lambda: emit(LyingText("\ud800")), "not valid Unicode"),
    "a lying long text": (lambda: emit(LyingText("x" * 3 * MILLION)), "added more than"),
    "an odd index": (lambda: _any(hold_tokens=OddIndex(1)), "SystemExit"),
    "an odd truth": (lambda: _any(show_tokens=OddIndex(1)), "SystemExit"),
    "a generator": (_generator, "answered generator"),
    "a coroutine": (_coroutine, "answered coroutine"),
    "a subclass whose fields raise": (Subclass, "SystemExit"),
    "no verdict that pretends": (Pretending, "answered Pretending"),
    "a verdict without its text": (_lacks_a_field, "AttributeError"),
    "a verdict without any field": (lambda: Verdict.__new__(Verdict), "AttributeError"),
    "the class itself": (lambda: Verdict, "answered type"),
    "a huge int": (lambda: _any(hold_tokens=10**5000), "more tokens than there are"),
    "a negative huge int": (lambda: _any(hold_tokens=-(10**5000)), "more tokens than there are"),
    "a float": (lambda: _any(hold_tokens=1.0), "more tokens than there are"),
    "not a number": (lambda: _any(hold_tokens=float("nan")), "more tokens than there are"),
    "a surrogate": (lambda: emit("a\udfffb"), "not valid Unicode"),
    "a surrogate as reason": (lambda: terminate("\ud800"), "not valid Unicode"),
    "a surrogate as last text": (lambda: terminate("r", text="\ud800"), "not valid Unicode"),
    "no text as reason": (lambda: terminate(object()), "reason is object"),  # type: ignore[arg-type]
    "bytes as reason": (lambda: terminate(b"r"), "reason is bytes"),  # type: ignore[arg-type]
    "a long reason": (lambda: terminate("r" * 20 * MILLION), "reason is longer than 1000"),
    "a lying long reason": (lambda: terminate(LyingText("r" * MILLION)), "longer than 1000"),
    "a long text": (lambda: emit("x" * 17 * MILLION), "longer than 8388608"),
    "more than may be added": (lambda: emit("ö" * 2 * MILLION), "added more than 1048576"),
    "too long a last text": (lambda: terminate("r", text="x" * 2 * MILLION), "added more than"),
    "nothing": (lambda: None, "answered NoneType"),
    "a text": (lambda: "text", "answered str"),
    "another action": (lambda: Verdict("explode"), "unknown action"),  # type: ignore[arg-type]
    "a list as action": (lambda: _any(action=[]), "unknown action"),
    "no text": (lambda: emit(None), "text is NoneType"),  # type: ignore[arg-type]
    "bytes as text": (lambda: emit(b"x"), "text is bytes"),  # type: ignore[arg-type]
    "too much held": (lambda: _any(hold_tokens=2), "more tokens than there are"),
    "less than nothing held": (lambda: _any(hold_tokens=-1), "more tokens than there are"),
    "a truth as held": (lambda: _any(hold_tokens=True), "more tokens than there are"),
    "a raise": (lambda: _raise(RuntimeError("a secret")), "RuntimeError"),
    "the end of an iterator": (lambda: _raise(StopIteration()), ""),
    "an error of a long name": (lambda: _raise(LongErrorError()), "LongLong"),
    "a cancellation": (lambda: _raise(asyncio.CancelledError()), "CancelledError"),
    "the end of a generator": (lambda: _raise(GeneratorExit()), ""),
    "an interrupt": (lambda: _raise(KeyboardInterrupt()), "KeyboardInterrupt"),
    "an exit": (lambda: sys.exit(3), "SystemExit"),
    "no memory": (lambda: _raise(MemoryError()), "MemoryError"),
    "a flood of memory": (lambda: bytearray(2**62), "MemoryError"),
    "endless recursion": (lambda: FAILING["endless recursion"][0](), "RecursionError"),
    "a failure of ours": (lambda: Failed("no exception"), ""),  # type: ignore[arg-type]
    "half a failure of ours": (lambda: Failed.__new__(Failed), ""),
}
"""By name: what makes the answer, and words of the error."""

READ: dict[str, tuple[Callable[[], Any], str | None]] = {
    "a text that raises": (lambda: emit(RaisingText("as it is")), "as it is"),
    "a text that lies": (lambda: emit(LyingText("as it is")), "as it is"),
    "a text of a raising kind": (lambda: emit(TextOfRaisingKind("as it is")), "as it is"),
    "an action that raises": (lambda: _any(action=RaisingText("suppress")), None),
    "an index that lies": (lambda: _any(text="as it is", hold_tokens=LyingIndex(5)), "as it is"),
    "an array of zero": (lambda: _any(text="as it is", hold_tokens=np.array(0)), "as it is"),
    "a text that changes": (Changing, "first"),
    "a reason that nobody reads": (lambda: _any(text="as it is", reason=ARRAY), "as it is"),
    "an NUL": (lambda: emit("a\0b"), "a\0b"),
    "300,000 characters": (lambda: emit("x" * 300_000), "x" * 300_000),
    "as much as may be added": (lambda: emit("ö" * MILLION), "ö" * MILLION),
    "a suppress with an odd text": (lambda: _any(action="suppress", text=LyingText("x")), None),
    "a plain suppress": (suppress, None),
}
"""Answers that can be read: what makes them, and what is shown."""


def _answer(name: str) -> Any:
    if name in FAILING:
        return FAILING[name][0]()
    return READ[name][0]() if name in READ else emit(name)


class Odd:
    def __call__(self, chunk: Chunk) -> Any:
        return emit("") if chunk.aborted else _answer(chunk.text_diff)


class AsyncOdd:
    async def __call__(self, chunk: Chunk) -> Any:
        await asyncio.sleep(0)
        return emit("") if chunk.aborted else _answer(chunk.text_diff)
