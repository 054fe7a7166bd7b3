"""What every request is to get: drawn from the seed, so that an answer can be judged by itself.

A token's id says whose it is (request, prompt, output, run, position) and its text is that id: an
answer that lost, doubled, crossed or reordered a token can be told from the right one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from simulated.halves import Half

Action = Literal["emit", "rewrite", "suppress", "terminate", "fail"]

SEED = 7_000
"""Of every request; a worker adds the output's index, and a great deal for each further run."""
SEEDS_BETWEEN_RUNS = 1_000_003
LONG = 2_000.0
"""A deadline that nothing may wait for."""
RUNS = 3
"""At most, of one output: the first, and the regenerations that the settings allow."""
TOKENS_A_STEP = 3
"""At most."""
REFUSAL = "{refused}"
"""Shown instead of what a classifier blocked."""
TERMINATED, TERMINATED_IN_PREFILL = "hook says no", "prefill hook says no"


@dataclass(slots=True, frozen=True)
class Token:
    """Where a token belongs. `number` is its id."""

    request: int
    prompt: int
    output: int
    run: int
    position: int

    @property
    def number(self) -> int:
        number = self.request << 2 | self.prompt
        number = number << 3 | self.output
        number = number << 3 | self.run
        return number << 6 | self.position


def token_of(number: int) -> Token:
    """The inverse of Token.number."""
    rest, position = divmod(number, 64)
    rest, run = divmod(rest, 8)
    rest, output = divmod(rest, 8)
    request, prompt = divmod(rest, 4)
    return Token(request, prompt, output, run, position)


def text_of(number: int) -> str:
    return f"<{number:x}>"


def trace_id(request: int, half: int = 0) -> str:
    """`half`: which of its generation-only requests it is; 0: none."""
    return f"{half << 64 | request:032x}"


def request_of(trace_id: str) -> int:
    """The number of the request, whichever half of it carries the trace id."""
    return int(trace_id, 16) % 2**64


class Shown(NamedTuple):
    """What a client gets to see of one token."""

    position: int
    text: str
    number: int | None
    """Its id, where that is shown."""


@dataclass(slots=True)
class Run:
    """One run of one output: how long it is, and what judges it makes of each position."""

    length: int
    eos: bool
    """The last token is the end of the sequence, which has no text."""
    hook: list[Action]
    prefill_hook: Literal["emit", "terminate", "fail"]
    blocked_at: int | None
    """From this position on the classifier blocks the output."""
    classifier_fails: bool = False


FIRST_TOKENIZER = 7
"""Every prompt holds the number of the tokenizer that made it; engines know their own."""
FOREIGN_TOKENIZER = 6
"""One that no worker ever has."""
ANY_TOKENIZER = 0
"""In tasks of those who are nobody's clients: any engine takes them."""


def tokenizer_hash(model: str, tokenizer: int) -> str:
    return f"tokenizer {tokenizer} of {model}"


@dataclass(slots=True)
class Judged:
    """What a model's workers judge with."""

    prefill_hook: bool = False
    propagate: bool = False
    hook: bool = False
    fails: bool = False
    """Hooks and classifiers may raise."""
    late: bool = False
    """Hooks answer later than the step."""
    classifier: bool = False
    hold_back: Literal["none", "window", "all"] = "all"
    regenerations: int = 0
    odd: float = 0.12
    """The share of tokens that hooks do not let pass as they are."""


@dataclass(slots=True)
class Request:
    """A client's, but for `canary`."""

    number: int
    model: str
    at: float
    prompts: int
    n: int
    priority: int
    tenant: str
    """The key that it came with."""
    weight: int
    streaming: bool
    want_ids: bool
    want_report: bool
    """And what classifiers scored."""
    timeout: float
    leaves_after: float | None
    slow: bool
    """Its client does not read before the end."""
    stop_at: int | None
    """The position whose token is its stop string."""
    seed: int
    judged: Judged
    max_tokens: int = 16
    """No output is as long; some workers take no request that may be long."""
    poison: Literal["", "worker", "engine"] = ""
    """What it ends wherever it begins: the process at once, or its engine."""
    poisons: Literal["prefill", "decode"] = "decode"
    killed: int = 0
    """Workers, so far."""
    resume: bool = False
    """Where a decode worker is lost, another pair is to go on."""
    fairness: int = 0
    first_token_ms: int = 0
    word_at: int | None = None
    """The position at which its stop word ends, which begins one before, if there is one."""
    seconds: list[Half] = field(default_factory=list)
    """Its phases run apart: it is context-only, and each of these is to go on from what it left."""
    runs: dict[tuple[int, int, int], Run] = field(default_factory=dict)

    def run(self, prompt: int, output: int, run: int) -> Run:
        key = prompt, output, run
        if key not in self.runs:
            self.runs[key] = self._draw(random.Random(repr((self.seed, key))))
        return self.runs[key]

    def token(self, prompt: int, output: int, run: int, position: int) -> int:
        return Token(self.number, prompt, output, run, position).number

    def word(self, prompt: int, output: int, run: int) -> list[int]:
        """The stop word of a run; empty: it has none."""
        if self.word_at is None:
            return []
        begin = max(0, self.word_at - 1)
        return [self.token(prompt, output, run, at) for at in range(begin, self.word_at + 1)]

    def has_text(self, drawn: Run, position: int) -> bool:
        """The end of the sequence has none, unless a stop word ends there."""
        eos = drawn.eos and position == drawn.length - 1
        return not eos or position == self.word_at

    def _draw(self, source: random.Random) -> Run:
        judged = self.judged
        length = source.choice((1, 2, 3, 4, 6, 9))
        hook: list[Action] = ["emit"] * length
        if judged.hook:
            odd: list[Action] = ["rewrite", "suppress", "suppress", "terminate", "terminate"]
            odd += ["fail"] * judged.fails
            for position in range(length):
                if source.random() < judged.odd:
                    hook[position] = source.choice(odd)
        prefill: Literal["emit", "terminate", "fail"] = "emit"
        if judged.prefill_hook and source.random() < 0.15:
            prefill = source.choice(("terminate", "fail" if judged.fails else "terminate"))
        blocked = None
        if judged.classifier and source.random() < 0.4:
            blocked = source.randrange(length)
        fails = judged.fails and source.random() < 0.3
        return Run(length, source.random() < 0.5, hook, prefill, blocked, fails)

    # --- what is shown ---------------------------------------------------------------------------

    def last_run(self, prompt: int, output: int) -> int:
        """The run whose output counts: classifiers blocked those before it."""
        run = 0
        most = self.judged.regenerations if self.judged.hold_back == "all" else 0
        while run < most and self.blocked(prompt, output, run):
            hooked = self.ending(prompt, output, run) in ("terminate", "fail")
            if hooked or self.run(prompt, output, run).classifier_fails:
                break
            run += 1
        return run

    def blocked(self, prompt: int, output: int, run: int) -> bool:
        """Whether the classifier blocks what hooks let through of a run."""
        first = self.run(prompt, output, run).blocked_at
        if not self.judged.classifier or first is None:
            return False
        return any(row.position >= first and row.text for row in self.shown(prompt, output, run))

    def shown(self, prompt: int, output: int, run: int) -> list[Shown]:
        """What hooks let through of a run; the classifier has not judged it."""
        drawn, rows = self.run(prompt, output, run), []
        for position in range(drawn.length):
            number = self.token(prompt, output, run, position)
            has_text = self.has_text(drawn, position)
            if position == self.stop_at and has_text:
                break
            action = drawn.hook[position]
            if action in ("terminate", "fail"):
                break
            if action == "rewrite":
                rows.append(Shown(position, f"[{number:x}]", None))
            elif action == "emit":
                rows.append(Shown(position, text_of(number) if has_text else "", number))
            if position == self.word_at:
                break
        return rows

    def ending(self, prompt: int, output: int, run: int) -> str:
        """How a run ends by itself: stop, length, stop_string, stop_word, terminate or fail."""
        drawn = self.run(prompt, output, run)
        for position in range(drawn.length):
            if position == self.stop_at and self.has_text(drawn, position):
                return "stop_string"
            if drawn.hook[position] in ("terminate", "fail"):
                return drawn.hook[position]
            if position == self.word_at:
                return "stop_word"
        return "stop" if drawn.eos else "length"

    def generated(self, prompt: int, output: int, run: int) -> tuple[int, int]:
        """Tokens that a run generates: at least, and at most where it is cut late."""
        drawn = self.run(prompt, output, run)
        ending = self.ending(prompt, output, run)
        if ending == "stop_string":
            assert self.stop_at is not None
            return self.stop_at + 1, drawn.length
        if ending == "stop_word":  # what its step made beside does not count
            assert self.word_at is not None
            return self.word_at + 1, self.word_at + 1
        if ending in ("terminate", "fail"):  # what later steps made does not count
            ended_at = drawn.hook.index(ending) + 1
            return ended_at, min(drawn.length, ended_at + TOKENS_A_STEP - 1)
        return drawn.length, drawn.length


def canary(room: int) -> Request:
    """What an engine makes of a router's own request: two tokens, which nobody may see."""
    return Request(
        number=room,
        model="",
        at=0.0,
        prompts=1,
        n=1,
        priority=0,
        tenant="",
        weight=1,
        streaming=False,
        want_ids=False,
        want_report=False,
        timeout=0.0,
        leaves_after=None,
        slow=False,
        stop_at=None,
        seed=0,
        judged=Judged(),
        runs={(0, 0, 0): Run(2, False, ["emit", "emit"], "emit", None)},
    )
