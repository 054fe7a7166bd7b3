"""Hand-overs between a real prefill and a real decode engine of SGLang, on the CPU, over a transfer
that does some of its writes wrong (transfer_faults.py), as many as are asked for.

    python tests/contract/wrong_kv.py --hand-overs 10000
    python tests/contract/wrong_kv.py --hand-overs 300 --mutants

Each hand-over is answered from or refused. `wrong` counts answers that are not those of the prompt,
or that came of KV of another prompt, tenant or adapter; `needless` refusals of hand-overs that
nothing happened to. Both have to be 0. With --mutants decode leaves parts of its check out, one
after the other, and wrong answers have to be found each time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from transfer_faults import ANOTHERS, BLIND, FAULTS, OF_TRANSFER, TOLD, Fault, room_of
from worker_pair import (
    FINISHED,
    ROOT,
    WITHOUT_FORMS,
    Pair,
    Sequence_,
    WorkerProcess,
    connected,
    launched_pair,
)

from tandem.engine.kv_tag import KvTag

sys.path.insert(0, str(ROOT / "scripts"))
from make_lora_adapter import make

READY_SECONDS = 800.0
PROMPTS, TOKENS, AT_ONCE = 40, 2, 64
SHARE = 0.4
"""Of the hand-overs to which something is done."""
ADAPTERS, SALTS = ("", "sql", "law"), ("", "acme", "umbrella")
MUTANTS = {
    "the tag": KvTag._fields,
    "whose prompt": ("prompt", "prompt_rest"),
    "whose adapter": ("adapter",),
    "whose salt": ("salt",),
    "the bytes": ("contents",),
}
"""What decode may leave out, and the numbers of the tag that say that."""
# Few pages, which come round soon. In float32 no rounding decides between two tokens.
OPTIONS = f"device=cpu,dtype=float32,max_total_tokens=1024,kv_check=bytes,{WITHOUT_FORMS}"
Workers = tuple[WorkerProcess, WorkerProcess]


class Asked(NamedTuple):
    """What a leg is asked for."""

    prompt: int
    adapter: str
    salt: str


@dataclass
class Tally:
    """What became of hand-overs, by the fault that was meant for them."""

    injected: Counter[Fault] = field(default_factory=Counter)
    answered: Counter[Fault] = field(default_factory=Counter)
    refused: Counter[Fault] = field(default_factory=Counter)
    wrong: Counter[Fault] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    """What the transfer says that it did."""
    needless: int = 0
    said: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = [
            f"{self.injected.total()} hand-overs",
            f"{self.answered.total()} answered, {self.refused.total()} refused as corrupt",
            f"wrong answers: {self.wrong.total()}; needless refusals: {self.needless}",
        ]
        lines += [
            f"  {fault:8} {self.injected[fault]:6} injected {self.refused[fault]:6} refused"
            f" {self.wrong[fault]:6} wrong"
            for fault in FAULTS
        ]
        none = Fault.NONE
        lines.append(
            f"  of none  {self.injected[none]:6} hand-overs {self.refused[none]:5} refused"
            f" {self.wrong[none]:6} wrong; {self.done[ANOTHERS]} hit by another's bytes"
        )
        lines += [f"  {count:6} {said}" for said, count in self.said.most_common()]
        return "\n".join(lines)


class WrongKv:
    """Hand-overs, and what should come of them."""

    def __init__(self, workers: Workers, folder: Path, *, seed: int) -> None:
        """`folder`: that of `between_engines`."""
        self.tally = Tally()
        self._workers, self._folder, self._read = workers, folder, 0
        self._random = random.Random(seed)
        self._prompts = self._make_prompts()
        self._right: dict[tuple[int, str], list[int]] = {}

    async def run(
        self, hand_overs: int, *, seconds: float = math.inf, without: Sequence[str] = ()
    ) -> Tally:
        """So many, or as many as `seconds` allow. `without`: decode compares all of a tag but these
        numbers.
        """
        until = time.monotonic() + seconds
        (self._folder / BLIND).write_text(" ".join(without))
        self.tally = Tally()
        if not self._right:
            await self._ask_for_what_is_right()
        while (left := hand_overs - self.tally.injected.total()) > 0 and time.monotonic() < until:
            async with connected(self._workers) as pair:
                await self._round(pair, min(left, AT_ONCE))
        return self.tally

    async def _ask_for_what_is_right(self) -> None:
        """Of each prompt with each adapter, before anything is done to a hand-over."""
        for adapter in ADAPTERS:
            async with connected(self._workers) as pair:
                asked = [Asked(number, adapter, "") for number in range(PROMPTS)]
                sequences = [await self._start(pair, each, each, Fault.NONE) for each in asked]
                for each, sequence in zip(asked, sequences, strict=True):
                    await pair.finished_well(sequence)
                    self._right[each.prompt, adapter] = _tokens(pair, sequence)

    async def _round(self, pair: Pair, count: int) -> None:
        begun = []
        for _ in range(count):
            fault = Fault.NONE
            if self._random.random() < SHARE:
                fault = self._random.choice(FAULTS)
            self.tally.injected[fault] += 1
            asked, computed, room = *self._draw(fault), room_of(fault, self._random.getrandbits(58))
            sequence = await self._start(pair, asked, computed, fault, room=room)
            begun.append((asked, fault, room, sequence))
        closed = [await pair.finished(sequence) for *_, sequence in begun]
        hit = self._hit()
        for (asked, fault, room, sequence), (prefill, decode) in zip(begun, closed, strict=True):
            if decode.outcome == FINISHED:
                assert prefill.outcome == FINISHED, prefill
                self.tally.answered[fault] += 1
                right = self._right[asked.prompt, asked.adapter] == _tokens(pair, sequence)
                others = bool(fault) and fault not in OF_TRANSFER
                self.tally.wrong[fault] += others or not right
                continue
            assert decode.error.code == "kv_corrupt", decode
            self.tally.refused[fault] += 1
            self.tally.said[decode.error.message] += 1
            self.tally.needless += not fault and room not in hit
        await pair.idle()

    def _draw(self, fault: Fault) -> tuple[Asked, Asked]:
        """What decode is asked for, and what prefill is."""
        draw = self._random.choice
        asked = Asked(self._random.randrange(PROMPTS), draw(ADAPTERS), draw(SALTS))
        match fault:
            case Fault.PROMPT:
                return asked, asked._replace(prompt=self._another(asked.prompt))
            case Fault.TENANT:
                return asked, asked._replace(salt=draw([x for x in SALTS if x != asked.salt]))
            case Fault.ADAPTER:
                other = [x for x in ADAPTERS if x != asked.adapter]
                return asked, asked._replace(adapter=draw(other))
        return asked, asked

    def _another(self, prompt: int) -> int:
        """Another of the same length."""
        length = len(self._prompts[prompt])
        alike = [n for n, each in enumerate(self._prompts) if len(each) == length and n != prompt]
        return self._random.choice(alike)

    async def _start(
        self, pair: Pair, asked: Asked, computed: Asked, fault: Fault, *, room: int | None = None
    ) -> Sequence_:
        room = room_of(fault, self._random.getrandbits(58)) if room is None else room
        return await pair.start(
            room=room,
            task=self._task(computed),
            decode_task=self._task(asked),
            max_tokens=TOKENS,
        )

    def _task(self, asked: Asked) -> dict[str, object]:
        return {
            "prompt_text": "",
            "prompt_token_ids": self._prompts[asked.prompt],
            "lora_adapter": asked.adapter,
            "cache_salt": asked.salt,
            "want_text": False,
            "want_token_ids": True,
        }

    def _hit(self) -> set[int]:
        """The rooms to whose KV anything was done in this round."""
        lines = (self._folder / TOLD).read_text().splitlines()
        new, self._read = lines[self._read :], len(lines)
        told = [line.split(maxsplit=1) for line in new]
        self.tally.done.update(what for _, what in told)
        return {int(room) for room, _ in told}

    def _make_prompts(self) -> list[list[int]]:
        """Many begin alike, and all end alike. Of each length there are several."""
        draw = self._random
        heads = [[draw.randrange(300, 1900) for _ in range(2)] for _ in range(3)]
        lengths = itertools.islice(itertools.cycle((1, 2, 3)), PROMPTS)
        return [
            [*draw.choice(heads), *(draw.randrange(300, 1900) for _ in range(length)), 300]
            for length in lengths
        ]


def _tokens(pair: Pair, sequence: Sequence_) -> list[int]:
    """All sequences of the pair want token ids."""
    found = []
    for columns in (*pair.prefill.told.columns, *pair.decode.told.columns):
        ids = iter(columns.token_id)
        for number, count in zip(columns.sequence, columns.token_count, strict=True):
            own = list(itertools.islice(ids, count))
            found += own if number == sequence.number else []
    return found


@contextmanager
def between_engines(folder: Path) -> Iterator[Workers]:
    """A pair whose transfer misbehaves. In the folder it says what it did, and is told what decode
    leaves out.
    """
    files = {name: folder / name for name in (TOLD, BLIND)}
    for file in files.values():
        file.touch()
    model = ROOT / "model" / "tandem-tiny"
    adapters = [
        f"{name}={make(model, folder / name, seed=seed)}"
        for seed, name in enumerate(ADAPTERS)
        if name
    ]
    flags = (
        f"--engine-options={OPTIONS}",
        f"--lora-adapters={','.join(adapters)}",
        "--logits-processors=transfer_faults=transfer_faults:Loads",
        f"--max-sequences={AT_ONCE}",
    )
    with (
        mock.patch.dict(os.environ, {name: str(file) for name, file in files.items()}),
        launched_pair("sglang", model, folder, ready_seconds=READY_SECONDS, flags=flags) as workers,
    ):
        yield workers


async def try_mutants(wrong_kv: WrongKv, hand_overs: int) -> bool:
    """Prints a table. Whether wrong answers were found of each."""
    found = []
    for name, without in MUTANTS.items():
        wrong = (await wrong_kv.run(hand_overs, without=without)).wrong
        by_fault = ", ".join(f"{fault or ANOTHERS} {n}" for fault, n in wrong.items() if n)
        print(f"decode does not compare {name:14} {wrong.total():4} wrong: {by_fault}", flush=True)
        found.append(wrong.total() > 0)
    return all(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--hand-overs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutants", action="store_true", help="leave parts of the check out")
    given = parser.parse_args()
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    with tempfile.TemporaryDirectory() as made, between_engines(Path(made)) as workers:
        wrong_kv = WrongKv(workers, Path(made), seed=given.seed)
        if given.mutants:
            return 0 if asyncio.run(try_mutants(wrong_kv, given.hand_overs)) else 1
        began = time.monotonic()
        tally = asyncio.run(wrong_kv.run(given.hand_overs, seconds=given.seconds))
        print(f"{tally}\nin {time.monotonic() - began:.0f} s")
    return 0 if not tally.wrong.total() and not tally.needless else 1


if __name__ == "__main__":
    sys.exit(main())
