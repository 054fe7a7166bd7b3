"""Hooks that tests run in processes of a pool. They need the standard library alone."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tandem.hooks.contract import Chunk, Verdict, emit, suppress, terminate


class Upper:
    def __call__(self, chunk: Chunk) -> Verdict:
        return emit(chunk.text_diff.upper())


class Pid:
    """Shows which process it runs in."""

    def __call__(self, chunk: Chunk) -> Verdict:
        return emit(f"{os.getpid()} ")


class Modules:
    """Shows which modules its process has imported."""

    def __call__(self, chunk: Chunk) -> Verdict:
        return emit(" ".join(sorted(sys.modules)))


class Counting:
    """Shows how many chunks of the sequence it has seen, and of all sequences."""

    def __init__(self) -> None:
        self.calls = 0
        self.states: dict[tuple[int, int], int] = {}

    def __call__(self, chunk: Chunk) -> Verdict:
        key = (chunk.request_id, chunk.output_index)
        self.calls += 1
        self.states[key] = self.states.get(key, 0) + 1
        seen = self.states[key]
        if chunk.is_final:
            del self.states[key]
        return emit(f"{seen}/{self.calls}")


class Diary:
    """Writes down what it is told, for the test to read."""

    def __init__(self, *, path: str) -> None:
        self._file = Path(path).open("a", buffering=1)  # noqa: SIM115 - closed in shutdown

    def _note(self, **entry: Any) -> None:
        self._file.write(json.dumps(entry | {"pid": os.getpid()}) + "\n")

    def startup(self) -> None:
        self._note(what="startup")

    def shutdown(self) -> None:
        self._note(what="shutdown")
        self._file.close()

    def close(self, request_id: int) -> None:
        self._note(what="close", request_id=request_id)

    def __call__(self, chunk: Chunk) -> Verdict:
        self._note(
            what="call", request_id=chunk.request_id, final=chunk.is_final, aborted=chunk.aborted
        )
        return obey(chunk)


class Obeying:
    """Does what the text says."""

    def __call__(self, chunk: Chunk) -> Verdict:
        return obey(chunk)


class Memory:
    def __init__(self) -> None:
        self.eaten: list[bytearray] = []

    def __call__(self, chunk: Chunk) -> Verdict:
        while chunk.text_diff == "eat":
            self.eaten.append(bytearray(4 * 1024 * 1024))
        return emit(chunk.text_diff)


def obey(chunk: Chunk) -> Verdict:
    word = chunk.text_diff
    if word == "raise":
        raise RuntimeError("secret words")
    if word == "nonsense":
        return 42  # type: ignore[return-value]
    if word == "exit":
        os._exit(3)
    if word == "hang":
        time.sleep(3600)
    if word == "hang in C":  # no timer reaches it
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        time.sleep(3600)
    if word == "slow":
        time.sleep(0.15)
    if word == "stop":
        return terminate("enough")
    return emit(word)


class AsyncObeying:
    """As Obeying, but for the words that begin with "await"."""

    async def __call__(self, chunk: Chunk) -> Verdict:
        if chunk.text_diff == "await":
            await asyncio.sleep(3600)
        if chunk.text_diff == "await stubbornly":
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    continue
        await asyncio.sleep(0)
        return obey(chunk)


class Scripted:
    """Any verdict, the same in every process: it depends on the sequence, the chunk's number and
    `seed` alone. Holds tokens back, and lets them go later or never.
    """

    def __init__(self, *, seed: int = 0, rare: float = 0.02) -> None:
        self.seed = seed
        self.rare = rare
        self.states: dict[tuple[int, int], list[int]] = {}

    def close(self, request_id: int) -> None:
        for key in [key for key in self.states if key[0] == request_id]:
            del self.states[key]

    def __call__(self, chunk: Chunk) -> Verdict:
        key = (chunk.request_id, chunk.output_index)
        state = self.states.setdefault(key, [0, 0])
        state[0] += 1
        choice = random.Random(f"{self.seed} {key} {state[0]}")
        there = state[1] + len(chunk.token_ids_diff)
        draw = choice.random()
        if draw < self.rare:
            return terminate(f"reason {choice.randrange(9)}", text=choice.choice(["", "bye"]))
        if draw < 2 * self.rare:
            raise RuntimeError
        if draw < 3 * self.rare:
            return 42  # type: ignore[return-value]
        if draw < 0.5:
            state[1] = 0
            return emit(chunk.text_diff)
        held = state[1] = 0 if chunk.is_final else choice.randint(0, there)
        if draw < 0.6:
            return suppress(hold_tokens=held)
        text = choice.choice([chunk.text_diff, "ö" * held, chunk.text_diff[::-1]])
        return emit(text, hold_tokens=held, show_tokens=choice.random() < 0.8)


class AsyncScripted(Scripted):
    async def __call__(self, chunk: Chunk) -> Verdict:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().__call__(chunk)


class Babbling:
    """Writes into every socket it finds."""

    def __call__(self, chunk: Chunk) -> Verdict:
        for name in os.listdir("/proc/self/fd"):
            if os.path.exists(path := f"/proc/self/fd/{name}") and "socket" in os.readlink(path):
                os.write(int(name), b"\x05\0\0\0hello")
        return emit(chunk.text_diff)


class BuiltOnce:
    """Refuses to be built while `mark` exists, and makes it exist."""

    def __init__(self, *, mark: str) -> None:
        Path(mark).touch(exist_ok=False)

    def __call__(self, chunk: Chunk) -> Verdict:
        return obey(chunk)


class WholeAnswer:
    """Shows an answer when it is complete, with its tokens."""

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}

    def __call__(self, chunk: Chunk) -> Verdict:
        tokens = self._tokens.get(chunk.request_id, 0) + len(chunk.token_ids_diff)
        self._tokens[chunk.request_id] = tokens
        return emit(chunk.text) if chunk.is_final else suppress(hold_tokens=tokens)

    def close(self, request_id: int) -> None:
        self._tokens.pop(request_id, None)


class Long:
    """Shows as many characters as the text says, and ends where it says "end" too."""

    def __call__(self, chunk: Chunk) -> Verdict:
        count, _, end = chunk.text_diff.partition(" ")
        if not count.isdigit():
            return emit(chunk.text_diff)
        return terminate("enough", text="ö" * int(count)) if end else emit("ö" * int(count))


class Forking:
    """Forks, and returns in both processes."""

    def __call__(self, chunk: Chunk) -> Verdict:
        if chunk.text_diff == "fork" and os.fork() == 0:
            return emit("not for anybody")
        return emit(chunk.text_diff)


class AsyncForking(Forking):
    async def __call__(self, chunk: Chunk) -> Verdict:  # type: ignore[override]
        verdict = super().__call__(chunk)
        await asyncio.sleep(0.01)
        return verdict


class ForkingAtStart:
    def __init__(self) -> None:
        os.fork()

    def __call__(self, chunk: Chunk) -> Verdict:
        return emit(chunk.text_diff)


class Flooding:
    """Needs more memory than there is, and gives it back."""

    def __call__(self, chunk: Chunk) -> Verdict:
        eaten: list[Any] = []
        while chunk.text_diff == "flood":
            eaten.append(bytearray(4 * 1024 * 1024))
        while chunk.text_diff == "flood with small things":
            eaten.append([chunk.text_diff + str(len(eaten))])
        return emit(chunk.text_diff)
