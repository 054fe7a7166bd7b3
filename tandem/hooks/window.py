"""The window adapter: write `check`, and the rest is done for you.

    class NoAccounts(WindowHook):
        def check(self, window: Window) -> str | None:
            return ACCOUNT.sub("[account]", window.text)

The adapter holds text back with its token ids, gives `check` a stretch of it at a time, and lets go
what was checked. The last `overlap` characters of a window stay behind and are looked at again in
the next, so that a match of at most `overlap` characters (those that decide where it ends included)
is always seen whole, wherever the windows and the chunks begin and end. What was shown is never
touched again.

What is held is bounded: at most `max_tokens` new tokens or `max_characters` new characters, beside
the overlap and the rest of a chunk. At the bound `check` is asked, and all but the overlap goes.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod

from tandem.errors import LoadError
from tandem.hooks.contract import Chunk, Verdict
from tandem.hooks.windowing import Answer, Block, Flush, Window, Windows

__all__ = ["Answer", "AsyncWindowHook", "Block", "Flush", "Window", "WindowHook"]


class _Adapter:
    def __init__(
        self,
        *,
        max_tokens: int = 64,
        overlap: int = 64,
        flush: Flush = "sentence",
        max_characters: int = 4096,
    ) -> None:
        """`flush` says when `check` is asked: when a whole "sentence" and the overlap are there, at
        the "size" of max_tokens, or at the answer's end, "final"; always at the bounds too.

        Raises LoadError.
        """
        self._windows = Windows(
            max_tokens=max_tokens, overlap=overlap, flush=flush, max_characters=max_characters
        )

    def close(self, request_id: int) -> None:
        """Forget the window of a sequence."""
        self._windows.sequences.close(request_id)


class WindowHook(_Adapter, ABC):
    """Derive from it and write `check`. Its settings are keyword arguments, so they can be given in
    the `config` of the hook's entry.
    """

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if inspect.iscoroutinefunction(cls.check):
            raise LoadError(f"{cls.__name__}.check is async: derive from AsyncWindowHook")

    @abstractmethod
    def check(self, window: Window) -> Answer:
        """The answer for a window. It must depend on the window alone: a window that is rewritten
        is asked for again in parts, and what stays behind is asked for again in the next one.
        """

    def __call__(self, chunk: Chunk) -> Verdict:
        steps = self._windows.judge(chunk)
        try:
            window = next(steps)
            while True:
                window = steps.send(self.check(window))
        except StopIteration as done:
            verdict: Verdict = done.value
            return verdict


class AsyncWindowHook(_Adapter, ABC):
    """WindowHook with an async `check`."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if not inspect.iscoroutinefunction(cls.check):
            raise LoadError(f"{cls.__name__}.check is not async: derive from WindowHook")

    @abstractmethod
    async def check(self, window: Window) -> Answer:
        """Do what WindowHook's `check` does, but await."""

    async def __call__(self, chunk: Chunk) -> Verdict:
        steps = self._windows.judge(chunk)
        try:
            window = next(steps)
            while True:
                window = steps.send(await self.check(window))
        except StopIteration as done:
            verdict: Verdict = done.value
            return verdict
