"""Traces of its own: seeded, in the same form as a trace file.

The figures below are chosen, not measured at anybody's service. They make the three kinds of load
on which policies differ: conversations that grow, long prompts that several users share, and short
prompts beside long ones.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from math import log

from tandem_tools.trace import BLOCK_TOKENS, TracedRequest

SYSTEM_PROMPTS = 20
"""CHAT: how many there are, the first much more common than the last (Zipf)."""
SYSTEM_TOKENS = (256, 4096)
"""CHAT: their lengths, each as likely."""
MESSAGE_TOKENS, ANSWER_TOKENS = 250, 250
"""CHAT: the medians of what users and the model say."""
MORE_TURNS = 0.75
"""CHAT: how likely a conversation goes on after an answer: four turns in the mean."""
THINKING_SECONDS = 20.0
"""CHAT: the mean time from one request of a conversation to the next."""
MOST_TOKENS = 100_000
"""A conversation ends before a prompt of it becomes longer."""
SHARED_PROMPTS, SHARED_TOKENS, USERS = 150, 6_144, 5
"""SHARED: how many there are, how long they are, and how many users have each."""
QUESTION_TOKENS, REPLY_TOKENS = 400, 200
"""SHARED: what comes after the prompt, and the output."""
SHORT_TOKENS, LONG_TOKENS = 300, 12_000
"""MIXED: the medians of the two kinds of prompts."""
LONG_SHARE = 0.1
"""MIXED: how many of the prompts are long."""
MIXED_OUTPUT = 200
"""MIXED: the median of outputs."""
SPREAD = 0.6
"""By so much the logarithms of lengths are spread, normally."""


class GrowingText:
    """Tokens that only grow: a prompt, and what is said after it."""

    def __init__(self, numbers: Iterator[int], tokens: int, blocks: tuple[int, ...] = ()) -> None:
        """`numbers` gives numbers for new blocks. `blocks`: the shared blocks at the beginning."""
        self._numbers = numbers
        self._blocks = list(blocks)
        self.tokens = 0
        self.grow(tokens)

    def grow(self, tokens: int) -> None:
        """Let so many tokens follow."""
        self.tokens += tokens
        missing = self.tokens // BLOCK_TOKENS - len(self._blocks)
        self._blocks += islice(self._numbers, max(0, missing))

    def hash_ids(self) -> tuple[int, ...]:
        """The numbers of whole blocks, and a new number for the rest."""
        rest = islice(self._numbers, 1 if self.tokens % BLOCK_TOKENS else 0)
        return (*self._blocks, *rest)


def _whole_blocks(numbers: Iterator[int], tokens: int) -> tuple[int, ...]:
    """The blocks of a shared beginning that are the same whatever follows it."""
    return tuple(islice(numbers, tokens // BLOCK_TOKENS))


def _length(chance: random.Random, median: float) -> int:
    return max(1, int(chance.lognormvariate(log(median), SPREAD)))


def _traced(at: float, text: GrowingText, output: int) -> TracedRequest:
    return TracedRequest(round(at * 1000, 3), text.tokens, output, text.hash_ids())


def chat(chance: random.Random, rate: float) -> Iterator[TracedRequest]:
    """Conversations of several turns behind shared system prompts. The rate is reached once the
    first conversations have come to their later turns.
    """
    numbers = itertools.count()
    lengths = [chance.randint(*SYSTEM_TOKENS) for _ in range(SYSTEM_PROMPTS)]
    systems = [(tokens, _whole_blocks(numbers, tokens)) for tokens in lengths]
    weights = [1 / place for place in range(1, SYSTEM_PROMPTS + 1)]
    turns: list[tuple[float, int, GrowingText | None]] = [(0.0, 0, None)]
    order = itertools.count(1)
    while True:
        at, _, text = heapq.heappop(turns)
        if text is None:
            following = at + chance.expovariate(rate * (1 - MORE_TURNS))
            heapq.heappush(turns, (following, next(order), None))
            tokens, blocks = chance.choices(systems, weights)[0]
            text = GrowingText(numbers, tokens, blocks)
        text.grow(_length(chance, MESSAGE_TOKENS))
        output = _length(chance, ANSWER_TOKENS)
        yield _traced(at, text, output)
        text.grow(output)
        if text.tokens < MOST_TOKENS and chance.random() < MORE_TURNS:
            later = at + chance.expovariate(1 / THINKING_SECONDS)
            heapq.heappush(turns, (later, next(order), text))


def shared(chance: random.Random, rate: float) -> Iterator[TracedRequest]:
    """Long prompts, each of which several users put before questions of their own."""
    numbers = itertools.count()
    prompts = [_whole_blocks(numbers, SHARED_TOKENS) for _ in range(SHARED_PROMPTS)]
    at = 0.0
    while True:
        user = chance.randrange(SHARED_PROMPTS * USERS)
        text = GrowingText(numbers, SHARED_TOKENS, prompts[user % SHARED_PROMPTS])
        text.grow(_length(chance, QUESTION_TOKENS))
        yield _traced(at, text, _length(chance, REPLY_TOKENS))
        at += chance.expovariate(rate)


def mixed(chance: random.Random, rate: float) -> Iterator[TracedRequest]:
    """Short prompts and some long ones, which have nothing in common."""
    numbers = itertools.count()
    at = 0.0
    while True:
        median = LONG_TOKENS if chance.random() < LONG_SHARE else SHORT_TOKENS
        text = GrowingText(numbers, _length(chance, median))
        yield _traced(at, text, _length(chance, MIXED_OUTPUT))
        at += chance.expovariate(rate)


KINDS: Mapping[str, Callable[[random.Random, float], Iterator[TracedRequest]]] = {
    "chat": chat,
    "shared": shared,
    "mixed": mixed,
}


def generate(kind: str, *, requests: int, rate: float, seed: int) -> tuple[TracedRequest, ...]:
    """The first requests of a kind, at `rate` a second in the mean, in the order of their times."""
    return tuple(islice(KINDS[kind](random.Random(seed), rate), requests))
