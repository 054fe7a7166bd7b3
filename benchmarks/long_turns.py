"""What a long prompt costs: CPU of every process for fresh prompts, and for turns of 300 new tokens
behind a history, by the length of the prompt.

Each row is a conversation of tool results and answers, as agents have. A fresh prompt begins with a
text that nobody has sent before; a turn adds one question to the conversation. Reading is the
frontend's processes that read large bodies. The engines' own CPU, which they measure themselves, is
shown beside and left out of the sum.

    python benchmarks/long_turns.py                           # about a minute
    python benchmarks/long_turns.py --tokens 100000 --requests 20
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import machine
import token_cost

from tandem.cli.stack import Component, Stack
from tandem.text.tokenizer import Tokenizer

LENGTHS = (2_000, 8_000, 32_000, 100_000)
NEW_TOKENS = 300
MESSAGE_TOKENS = 1_000
CONTEXT = 262_144
PARTS = ("frontend", "reading", "router", "prefill", "decode")


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


def spent(stack: Stack) -> dict[str, float]:
    """CPU seconds so far by part, with the frontend's processes apart."""
    seconds = token_cost.snapshot(stack)
    seconds["reading"] = sum(map(machine.cpu_seconds, _children(stack.components["frontend"])))
    return seconds


def _children(component: Component) -> list[int]:
    threads = Path(f"/proc/{component.pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


def costs(
    stack: Stack, client: Client, prompts: Iterator[Sequence[Mapping[str, str]]], requests: int
) -> dict[str, float]:
    """CPU milliseconds of a request by part: the median of `requests`."""
    rows = []
    for messages in itertools.islice(prompts, requests):
        before = spent(stack)
        tokens = client.ask(messages)
        usage = token_cost.difference(before, spent(stack))
        row = {part: usage.parts[part] * 1e3 for part in PARTS}
        rows.append(
            row | {"all": sum(row.values()), "engines": usage.engine * 1e3, "tokens": tokens}
        )
    return {name: median(row[name] for row in rows) for name in rows[0]}


def fresh(chats: Conversations, tokens: int) -> Iterator[list[dict[str, str]]]:
    history = chats.of(tokens)
    for number in itertools.count():
        first = _message("system", f"{number} {chats.text(20)} {history[0]['content']}")
        yield [first, *history[1:]]


def turns(chats: Conversations, tokens: int) -> Iterator[list[dict[str, str]]]:
    history = chats.of(tokens)
    while True:
        history = [*history, *chats.turn()]
        yield history


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, action="append", help="only these (repeatable)")
    parser.add_argument("--requests", type=int, default=10, help="of each kind and length")
    options = parser.parse_args()
    print(f"machine: {machine.describe()}\n\nCPU milliseconds of a request, its engines' apart")
    names = (*PARTS, "all", "engines")
    print(f"{'prompt':>8} {'kind':>6} " + " ".join(f"{name:>9}" for name in names))
    chats = Conversations()
    with token_cost.serving(
        step_ms=1, context_length=CONTEXT, prefix_cache_tokens=8 * CONTEXT
    ) as stack:
        client = Client(stack)
        for tokens in options.tokens or LENGTHS:
            for kind in (fresh, turns):
                prompts = kind(chats, tokens)
                for messages in itertools.islice(prompts, 2):
                    client.ask(messages)  # processes start, and what is new is not yet known
                row = costs(stack, client, prompts, options.requests)
                figures = " ".join(f"{row[name]:9.2f}" for name in names)
                print(f"{row['tokens']:8.0f} {kind.__name__:>6} {figures}", flush=True)


if __name__ == "__main__":
    main()
