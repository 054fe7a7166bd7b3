"""What 80 agents that send 100,000 tokens each at once do to another key's prompts of 500 tokens.

The short prompts come by the clock, whatever becomes of those before them, and are asked alone
("quiet", twice a round), beside prompts that nobody has sent before ("new"), and beside the next
turns of the same agents ("turn"). What is measured is the time from the moment at which a short
prompt is due to its first token, while agents wait for theirs. The sim engine takes no time to
compute a prompt, but its hand-over does: each page is written and checked. The agents' client is a
process of its own, at the lowest priority.

    python benchmarks/agents_beside.py                       # about three minutes
    python benchmarks/agents_beside.py --agents 8 --tokens 32000 --rounds 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import long_turns
import machine
import token_cost

from tandem.keys.ring import digest_of

AGENTS, SHORT = "agents", "short"
"""The keys."""
SHORT_TOKENS = 500
EVERY_SECONDS = 0.04
"""From one short prompt to the next."""
QUIET_SECONDS = 10.0
FLEETS = ("quiet", "new", "turn", "quiet again")


class Answer(NamedTuple):
    """What came of one request."""

    status: int
    seconds: float
    """To the first token."""


Answers = Sequence[Answer]


async def ask(address: str, key: str, body: bytes, due: float) -> Answer:
    """Read one streamed answer to its end. `due`: when the request was to be sent, by the monotonic
    clock.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n"
        "Content-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    try:
        writer.write(head.encode() + body)
        status = int((await reader.readline()).split()[1])
        if status == 200:
            await reader.readuntil(b"data: ")
        seconds = time.monotonic() - due
        await reader.read()
        return Answer(status, seconds)
    finally:
        writer.close()


def body_of(messages: Sequence[Mapping[str, str]]) -> bytes:
    asked = {"messages": messages, "max_tokens": 2, "ignore_eos": True, "stream": True}
    return json.dumps({"model": "tandem-tiny", **asked}).encode()


# --- the agents' process --------------------------------------------------------------------------


@cache
def _history(tokens: int) -> list[dict[str, str]]:
    return long_turns.Conversations().of(tokens)


def prepare(tokens: int) -> None:
    os.nice(19)
    _history(tokens)


def ask_agents(address: str, agents: int, tokens: int, conversation: int, turn: int) -> Answers:
    """Have all agents ask at once for that turn of their conversations."""
    history, bodies = _history(tokens), []
    more = [message for _ in range(turn) for message in long_turns.Conversations().turn()]
    for agent in range(agents):
        first = {**history[0], "content": f"{conversation} {agent} {history[0]['content']}"}
        bodies.append(body_of([first, *history[1:], *more]))

    async def together() -> Answers:
        due = time.monotonic()
        return await asyncio.gather(*(ask(address, AGENTS, body, due) for body in bodies))

    return asyncio.run(together())


# --- the short prompts ----------------------------------------------------------------------------


async def ask_short(address: str, until: asyncio.Future[Answers]) -> Answers:
    """Short prompts by the clock, until that has come."""
    chats = long_turns.Conversations(seed=int(time.time()))
    bodies = [body_of(chats.of(SHORT_TOKENS)) for _ in range(50)]
    began, tasks = time.monotonic(), []
    while not until.done():
        due = began + EVERY_SECONDS * len(tasks)
        await asyncio.sleep(due - time.monotonic())
        asked = ask(address, SHORT, bodies[len(tasks) % len(bodies)], due)
        tasks.append(asyncio.create_task(asked))
    return await asyncio.gather(*tasks)


class Fleet(NamedTuple):
    agents: Answers
    short: Answers


async def measure(
    address: str, pool: ProcessPoolExecutor, options: argparse.Namespace, number: int
) -> dict[str, Fleet]:
    found, loop = {}, asyncio.get_running_loop()
    for name in FLEETS:
        agents: asyncio.Future[Answers]
        if name in ("new", "turn"):
            which = (options.agents, options.tokens, number, int(name == "turn"))
            agents = loop.run_in_executor(pool, ask_agents, address, *which)
        else:
            agents = loop.create_task(asyncio.sleep(QUIET_SECONDS, ()))
        short = await ask_short(address, agents)
        found[name] = Fleet(await agents, short)
    return found


def percentile(answers: Answers, percent: int) -> float:
    return float(statistics.quantiles((each.seconds for each in answers), n=100)[percent - 1])


def table(rounds: Sequence[Mapping[str, Fleet]]) -> str:
    lines = [
        f"{'beside':>12} {'agents':>7} {'refused':>8} {'last, s':>8}"
        f" {'short':>6} {'refused':>8} {'p50 ms':>7} {'p99 ms':>7} {'of quiet, by round':>19}"
    ]
    for name in FLEETS:
        agents = [each for found in rounds for each in found[name].agents]
        short = [each for found in rounds for each in found[name].short]
        ratios = [
            percentile(found[name].short, 99) / percentile(found["quiet"].short, 99)
            for found in rounds
        ]
        lines.append(
            f"{name:>12} {len(agents):7} {_refused(agents):8}"
            f" {max((each.seconds for each in agents), default=0):8.1f}"
            f" {len(short):6} {_refused(short):8}"
            f" {1e3 * percentile(short, 50):7.1f} {1e3 * percentile(short, 99):7.1f}"
            f" {statistics.median(ratios):6.2f}: {' '.join(f'{each:.2f}' for each in ratios)}"
        )
    return "\n".join(lines)


def _refused(answers: Answers) -> int:
    return sum(each.status != 200 for each in answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agents", type=int, default=80)
    parser.add_argument("--tokens", type=int, default=100_000, help="of each agent's prompt")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"machine: {machine.describe()}\n")
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as folder, ProcessPoolExecutor(1, context) as pool:
        keys = Path(folder) / "keys.jsonl"
        lines = ({"name": name, "sha256": digest_of(name.encode())} for name in (AGENTS, SHORT))
        keys.write_text("\n".join(map(json.dumps, lines)))
        pool.submit(prepare, options.tokens).result()
        with token_cost.serving(
            flags={"frontend": (f"--api-keys-file={keys}",)},
            step_ms=1,
            context_length=long_turns.CONTEXT,
            prefix_cache_tokens=8 * long_turns.CONTEXT,
        ) as stack:
            address, rounds = stack.url.removeprefix("http://"), []
            ask_agents(address, 8, options.tokens, -1, 0)  # processes start
            for number in range(options.rounds):
                rounds.append(asyncio.run(measure(address, pool, options, number)))
                print(f"  round {number + 1} of {options.rounds} done", file=sys.stderr)
    print(table(rounds))


if __name__ == "__main__":
    main()
