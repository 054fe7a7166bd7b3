"""A frontend whose model acts as a coding agent's does: the server of the agents' tests.

run.py starts it as it does scripted.py. The model runs a shell command with whichever tool the
agent has for that, reads what came of it, runs another, and repeats the last result. Each request
is one line of JSON in the file that TANDEM_AGENTS_LOG names: its session, the tokens of its prompt,
and how many of these an earlier prompt had begun with, which the answer tells as cached.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TextIO

from fake_router import Reply
from harness import serving
from scripted import MODEL_PATH, prompt_of, tell

SETTINGS = {"model_family": "hermes", "api_keys": ("sesame",)}
CONTEXT = 262_144
"""Tokens: what agents send takes 30,000."""
BLOCK = 64
COMMAND = "echo tandem-$((6 * 7))"
SHELLS = {
    "Bash": {"command": COMMAND, "description": "Say it"},
    "exec_command": {"cmd": COMMAND},
    "bash": {"command": COMMAND, "description": "Say it"},
    "run_shell_command": {"command": COMMAND, "description": "Say it", "is_background": False},
}
"""What the agents call their shell, and how it is called."""
TURNS = 2
"""With a tool, of each question."""
_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


class Model:
    def __init__(self, log: TextIO) -> None:
        self._log = log
        self._read: list[Sequence[int]] = []

    async def __call__(self, reply: Reply) -> None:
        tokens = tuple(reply.task.prompt_token_ids)
        cached = max((_common(tokens, other) for other in self._read), default=0)
        self._read.append(tokens)
        said = {"session": reply.submit.session, "tokens": len(tokens), "cached": cached}
        print(json.dumps(said), file=self._log, flush=True)
        await tell(reply, answer(prompt_of(reply)), row=64, cached_tokens=cached)


def answer(prompt: str) -> str:
    asked = prompt.rpartition("tandem-question")[2]
    results = _RESULT.findall(asked)
    if len(results) < TURNS and (call := next(_calls(prompt), None)):
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    return f"The tool says: {results[-1]}" if results else "Well."


def _calls(prompt: str) -> Iterator[dict[str, object]]:
    for name, arguments in SHELLS.items():
        if f'"name": "{name}"' in prompt:
            yield {"name": name, "arguments": arguments}


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with, in whole blocks."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    return same // BLOCK * BLOCK


async def main() -> None:
    log = os.open(os.environ["TANDEM_AGENTS_LOG"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    with os.fdopen(log, "a", encoding="utf-8") as file:
        await serve(Model(file))


async def serve(model: Model) -> None:
    async with serving(MODEL_PATH, model, SETTINGS) as frontend:
        frontend.router.change_fleet(frontend.fleet(context_length=CONTEXT))
        print(frontend.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
