"""A table of times from a deployment: one pair that has nothing else to do, asked by a client."""

from __future__ import annotations

import io
import itertools
import random
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from tandem.cli.answer import StreamedAnswer, follow
from tandem.cli.client import ApiError, Client
from tandem.cli.console import Console
from tandem_tools.trace_replay.times import Times

PROMPT_TOKENS = (1, 128, 512, 2048)
SEQUENCES = (1, 8, 32)
ALONE = 5
"""Requests one after the other, of each length of prompts."""
STREAMS, TOGETHER = 4, 16
"""Requests at once, and in all, that keep prefill busy with prompts of one length."""
OUTPUT_TOKENS = 64
"""What each of the sequences generates whose steps are timed."""
_WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "on",
]
"""Each is a token of most tokenizers."""


class Measuring:
    """Times that a client sees, and what follows from them for the workers."""

    def __init__(self, client: Client, model: str, console: Console) -> None:
        """Raises ApiError where the frontend refuses, as all of it does."""
        self._client = client
        self._model = model
        self._console = console
        self._seeds = itertools.count(1)
        self._began = time.monotonic()
        self._done, self._measurements = 0, 0
        self._body: dict[str, object] = {"tandem": {"report": True}}
        try:
            self._ask(8, 2)
        except ApiError as error:
            if not 400 <= error.status < 500:
                raise
            self._body = {}  # no reports are given: hand-overs count as overhead
            self._ask(8, 2)

    def times(self, prompt_tokens: Iterable[int], sequences: Iterable[int]) -> Times:
        """Takes some seconds for each of them."""
        prompts, counts = sorted({*prompt_tokens}), sorted({*sequences})
        self._measurements = 2 * len(prompts) + len(counts)
        alone = {words: self._alone(words) for words in prompts}
        sizes = {words: _prompt_tokens(found) for words, found in alone.items()}
        busy = {words: self._busy_seconds(words) for words in alone}
        transfer = {words: _transfer_seconds(found) for words, found in alone.items()}
        first = {words: median(each.ttft for each in found) for words, found in alone.items()}
        prefill = {words: min(busy[words], first[words] - transfer[words]) for words in alone}
        rest = [first[words] - prefill[words] - transfer[words] for words in alone]
        steps = [(count, self._step_seconds(count)) for count in counts]
        self._console.clear()
        return Times(
            prefill_ms=tuple((sizes[words], _ms(prefill[words])) for words in alone),
            step_ms=tuple((count, _ms(seconds)) for count, seconds in steps),
            transfer_ms=tuple((sizes[words], _ms(transfer[words])) for words in alone),
            overhead_ms=_ms(median(rest)),
        )

    def _alone(self, words: int) -> list[StreamedAnswer]:
        self._tell(f"prompts of {words} words, one after the other")
        return [self._ask(words, 2) for _ in range(ALONE)]

    def _busy_seconds(self, words: int) -> float:
        """How long a prompt keeps prefill busy: what it does in a time, where it never waits."""
        self._tell(f"prompts of {words} words, {STREAMS} at once")
        with ThreadPoolExecutor(STREAMS) as threads:
            began = time.perf_counter()
            list(threads.map(lambda _: self._ask(words, 2), range(TOGETHER)))
            return (time.perf_counter() - began) / TOGETHER

    def _step_seconds(self, count: int) -> float:
        self._tell(f"{count} sequences at once")
        with ThreadPoolExecutor(count) as threads:
            asked = threads.map(lambda _: self._ask(1, OUTPUT_TOKENS), range(count))
            return median(each.itl for each in asked)

    def _ask(self, words: int, tokens: int) -> StreamedAnswer:
        """Ask for a prompt that shares no block with any other."""
        chance = random.Random(next(self._seeds))
        body = {
            **self._body,
            "model": self._model,
            "messages": [{"role": "user", "content": " ".join(chance.choices(_WORDS, k=words))}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        answer = follow(self._client, body, Console(io.StringIO()))
        if not answer.arrivals:
            raise ApiError("an answer without any text cannot be timed")
        return answer

    def _tell(self, what: str) -> None:
        """Show which measurement begins, and the share of measurements already done."""
        done, self._done = self._done, self._done + 1
        what = f"{self._done}/{self._measurements} {what}"
        seconds = time.monotonic() - self._began
        self._console.live(what, seconds, share=done / self._measurements)


def _prompt_tokens(answers: Sequence[StreamedAnswer]) -> int:
    return int(median(each.usage["prompt_tokens"] for each in answers))


def _transfer_seconds(answers: Sequence[StreamedAnswer]) -> float:
    """What the hand-over took by the workers' reports; 0 where none came."""
    told = [each.kv()["kv_seconds"] for each in answers if each.report]
    return median(told) if told else 0.0


def _ms(seconds: float) -> float:
    return round(max(0.0, seconds) * 1000, 3)
