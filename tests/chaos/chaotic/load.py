"""Clients of a frontend, each of which asks again as soon as it is answered."""

from __future__ import annotations

import asyncio
import json
from random import Random

import httpx
from stacks import MODEL

from chaotic.book import Asked, Book

DEADLINE_SECONDS = 12.0
"""What every request gives as its timeout."""
MARGIN_SECONDS = 8.0
"""A request that has not ended so long after its deadline hangs. The frontend itself ends one whose
router did not, 5 s after.
"""
_PAUSE_SECONDS = 0.2
"""Before a client asks again that was turned away."""
_LEAVE_SECONDS = 0.8
"""After which a client has gone away that does, where it was not answered before."""
MOST_TOKENS = 48


class Load:
    """Requests of prompts, lengths and forms from a seed."""

    def __init__(
        self, url: str, book: Book, rng: Random, *, leave: float = 0.0, resume: bool = False
    ) -> None:
        """`leave`: the share of the requests whose client goes away, at any moment of theirs.
        `resume`: each asks for another pair of workers where its own is lost.
        """
        self._book = book
        self._rng = rng
        self._leave = leave
        self._resume = resume
        self._over = False
        # A connection each: else those of a frontend that was restarted would be used once more.
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=None,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def run(self, clients: int) -> None:
        """Ask until it is stopped; what is open then is awaited."""
        async with self._client, asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self._repeat())

    def stop(self) -> None:
        self._over = True

    async def burst(self, count: int) -> None:
        """So many at once."""
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self._ask())

    async def _repeat(self) -> None:
        while not self._over:
            if not await self._ask():
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _ask(self) -> bool:
        """One request. Whether it ended well."""
        rng = self._rng
        asked = self._book.ask(self._book.prompt(rng), rng.randint(1, MOST_TOKENS))
        leaves = rng.random() < self._leave
        patience = rng.uniform(0, _LEAVE_SECONDS) if leaves else DEADLINE_SECONDS + MARGIN_SECONDS
        try:
            async with asyncio.timeout(patience):
                code = await self._answer(asked, stream=rng.random() < 0.8)
        except TimeoutError:
            if not self._book.is_open(asked):
                return True  # it had ended, and its connection was being closed
            (self._book.leave if leaves else self._book.hang)(asked)
            return leaves
        except httpx.ConnectError:
            code = "connection_refused"
        except httpx.TransportError:
            code = "stream_lost" if asked.begun else "connection_lost"
        if code:
            self._book.fail(asked, code)
        return not code

    async def _answer(self, asked: Asked, *, stream: bool) -> str:
        """The error's code, or nothing for a request that finished."""
        body = {
            "model": MODEL,
            "prompt": asked.prompt,
            "max_tokens": len(asked.expected),
            "temperature": 0,
            "ignore_eos": True,
            "detokenize": False,
            "stream": stream,
            "timeout": DEADLINE_SECONDS,
            "resume": self._resume,
        }
        async with self._client.stream("POST", "/v1/completions", json=body) as response:
            asked.begun = True
            if not stream or response.status_code != 200:
                return self._whole(asked, await response.aread())
            return await self._events(asked, response)

    def _whole(self, asked: Asked, content: bytes) -> str:
        body = json.loads(content)
        if "error" in body:
            return str(body["error"]["code"])
        (choice,) = body["choices"]
        self._book.hear(asked, choice["token_ids"])
        self._book.finish(asked, choice["finish_reason"])
        return ""

    async def _events(self, asked: Asked, response: httpx.Response) -> str:
        reason = ""
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                self._book.finish(asked, reason)
                return ""
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return str(event["error"]["code"])
            for choice in event["choices"]:
                self._book.hear(asked, choice["token_ids"])
                reason = choice["finish_reason"] or reason
        return "cut_short"
