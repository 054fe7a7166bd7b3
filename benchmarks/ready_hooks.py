"""What a ready-made hook takes for a token of text that it lets pass: its own call alone.

Words of a made-up answer, one a chunk; the JSON guard gets a JSON document in pieces of four
characters. A figure is CPU time, the best of ten rounds of 2000 chunks.

    python benchmarks/ready_hooks.py
    python benchmarks/ready_hooks.py --json out.json
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path

import machine

from tandem.hooks.contract import Chunk, Verdict
from tandem.hooks.window import Window, WindowHook
from tandem_guardrails.banned_phrases import BannedPhrases
from tandem_guardrails.json_only import JsonOnly
from tandem_guardrails.max_output import MaxOutput
from tandem_guardrails.patterns import Patterns
from tandem_guardrails.pii import Pii
from tandem_guardrails.secrets import Secrets

WORDS = re.findall(
    r"\w+",
    "the model writes an answer about cooking pasta with tomatoes and basil then salt pepper oil "
    "water boil ten minutes serve hot enjoy",
)
STEMS = re.findall(r"\w+", "forbidden secret kill attack bomb project codename steal hack drop")
PHRASES = [f"{stem} {number}x" for number, stem in enumerate(STEMS * 5)]
PATTERNS = [
    {"pattern": r"ACME-\d{4,8}"},
    {"pattern": r"(?i)project\s+nightfall"},
    {"pattern": r"https?://intranet\.[a-z.]{1,40}/\S{0,100}"},
]


class Zebra(WindowHook):
    def check(self, window: Window) -> str:
        return re.sub("zebra", "x", window.text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    asked = parser.parse_args()
    random.seed(1)
    answer = [f" {random.choice(WORDS)}" for _ in range(2000)]
    item = {"name": "pasta", "price": 12.5, "tags": ["a", "b"], "ok": True}
    document = json.dumps({"items": [item] * 300})
    cases: list[tuple[str, Callable[[Chunk], Verdict], list[str]]] = [
        ("banned_phrases, 50 phrases", BannedPhrases(phrases=PHRASES), answer),
        ("… whole_words", BannedPhrases(phrases=PHRASES, whole_words=True), answer),
        ("patterns, 3 patterns", Patterns(patterns=PATTERNS), answer),
        ("secrets, all kinds", Secrets(), answer),
        ("pii, all entities", Pii(), answer),
        ("max_output, characters", MaxOutput(characters=2**31), answer),
        ("max_output, sentences", MaxOutput(sentences=2**31), answer),
        ("json_only", JsonOnly(), [document[at : at + 4] for at in range(0, 8000, 4)]),
        ("WindowHook, size, one `re` pattern", Zebra(flush="size"), answer),
        ("WindowHook, sentence, no sentence ends", Zebra(), answer),
    ]
    print("| hook | µs a token | chunks that show nothing yet |\n| --- | --- | --- |")
    rows = []
    for name, hook, parts in cases:
        rows.append(
            {"hook": name, "us_per_token": _seconds(hook, parts) * 1e6, "held": _held(hook, parts)}
        )
        print("| {hook} | {us_per_token:.1f} | {held:.0%} |".format(**rows[-1]))
    if asked.json:
        asked.json.write_text(json.dumps({"machine": machine.describe(), "rows": rows}, indent=2))


def _seconds(hook: Callable[[Chunk], Verdict], parts: Sequence[str]) -> float:
    rounds = [[_chunk(number, part) for part in parts] for number in range(12)]
    taken = [
        timeit.timeit(
            lambda chunks=chunks: [hook(chunk) for chunk in chunks],
            number=1,
            timer=time.process_time,
        )
        for chunks in rounds
    ]
    return min(taken[2:]) / len(parts)


def _held(hook: Callable[[Chunk], Verdict], parts: Sequence[str]) -> float:
    """The share of chunks that show nothing yet."""
    verdicts = [hook(_chunk(100, part)) for part in parts]
    return sum(not verdict.text for verdict in verdicts) / len(parts)


def _chunk(request_id: int, text: str) -> Chunk:
    return Chunk(
        request_id=request_id,
        output_index=0,
        text_diff=text,
        text=text,
        token_ids_diff=[1],
        is_final=False,
        aborted=False,
        streaming=True,
        phase="decode",
        trace_id="",
        model="m",
    )


if __name__ == "__main__":
    main()
