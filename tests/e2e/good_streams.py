"""Sixteen requests of every kind whose answers are known, asked again and again."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
from hostile_user_code import upper_trace
from stacks import MODEL

_TOKENS = 24
_SECONDS = 60.0
Shown = list[tuple[str, str]]
"""Text and finish reason of each choice."""


@dataclass(frozen=True, slots=True)
class Good:
    name: str
    path: str
    body: dict[str, Any]
    trace_id: str = ""


def sixteen() -> list[Good]:
    chats = [_chat(number, stream=number != 3, **fields) for number, fields in enumerate(_CHATS)]
    return [*chats, *(_completion(number, **fields) for number, fields in enumerate(_COMPLETIONS))]


_CHATS: tuple[dict[str, Any], ...] = (
    {},
    {"seed": 7, "temperature": 0.9},
    {"seed": 8, "temperature": 1.1, "n": 2},
    {"stop": ["zz", "e t"]},
    {"seed": 9, "temperature": 0.7, "top_p": 0.8, "logprobs": True, "top_logprobs": 2},
    {"frequency_penalty": 0.5, "presence_penalty": 0.5},
    {"trace_id": upper_trace(1)},
    {"seed": 10, "temperature": 1.0, "n": 2, "trace_id": upper_trace(2)},
)
_COMPLETIONS: tuple[dict[str, Any], ...] = (
    {},
    {"stream": False},
    {"prompt": ["Once", "Twice"], "n": 2, "seed": 3, "temperature": 0.9},
    {"echo": True, "seed": 4, "temperature": 0.6},
    {"detokenize": False, "stop": None},
    {"repetition_penalty": 1.3, "top_k": 20, "seed": 5, "temperature": 1.2},
    {"stop": [" the"], "logprobs": 1},
    {"trace_id": upper_trace(3), "stop": ["\n"]},
)


def _chat(number: int, *, stream: bool, trace_id: str = "", **fields: Any) -> Good:
    words = f"Say something about the number {number}, in {'many ' * number}words."
    messages = [{"role": "user", "content": words}]
    body = _COMMON | {"messages": messages, "stream": stream} | fields
    return Good(f"chat {number}", "/v1/chat/completions", body, trace_id)


def _completion(number: int, *, trace_id: str = "", **fields: Any) -> Good:
    body = _COMMON | {"prompt": f"Chapter {number}. It was", "stream": True} | fields
    return Good(f"completion {number}", "/v1/completions", body, trace_id)


_COMMON: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": _TOKENS,
    "temperature": 0,
    "ignore_eos": True,
}


async def ask(client: httpx.AsyncClient, good: Good) -> Shown:
    """Its answer, read the same way from a stream and from a body."""
    trace = {"traceparent": f"00-{good.trace_id}-00f067aa0ba902b7-01"} if good.trace_id else {}
    response = await client.post(good.path, json=good.body, headers=trace)
    assert response.status_code == 200, (good.name, response.text)
    if not good.body["stream"]:
        return _shown([response.json()])
    lines = [line[6:] for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", (good.name, lines[-2:])
    return _shown([json.loads(line) for line in lines[:-1]])


def _shown(events: list[dict[str, Any]]) -> Shown:
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        index = choice["index"]
        part = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        ids = choice.get("token_ids")
        texts[index] = (
            texts.get(index, "") + (part.get("content") or "") + (str(ids) if ids else "")
        )
        reasons[index] = choice.get("finish_reason") or reasons.get(index, "")
    return [(texts[index], reasons[index]) for index in sorted(texts)]


@dataclass
class Chorus:
    """The sixteen, each asked again as soon as it has ended, until it is told to stop."""

    url: str
    alone: dict[str, Shown] = field(default_factory=dict)
    answered: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _stopping: bool = False
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    """One of them has."""

    async def hear_alone(self) -> None:
        """What each answers when nobody else asks."""
        async with self._client() as client:
            for good in sixteen():
                self.alone[good.name] = await ask(client, good)

    async def sing(self) -> None:
        async with self._client() as client, asyncio.TaskGroup() as group:
            for good in sixteen():
                group.create_task(self._repeat(client, good))

    def stop(self) -> None:
        """What is being answered is answered first."""
        self._stopping = True

    async def once_more(self) -> None:
        """Until every one has begun and ended once again."""
        wanted = {good.name: self.answered[good.name] + 2 for good in sixteen()}
        async with asyncio.timeout(_SECONDS):
            while not self.wrong and any(self.answered[name] < n for name, n in wanted.items()):
                self._ended.clear()
                await self._ended.wait()

    async def _repeat(self, client: httpx.AsyncClient, good: Good) -> None:
        while not self._stopping:
            try:
                shown = await ask(client, good)
            except (AssertionError, httpx.HTTPError, ValueError, KeyError) as error:
                self.wrong.append(f"{good.name}: {error!r}")
                self._ended.set()
                return
            if shown != self.alone[good.name]:
                self.wrong.append(f"{good.name}: {_difference(shown, self.alone[good.name])}")
            self.answered[good.name] += 1
            self._ended.set()

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=_SECONDS)


def _difference(shown: Shown, alone: Shown) -> str:
    """In few words: the end of what was shown, and how each ended."""
    return "; ".join(
        f"{text[-60:]!r} ({reason}) instead of {known[-60:]!r} ({known_reason})"
        for (text, reason), (known, known_reason) in zip(shown, alone, strict=False)
        if (text, reason) != (known, known_reason)
    )
