"""Hand-overs between two real vLLM workers that are taken late, twice or never, as many as are
asked for, while other prompts take the pages:

    .venv-vllm/bin/python tests/contract/vllm_leases.py --hand-overs 10000

Each is answered from, refused or given up. `wrong` counts tokens that are not those of the prompt,
and `hung` what did not end in time: both have to be 0. Each kind says how many were answered.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import psutil  # noqa: E402 - the path comes first
from worker_pair import (  # noqa: E402
    FINISHED,
    Pair,
    Stream,
    Told,
    WorkerProcess,
    connected,
    launched_pair,
    options_flag,
)

from tandem.v1 import common_pb2, worker_pb2  # noqa: E402

MODEL_PATH = HERE.parents[1] / "model" / "tandem-tiny"
HANDOVER_SECONDS = 3
LEASE_SECONDS = 2 * HANDOVER_SECONDS + 5
PAGES = 192
PAGE_BYTES = 131_072
BATCH = 100
"""Hand-overs at a time. All of them together, and what takes their pages, are more than PAGES."""
PROMPTS, TOKENS = 120, 5
READY_SECONDS = 400.0
DEADLINE_SECONDS = 60.0
PATIENCE = 4 * DEADLINE_SECONDS
"""A leg that has not ended by then hangs: a busy machine may be late with a deadline."""
FLAGS = (
    "--max-sequences=256",
    f"--max-parked={BATCH}",
    options_flag(
        f"dtype=float32,context_length=512,handover_timeout_seconds={HANDOVER_SECONDS},"
        f"kv_cache_bytes={PAGES * PAGE_BYTES}"
    ),
)


@dataclass
class Tally:
    begun: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    refused: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Messages of errors."""
    wrong: list[str] = field(default_factory=list)
    hung: int = 0

    def __str__(self) -> str:
        begun, answered = self.begun.total(), self.answered.total()
        return f"{begun} hand-overs, {answered} answers, {len(self.wrong)} wrong, {self.hung} hung"


@dataclass(slots=True)
class Leg:
    """One leg of a hand-over, and whose prompt it has."""

    number: int
    stream: Stream
    prompt: int


class Leases:
    """Two workers, and what is done to the hand-overs between them."""

    def __init__(self, pair: Pair, workers: Sequence[WorkerProcess], seed: int) -> None:
        self.tally = Tally()
        self._pair = pair
        self._workers = workers
        worker = psutil.Process(workers[1].process.pid)
        (self._engine,) = (each for each in worker.children() if "EngineCore" in each.cmdline()[0])
        self._random = Random(seed)
        self._numbers = 0
        self._prompts = [self._made() for _ in range(PROMPTS)]
        self._answers: list[list[int]] = []
        self._kinds: dict[str, Callable[[str], Awaitable[None]]] = {
            "twice": self._twice,
            "twice, parked": self._twice_parked,
            "never": self._never,
            "called late": self._called_late,
            "read late": self._read_late,
            "cancelled": self._cancelled,
        }

    async def run(self, hand_overs: int, only: str) -> Tally:
        """So many, of the kinds with that in their names; none more behind one that hangs."""
        self._kinds = {name: make for name, make in self._kinds.items() if only in name}
        await self._learn()
        while sum(self.tally.begun.values()) < hand_overs:
            for kind, make in self._kinds.items():
                for stream in (self._pair.prefill, self._pair.decode):
                    stream.told = Told()
                self.tally.begun[kind] += BATCH
                try:
                    await make(kind)
                except TimeoutError:
                    self.tally.hung += 1
                    return self.tally
            print(self.tally, file=sys.stderr, flush=True)
        return self.tally

    # --- the kinds ---------------------------------------------------------------------------

    async def _twice(self, kind: str) -> None:
        """A second leg calls for a room that was read."""
        rooms = await self._both()
        for _, decode in rooms.values():
            await self._judge(kind, decode)
        again = [await self._decode(room, leg.prompt) for room, (leg, _) in rooms.items()]
        for leg in again:
            await self._judge(kind, leg)

    async def _twice_parked(self, kind: str) -> None:
        """Two legs, one after the other, or at once, of a prompt whose KV is parked."""
        parked = {}
        for room in self._rooms():
            parked[room] = await self._prefill(room, self._any(), context_only=True)
        legs = []
        for room, leg in parked.items():
            await self._closed(leg)
            for said in leg.stream.told.of(leg.number, "parked"):
                given = {"task_digest": said.task_digest}
                legs += [await self._decode(room, leg.prompt, **given) for _ in range(2)]
        for leg in legs:
            await self._judge(kind, leg)

    async def _never(self, kind: str) -> None:
        """No decode leg calls."""
        for leg in [await self._prefill(room, self._any()) for room in self._rooms()]:
            await self._judge(kind, leg)

    async def _called_late(self, kind: str) -> None:
        """Decode calls when prefill has waited for long enough."""
        legs = {room: await self._prefill(room, self._any()) for room in self._rooms()}
        for leg in legs.values():
            await self._closed(leg)
        for leg in [await self._decode(room, leg.prompt) for room, leg in legs.items()]:
            await self._judge(kind, leg)

    async def _read_late(self, kind: str) -> None:
        """Decode's engine stands still until the leases are over and the pages are others'."""
        self._engine.suspend()
        try:
            until = time.monotonic() + LEASE_SECONDS + 1
            rooms = await self._both()
            while time.monotonic() < until:
                await self._take_pages()
            for _ in range(-(-PAGES // BATCH)):
                await self._take_pages()
        finally:
            self._engine.resume()
        await self._judge_beside_others(kind, [decode for _, decode in rooms.values()])

    async def _cancelled(self, kind: str) -> None:
        """Prefill's legs are cancelled while decode, which stands still for a moment, may read."""
        self._engine.suspend()
        try:
            rooms = await self._both()
            await self._all_are_told()
            await self._cancel([prefill for prefill, _ in rooms.values()])
            for _ in range(-(-PAGES // BATCH)):
                await self._take_pages(HANDOVER_SECONDS / 10)
        finally:
            self._engine.resume()
        await self._judge_beside_others(kind, [decode for _, decode in rooms.values()])

    async def _all_are_told(self) -> None:
        """Until decode knows of the KV of a whole batch, or soon would give that up."""
        until = time.monotonic() + HANDOVER_SECONDS / 2
        told = 0.0
        while told < BATCH and time.monotonic() < until:
            name, state = "tandem_engine_requests", "transferring"
            told = await asyncio.to_thread(self._workers[0].total, name, state=state)

    async def _judge_beside_others(self, kind: str, legs: Sequence[Leg]) -> None:
        """Prefill has other requests meanwhile: on a CPU, where NIXL has no thread of its own,
        nobody would read anything from a prefill engine that has nothing to do.
        """
        over = asyncio.Event()

        async def others() -> None:
            while not over.is_set():
                await self._take_pages()

        async with asyncio.TaskGroup() as group:
            group.create_task(others())
            try:
                for leg in legs:
                    await self._judge(kind, leg)
            finally:
                over.set()

    # --- legs --------------------------------------------------------------------------------

    async def _learn(self) -> None:
        """What each prompt is answered, with nothing beside. A busy machine may be too late for a
        hand-over, which is then made again, as often as there are prompts.
        """
        tries = 0
        while (number := len(self._answers)) < PROMPTS:
            tries += 1
            assert tries <= 2 * PROMPTS, "hand-overs fail with nothing beside them"
            room = self._room()
            for stream in (self._pair.prefill, self._pair.decode):
                stream.told = Told()
            legs = await self._prefill(room, number), await self._decode(room, number)
            ended = [await self._closed(leg) for leg in legs]
            if all(each.outcome == FINISHED for each in ended):
                self._answers.append([token for leg in legs for token in self._said(leg)])
        assert {len(answer) for answer in self._answers} == {TOKENS}
        rest = {tuple(answer[1:]) for answer in self._answers}
        assert len(rest) > 0.9 * PROMPTS, "other pages would give other answers"

    def _made(self) -> list[int]:
        """A prompt that fills one page at most."""
        return [self._random.randrange(100, 1900) for _ in range(self._random.randint(8, 31))]

    def _any(self) -> int:
        return self._random.randrange(PROMPTS)

    def _room(self) -> int:
        return secrets.randbits(62) | 1

    def _rooms(self) -> list[int]:
        return [self._room() for _ in range(BATCH)]

    async def _both(self) -> dict[int, tuple[Leg, Leg]]:
        legs = {}
        for room in self._rooms():
            prompt = self._any()
            legs[room] = await self._prefill(room, prompt), await self._decode(room, prompt)
        return legs

    async def _take_pages(self, seconds: float = 0.3) -> None:
        """Other prompts come and go in prefill."""
        legs = [await self._prefill(room, self._any()) for room in self._rooms()]
        await asyncio.sleep(seconds)
        await self._cancel(legs)
        for leg in legs:
            await self._closed(leg)

    async def _cancel(self, legs: Sequence[Leg]) -> None:
        cancel = [worker_pb2.CancelLeg(leg=leg.number, reason="test") for leg in legs]
        await self._pair.prefill.send(cancel=cancel)

    async def _prefill(self, room: int, prompt: int, **fields: Any) -> Leg:
        return await self._start(self._pair.prefill, room, prompt, fields)

    async def _decode(self, room: int, prompt: int, **fields: Any) -> Leg:
        fields["kv_peer"] = self._pair.kv_peer
        return await self._start(self._pair.decode, room, prompt, fields)

    async def _start(self, stream: Stream, room: int, prompt: int, fields: dict[str, Any]) -> Leg:
        self._numbers += 1
        task = common_pb2.Task(
            trace_id=f"{self._numbers:032x}",
            model="tandem-tiny",
            prompt_token_ids=self._prompts[prompt],
            want_token_ids=True,
            streaming=True,
            sampling=common_pb2.SamplingParams(
                max_tokens=TOKENS, top_p=1, top_k=-1, repetition_penalty=1, ignore_eos=True
            ),
        )
        start = worker_pb2.StartLeg(
            leg=self._numbers,
            destination=1,
            sequence=self._numbers,
            room=room,
            timeout_ms=int(1000 * DEADLINE_SECONDS),
            task=task.SerializeToString(),
            **fields,
        )
        await stream.send(start=[start])
        return Leg(self._numbers, stream, prompt)

    async def _closed(self, leg: Leg) -> Any:
        def ended(told: Told) -> Any:
            return told.of(leg.number, "closed") or told.of(leg.number, "parked")

        await leg.stream.until(ended)
        return ended(leg.stream.told)[0]

    def _said(self, leg: Leg) -> list[int]:
        found: list[int] = []
        for columns in leg.stream.told.columns:
            place = 0
            for number, count in zip(columns.sequence, columns.token_count, strict=True):
                if number == leg.number:
                    found += columns.token_id[place : place + count]
                place += count
        return found

    async def _judge(self, kind: str, leg: Leg) -> None:
        """Whatever came must be the prompt's; of one that finished, all."""
        closed, answer = await self._closed(leg), self._answers[leg.prompt]
        said = self._said(leg)
        right = [answer, answer[1:]] if leg.stream is self._pair.decode else [answer[:1]]
        if closed.outcome == FINISHED:
            self.tally.answered[kind] += 1
            good = said in right
        else:
            self.tally.refused[kind][closed.error.message] += 1
            good = any(said == each[: len(said)] for each in right)
        if not good:
            self.tally.wrong.append(f"{kind}: {said}, not {answer}")


def workers(
    model_path: Path, folder: Path
) -> AbstractContextManager[tuple[WorkerProcess, WorkerProcess]]:
    return launched_pair("vllm", model_path, folder, ready_seconds=READY_SECONDS, flags=FLAGS)


async def run(
    given: Sequence[WorkerProcess], *, hand_overs: int, seed: int, only: str = ""
) -> Tally:
    async with connected(given) as pair:
        for stream in (pair.prefill, pair.decode):
            stream.patience = PATIENCE
        tally = await Leases(pair, given, seed).run(hand_overs, only)
        if not tally.hung:
            await pair.idle()
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hand-overs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="kinds with this in their names")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, workers(MODEL_PATH, Path(folder)) as pair:
        tally = asyncio.run(
            run(pair, hand_overs=given.hand_overs, seed=given.seed, only=given.only)
        )
    print("| taken | hand-overs | answered | refused |\n| --- | --- | --- | --- |")
    for kind, count in tally.begun.items():
        said = "; ".join(f"{number} {each}" for each, number in tally.refused[kind].items())
        print(f"| {kind} | {count} | {tally.answered[kind]} | {said} |")
    print("\n".join(tally.wrong[:5]))
    said = f"{tally}, {time.monotonic() - began:.0f} s"
    print(said)
    sys.exit(said if tally.wrong or tally.hung else 0)


if __name__ == "__main__":
    main()
