"""What a long prompt costs: CPU of every process for fresh prompts, and for turns of 300 new tokens
behind a history, by the length of the prompt.

Each row is a conversation of tool results and answers, as agents have, or several that ask at once.
A fresh prompt begins with a text that nobody has sent before; a turn adds one question to the
conversation. A row has a column for each hop: the steps in which the body is read, then what else
the frontend's processes that read large bodies take, the frontend itself, the router, the steps in
which both workers begin a leg (the task's intake and the engine's input), and the rest of either
worker. The engines' own CPU, which they measure themselves, is shown beside and left out of the
sum.

    python benchmarks/long_turns.py                           # about a minute
    python benchmarks/long_turns.py --tokens 100000 --requests 20
    python benchmarks/long_turns.py --at-once 8               # eight conversations together
    python benchmarks/long_turns.py --engine sglang --tokens 2000 --tokens 8000
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import machine
import token_cost

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem.text.tokenizer import Tokenizer

LENGTHS = (2_000, 8_000, 32_000, 100_000)
NEW_TOKENS = 300
MESSAGE_TOKENS = 1_000
CONTEXT = 262_144
READY_SECONDS = 600
"""Until SGLang serves on a machine with other work."""
READING = ("parse", "render", "find", "tokenize", "hash")
BEGINNING = ("intake", "engine_input")
PARTS = ("reading", "frontend", "router", "prefill", "decode")
HOPS = (*READING, "reading", "frontend", "router", *BEGINNING, "prefill", "decode")
SETTLE_SECONDS = 0.02
"""After an answer, for what processes do once it is sent."""


Chat = Iterator[list[dict[str, str]]]
"""The prompts of a conversation, one after the other."""
Kind = Callable[["Conversations", int], Chat]


class Conversations:
    """Chats of words that the model's tokenizer knows, of a length in tokens."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._tokenizer = Tokenizer.load(token_cost.MODEL)
        words = self._tokenizer.decode(list(range(300, 2000))).split()
        self._words = [word for word in words if word.isalpha()]

    def text(self, tokens: int) -> str:
        """Words of about so many tokens."""
        words = self._random.choices(self._words, k=tokens)
        ids = self._tokenizer.encode(" ".join(words), special_tokens=False)
        return self._tokenizer.decode(ids[:tokens]).encode(errors="ignore").decode()

    def of(self, tokens: int) -> list[dict[str, str]]:
        """A system prompt, then questions and answers in turn."""
        sizes = [min(MESSAGE_TOKENS, tokens - at) for at in range(0, tokens, MESSAGE_TOKENS)]
        roles = itertools.chain(("system",), itertools.cycle(("user", "assistant")))
        return [_message(role, self.text(size)) for role, size in zip(roles, sizes, strict=False)]

    def turn(self) -> list[dict[str, str]]:
        """A short answer, and what is asked next."""
        return [_message("assistant", self.text(20)), _message("user", self.text(NEW_TOKENS - 20))]


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@contextmanager
def serving(engine: str) -> Iterator[Stack]:
    """A stack that takes all lengths. The tiny model is given a longer context than it was trained
    for: what it answers is not looked at.
    """
    if engine == "sim":
        cache = 8 * CONTEXT
        with token_cost.serving(
            step_ms=1, context_length=CONTEXT, prefix_cache_tokens=cache
        ) as stack:
            yield stack
        return
    with TemporaryDirectory() as folder:
        model = Path(folder) / token_cost.MODEL.name
        shutil.copytree(token_cost.MODEL, model)
        config = json.loads((model / "config.json").read_text())
        longer = {"max_position_embeddings": CONTEXT}
        (model / "config.json").write_text(json.dumps(config | longer))
        settings = (f"max_total_tokens={CONTEXT}",)
        options = StackOptions(model_path=model, engine=engine, engine_options=settings)
        with Stack(options, run_dir=Path(folder)) as stack:
            stack.wait_ready(timeout_seconds=READY_SECONDS)
            yield stack


class Client:
    def __init__(self, stack: Stack) -> None:
        address = stack.url.removeprefix("http://")
        self._connection = http.client.HTTPConnection(address, timeout=120)

    def ask(self, messages: Sequence[Mapping[str, str]]) -> int:
        """Two tokens of an answer. Returns the prompt's tokens."""
        body = {"model": "tandem-tiny", "messages": messages, "max_tokens": 2, "ignore_eos": True}
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = self._connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        if response.status != 200:
            raise RuntimeError(answer["error"]["message"])
        return int(answer["usage"]["prompt_tokens"])


class Spent(NamedTuple):
    """CPU seconds so far, by part and by step. Processes pay for saying what their steps took, so
    the parts' clocks are read before they are asked and after.
    """

    before: Mapping[str, float]
    steps: Mapping[str, float]
    after: Mapping[str, float]


def spent(stack: Stack) -> Spent:
    before = _clocks(stack)
    return Spent(before, _steps(stack), _clocks(stack))


def _clocks(stack: Stack) -> dict[str, float]:
    seconds = token_cost.clocks(stack)
    readers = machine.children(stack.components["frontend"].pid)
    seconds["reading"] = sum(map(machine.cpu_seconds, readers))
    return seconds


def _steps(stack: Stack) -> dict[str, float]:
    """What the frontend and the workers say of themselves."""
    components = stack.components
    read = token_cost.samples(components["frontend"], "tandem_frontend_reading_cpu_seconds_total")
    seconds = {step: _sum(read, step=step) for step in READING}
    for part in token_cost.WORKERS:
        worker = components[f"{part}_worker-0"]
        # SGLang computes in processes of its own; the sim engine in the worker's.
        seconds[f"{part} schedulers"] = sum(map(machine.cpu_seconds, machine.children(worker.pid)))
        begun = token_cost.samples(worker, "tandem_worker_input_cpu_seconds_total")
        seconds |= {f"{part} {step}": _sum(begun, step=step) for step in BEGINNING}
        seconds[f"{part} engine"] = token_cost.engine_seconds(worker)
    return seconds


def _sum(samples: Mapping[str, float], *, step: str) -> float:
    return sum(value for labels, value in samples.items() if f'step="{step}"' in labels)


def between(first: Spent, last: Spent) -> dict[str, float]:
    """CPU milliseconds by hop, each without the steps that have a column of their own."""
    parts = {name: (last.before[name] - first.after[name]) * 1e3 for name in last.before}
    steps = {name: (last.steps[name] - first.steps[name]) * 1e3 for name in last.steps}
    row = {step: steps[step] for step in READING}
    read = sum(row.values())
    # A small body is read on the frontend's loop.
    parts["reading" if parts["reading"] > read / 2 else "frontend"] -= read
    for part in token_cost.WORKERS:
        parts[part] -= sum(steps[f"{part} {what}"] for what in (*BEGINNING, "engine"))
    for step in BEGINNING:
        row[step] = sum(steps[f"{part} {step}"] for part in token_cost.WORKERS)
    row |= {part: parts[part] for part in PARTS}
    engines = sum(
        steps[f"{part} {what}"] for part in token_cost.WORKERS for what in ("engine", "schedulers")
    )
    return row | {"all": sum(row.values()), "engines": engines}


def costs(
    stack: Stack, clients: Sequence[Client], chats: Sequence[Chat], requests: int
) -> dict[str, float]:
    """CPU milliseconds of a request by hop: the median of `requests` times that every client asks
    for the next prompt of its chat, all at once.
    """
    rows = []
    with ThreadPoolExecutor(len(clients)) as threads:
        for prompts in itertools.islice(zip(*chats, strict=True), requests):
            before = spent(stack)
            tokens = median(threads.map(Client.ask, clients, prompts))
            time.sleep(SETTLE_SECONDS)
            row = between(before, spent(stack))
            rows.append({hop: ms / len(clients) for hop, ms in row.items()} | {"tokens": tokens})
    return {name: median(row[name] for row in rows) for name in rows[0]}


def fresh(chats: Conversations, tokens: int) -> Chat:
    history = chats.of(tokens)
    for number in itertools.count():
        first = _message("system", f"{number} {chats.text(20)} {history[0]['content']}")
        yield [first, *history[1:]]


def turns(chats: Conversations, tokens: int) -> Chat:
    history = chats.of(tokens)
    while True:
        history = [*history, *chats.turn()]
        yield history


def reading_cost(new: Mapping[str, float], turn: Mapping[str, float]) -> str:
    """What `tandem replay` counts for reading, from the row of a fresh prompt and of a turn."""
    fresh_ms, turn_ms = (sum(row[hop] for hop in (*READING, "reading")) for row in (new, turn))
    of_new = fresh_ms / new["tokens"] * NEW_TOKENS
    known_ms = max(0.0, turn_ms - of_new) / (turn["tokens"] - NEW_TOKENS)
    costs = {"fresh_ms": fresh_ms / new["tokens"], "known_ms": known_ms}
    told = ", ".join(f"{name}: {cost * 1e3:.3f}" for name, cost in costs.items())
    return f"reading 1,000 tokens, as frontends of a fleet for `tandem replay`: {{{told}}}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, action="append", help="only these (repeatable)")
    parser.add_argument("--engine", choices=("sim", "sglang"), default="sim")
    parser.add_argument("--requests", type=int, default=10, help="of each kind and length")
    parser.add_argument("--at-once", type=int, default=1, help="conversations that ask together")
    options = parser.parse_args()
    print(f"machine: {machine.describe()}\n\nCPU milliseconds of a request, its engines' apart")
    names = (*HOPS, "all", "engines")
    widths = {name: max(7, len(name)) for name in names}
    head = " ".join(f"{name:>{width}}" for name, width in widths.items())
    print(f"{'prompt':>7} {'kind':>5} {head}")
    texts = Conversations()
    rows: dict[tuple[int, Kind], dict[str, float]] = {}
    with serving(options.engine) as stack:
        clients = [Client(stack) for _ in range(options.at_once)]
        for tokens in options.tokens or LENGTHS:
            for kind in (fresh, turns):
                chats = [kind(texts, tokens) for _ in clients]
                costs(stack, clients, chats, 2)  # processes start, and what is new is not yet known
                row = costs(stack, clients, chats, options.requests)
                figures = " ".join(f"{row[name]:{width}.2f}" for name, width in widths.items())
                print(f"{row['tokens']:7.0f} {kind.__name__:>5} {figures}", flush=True)
                rows[tokens, kind] = row
    longest = max(tokens for tokens, _ in rows)
    print(reading_cost(rows[longest, fresh], rows[longest, turns]))


if __name__ == "__main__":
    main()
