"""CPU and times of Tandem beside those of SGLang's own servers and gateway: how they are divided by
parts and tokens, the table, and the verdict. Nothing is started here.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

SGLANG, TANDEM = "SGLang", "Tandem"
TITLES = {
    "sglang::scheduler": "engine",
    "sglang::detokenizer": "detokenizer",
    "VLLM::EngineCore": "engine",
}
"""How engines name their processes, and the parts whose CPU theirs is."""
HOPS = ("frontend", "router", "prefill", "decode", "detokenizer")
PARTS = (*HOPS, "engine")
TIMES = ("ttft_ms_p50", "itl_ms_p50", "itl_ms_p99")
MOST_HOPS, MOST_TTFT = 0.5, 1.0
"""The target: Tandem's figure divided by SGLang's is below the one, and not above the other."""

Row = Mapping[str, float]
Rounds = Mapping[str, Mapping[str, Sequence[Row]]]
"""By case and stack, its rows, one a round."""


@dataclass(frozen=True)
class Spent:
    """CPU seconds of one process so far, and the part that they belong to."""

    part: str
    seconds: float


def part_of(owner: str, title: str) -> str:
    """The part of a process called `title`, which is `owner`'s or was started by it."""
    return next((part for start, part in TITLES.items() if title.startswith(start)), owner)


def difference(before: Mapping[int, Spent], after: Mapping[int, Spent]) -> dict[str, float]:
    """CPU seconds by part. A process that was not there before counts from its start."""
    parts = dict.fromkeys(PARTS, 0.0)
    for pid, spent in after.items():
        earlier = before.get(pid)
        parts[spent.part] += spent.seconds - (earlier.seconds if earlier else 0.0)
    return parts


def hops(parts: Mapping[str, float]) -> float:
    """The sum of the parts that are hops."""
    return sum(parts[part] for part in HOPS)


def row(cpu: Mapping[str, float], result: Mapping[str, float]) -> Row:
    """A load's figures: CPU us a token by part and over the hops, times in ms."""
    parts = {part: seconds * 1e6 / result["tokens"] for part, seconds in cpu.items()}
    times = {name: result[name] for name in TIMES}
    return {"hops": hops(parts), **parts, **times, "speed": result["tokens"] / result["seconds"]}


def ratios(rounds: Mapping[str, Sequence[Row]], name: str) -> list[float]:
    """Tandem's figure by SGLang's, in each round."""
    pairs = zip(rounds[TANDEM], rounds[SGLANG], strict=True)
    return [ours[name] / theirs[name] for ours, theirs in pairs]


def table(found: Rounds) -> Iterator[str]:
    yield "CPU microseconds a token; first token (ttft) and between tokens (itl) in ms; medians"
    names = " ".join(f"{name:>11}" for name in PARTS)
    times = f"{'ttft':>8}{'itl':>7}{'p99':>7}{'tokens/s':>10}"
    yield f"{'streams':<10}{'':<7}{'hops':>8} {names}{times}"
    for case, sides in found.items():
        for side, rows in sides.items():
            middle = {name: statistics.median(each[name] for each in rows) for name in rows[0]}
            parts = " ".join(f"{middle[name]:11.1f}" for name in PARTS)
            ttft, itl, last = (middle[name] for name in TIMES)
            yield (
                f"{case:<10}{side:<7}{middle['hops']:8.1f} {parts}{ttft:8.1f}{itl:7.1f}{last:7.1f}"
                f"{middle['speed']:10.0f}"
            )
    yield "hops: all but the engine (the schedulers); SGLang's router is its gateway"


def verdict(found: Rounds) -> Iterator[str]:
    """Tandem beside SGLang, case by case, and whether the target is held."""
    missed = []
    yield "Tandem's figure divided by SGLang's: the median of the rounds, and each round"
    for case, sides in found.items():
        cost, ttft = ratios(sides, "hops"), ratios(sides, "ttft_ms_p50")
        held = statistics.median(cost) < MOST_HOPS and statistics.median(ttft) <= MOST_TTFT
        if not held:
            missed.append(case)
        yield (
            f"{case:<10}hops {_spread(cost)}   first token {_spread(ttft)}"
            f"   {'held' if held else 'MISSED'}"
        )
    target = f"hops below {MOST_HOPS}, first token at most {MOST_TTFT}"
    yield f"target, {target}: {'MISSED at ' + '; '.join(missed) if missed else 'held'}"


def _spread(values: Sequence[float]) -> str:
    each = " ".join(f"{value:.2f}" for value in values)
    return f"{statistics.median(values):.2f} ({each})"
