"""Hand-overs between real SGLang engines on a CPU, over a transfer that misbehaves.

    python tests/contract/kv_mischief_load.py --model-path MODEL --hand-overs 5000

Every answer that is given is compared with that of the same prompt where nothing went wrong. A
fifth of the legs differ besides: decode is asked about another prompt or for another cache salt.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kv_mischief
from worker_pair import WITHOUT_FORMS, Pair, connected, launched_pair

from tandem.v1 import common_pb2, worker_pb2

PROMPTS, TOKENS, AT_ONCE = 24, 4, 12
SHARE = 0.3
READY_SECONDS = 1500.0
"""A machine that others use too is slow."""
Answer = tuple[int, ...]


@dataclass
class Tally:
    """What became of hand-overs."""

    answered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[Answer, Answer]] = field(default_factory=list)
    differing: int = 0
    """Legs that were asked for different things."""
    injected: Counter[str] = field(default_factory=Counter)
    """Faults of the transfer."""


def mischief(folder: Path, faults: str) -> str:
    """The variable that the workers are started with."""
    return f"{faults} {SHARE} {PROMPTS} {folder / 'injected'}"


async def run(pair: Pair, count: int, folder: Path, *, seed: int = 1) -> Tally:
    """So many hand-overs, after one of each prompt that nothing happens to."""
    draw = random.Random(seed)
    prompts = [draw.choices(range(300, 5000), k=draw.randrange(4, 60)) for _ in range(PROMPTS)]
    right = []
    for prompt in prompts:
        ((answer, closed),) = await _ask(pair, [(prompt, {})])
        assert closed.outcome == worker_pb2.LegClosed.OUTCOME_FINISHED, closed
        right.append(answer)
    assert len(set(right)) > PROMPTS // 2, "the model says the same to everything"
    tally = Tally()
    for done in range(0, count, AT_ONCE):
        if done % (20 * AT_ONCE) == 0:  # whoever looks on may lose patience
            refused = tally.refused.total()
            print(
                f"{done}: {tally.answered} answered, {refused} refused, {len(tally.wrong)} wrong",
                flush=True,
            )
        asked, expected = [], []
        for _ in range(AT_ONCE):
            number, other = draw.randrange(PROMPTS), draw.randrange(PROMPTS)
            changes: dict[str, Any] = {}
            if draw.random() < 0.1:
                changes = {"cache_salt": f"another tenant's {number}"}
            elif draw.random() < 0.1 and number != other:
                changes = {"prompt_token_ids": prompts[other]}
            tally.differing += bool(changes)
            asked.append((prompts[number], changes))
            expected.append(None if changes else right[number])
        for (answer, closed), good in zip(await _ask(pair, asked), expected, strict=True):
            if closed.outcome == worker_pb2.LegClosed.OUTCOME_FINISHED:
                tally.answered += 1
                if answer != good:
                    tally.wrong.append((answer, good or ()))
            else:
                tally.refused[f"{closed.error.code}: {closed.error.message}"] += 1
    file = folder / "injected"
    tally.injected.update(file.read_text().split() if file.exists() else ())
    return tally


async def _ask(
    pair: Pair, asked: list[tuple[list[int], dict[str, Any]]]
) -> list[tuple[Answer, worker_pb2.LegClosed]]:
    """What decode said to each, and how its leg closed."""
    started = [
        await pair.start(
            task={"prompt_text": "", "prompt_token_ids": prompt, "want_token_ids": True},
            decode_task=changes,
            max_tokens=TOKENS,
        )
        for prompt, changes in asked
    ]
    pair.decode.told.columns.clear()
    closed = [(await pair.finished(each))[1] for each in started]
    said: dict[int, list[int]] = {}
    for columns in pair.decode.told.columns:
        _add(columns, said)
    for stream in (pair.prefill, pair.decode):
        stream.told.columns.clear()
        stream.told.events.clear()
    return [
        (tuple(said.get(each.number, ())), end) for each, end in zip(started, closed, strict=True)
    ]


def _add(columns: common_pb2.TokenColumns, said: dict[int, list[int]]) -> None:
    tokens = iter(columns.token_id)
    for number, count in zip(columns.sequence, columns.token_count, strict=True):
        said.setdefault(number, []).extend(next(tokens) for _ in range(count))


async def _load(given: argparse.Namespace, workers: Any, folder: Path) -> int:
    async with connected(workers) as pair:
        began = time.monotonic()
        tally = await run(pair, given.hand_overs, folder)
        print(f"{given.hand_overs} hand-overs in {time.monotonic() - began:.0f} s", flush=True)
    print(f"faults of the transfer: {dict(tally.injected)}; legs that differ: {tally.differing}")
    print(f"answered: {tally.answered}, of these wrong: {len(tally.wrong)} {tally.wrong[:3]}")
    for said, times in tally.refused.most_common():
        print(f"{times:6} {said}")
    return bool(tally.wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--hand-overs", type=int, default=1000)
    parser.add_argument("--faults", default=",".join(kv_mischief.FAULTS))
    parser.add_argument("--kv-check", default="bytes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with launched_pair(
            "sglang",
            given.model_path,
            folder,
            ready_seconds=READY_SECONDS,
            flags=(f"--engine-options=kv_check={given.kv_check},{WITHOUT_FORMS}",),
            mischief=mischief(folder, given.faults),
        ) as workers:
            status = asyncio.run(_load(given, workers, folder))
            for worker in workers:
                worker.end()
            return status


if __name__ == "__main__":
    sys.exit(main())
