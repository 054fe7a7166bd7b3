"""What a frontend tells routers of a prompt beside its bytes: its blocks, and its session."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from fake_router import Reply
from harness import BODIES, CHAT, Harness, Start, key_line, say_hello, serving
from router_bench import Bench
from tokenizer_files import puts_around

from tandem.prefix_blocks import BLOCK_TOKENS, packed, session_number
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.reading.bodies import SMALL_BYTES
from tandem_frontend.openai.tokenizer import ModelTokenizer
from tandem_router.core import events
from tandem_router.core.actions import StartLeg
from tandem_router.core.values import Phase
from tandem_router.policies import Prefix

AGENTS = (
    "X-Claude-Code-Session-Id",
    "session-id",
    "session_id",
    "thread-id",
    "x-session-id",
    "x-dynamo-session-id",
    "x-session-token",
    "x-smg-routing-key",
)
"""Headers by which agents, and what stands before them, name a session."""
LONG = {"longest_context": 1_000_000}
"""Of workers that take long prompts."""


@pytest.mark.promise("S5-254")
@pytest.mark.parametrize("size", [0, SMALL_BYTES], ids=["on the loop", "in a process"])
async def test_a_router_is_told_the_blocks_of_each_prompt(start: Start, size: int) -> None:
    frontend = await start(say_hello)
    prompts = [[7] * 200, [7] * 100, [7] * (BLOCK_TOKENS - 1)]
    await frontend.complete(prompt=prompts, max_tokens=1, stop=["x" * 100] * 3, user="u" * size)
    told = {len(each.task.prompt_token_ids): each.submit for each in replies(frontend)}
    for prompt in prompts:
        assert told[len(prompt)].prompt_blocks == packed(prompt)
    assert [len(told[n].prompt_blocks) for n in (200, 100, 63)] == [24, 8, 0]


NAMED: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({}, {}, ""),
    ({"user": "a"}, {}, "a"),
    ({"user": "a", "prompt_cache_key": "b"}, {}, "b"),
    ({"user": "a", "prompt_cache_key": "b"}, {"x-session-id": "c"}, "c"),
    *(({"user": "a"}, {name: "c"}, "c") for name in AGENTS),
    ({}, {"x-session-id": "child", "x-parent-session-id": "parent"}, "parent"),
    ({}, {"x-dynamo-session-id": "child", "x-dynamo-parent-session-id": "parent"}, "parent"),
]


@pytest.mark.promise("S5-258")
async def test_a_router_is_told_a_number_for_the_session_that_a_client_names(start: Start) -> None:
    frontend = await start(say_hello)
    for fields, headers, session in NAMED:
        await frontend.http.post("/v1/chat/completions", json=CHAT | fields, headers=headers)
        told = frontend.router.last.submit.session
        assert told == (session_number(session) if session else 0), (fields, headers)
    for path, more in (
        ("/v1/responses", {"prompt_cache_key": "s"}),
        ("/v1/messages", {"metadata": {"user_id": "s"}}),
    ):
        body = {"model": CHAT["model"], **BODIES[path], **more}
        assert (await frontend.http.post(path, json=body)).status_code == 200
        assert frontend.router.last.submit.session == session_number("s")


@pytest.mark.promise("S5-641")
async def test_25_sessions_of_each_agents_header_are_kept_on_their_worker(start: Start) -> None:
    """What the frontend tells of two turns is told to a router's core with two prefill workers.
    Prompts are shorter than a block: nothing but the header tells them apart.
    """
    frontend = await start(say_hello)
    for header in FrontendConfig(model_path="any").session_headers:
        router = TwoWorkers()
        for turn in range(2):
            frontend.router.replies.clear()
            async with asyncio.TaskGroup() as group:
                for each in range(25):
                    head = {header: f"session-{each}"}
                    group.create_task(
                        frontend.http.post("/v1/chat/completions", json=CHAT, headers=head)
                    )
            router.take([each.submit.session for each in replies(frontend)], at_once=turn == 0)
        assert len(router.where) == 25, header
        assert [len(each) for each in router.where.values()] == [1] * 25, header
        assert len(set[str]().union(*router.where.values())) == 2, "one worker shows nothing"


class TwoWorkers:
    """A router's core, and where it has sent each session."""

    def __init__(self) -> None:
        self._bench = Bench(0, 1, prefill_policy=lambda: Prefix(random.Random(1).randrange))
        for phase, index in ((Phase.DECODE, 1), (Phase.PREFILL, 0), (Phase.PREFILL, 1)):
            self._bench.worker(phase, index, max_sequences=64)
        self._numbers = itertools.count(1)
        self.where: defaultdict[int, set[str]] = defaultdict(set)

    def take(self, sessions: list[int], *, at_once: bool) -> None:
        """`at_once`: all are open together, and so spread over the workers."""
        opened = []
        for session in sessions:
            self._bench.submit(next(self._numbers), prompt_tokens=50, session=session)
            legs = self._bench.legs()
            self.where[session].add(legs[0].worker)
            opened.append(legs)
            if not at_once:
                self._close(*opened.pop())
        for legs in opened:
            self._close(*legs)

    def _close(self, prefill: StartLeg, decode: StartLeg) -> None:
        self._bench.close(prefill)
        self._bench.feed(events.LegStarted(decode.worker, decode.leg))
        self._bench.close(decode)


def replies(frontend: Harness) -> list[Reply]:
    """To what the router was asked."""
    return list(frontend.router.replies.values())


def conversation(turns: int, size: int) -> list[dict[str, str]]:
    roles = itertools.cycle(("user", "assistant"))
    return [
        {"role": role, "content": f"{number} " + "words and more of them " * (size // 20)}
        for number, role in zip(range(turns), roles, strict=False)
    ]


@pytest.mark.promise("S5-646")
@pytest.mark.parametrize(
    ("size", "settings"),
    [
        (2200, {}),
        (9000, {}),
        (9000, {"read_processes": 1}),
        (9000, {"prefix_store_mb": 0}),
        (80_000, {}),
    ],
    ids=["on the loop", "in a process", "in one process", "without a store", "large"],
)
async def test_a_next_turn_has_the_tokens_that_it_has_alone(
    start: Start, size: int, settings: dict[str, Any]
) -> None:
    frontend = await start(say_hello, **settings)
    other = await start(say_hello, prefix_store_mb=0)
    for each in (frontend, other):
        await each.set_fleet(**LONG)
    for turns in (3, 5, 5):
        messages = conversation(turns, size)
        for each in (frontend, other):
            assert (await each.chat(messages=messages, max_tokens=1)).status_code == 200
    for one, two in zip(replies(frontend), replies(other), strict=True):
        assert one.task.prompt_token_ids == two.task.prompt_token_ids
        assert one.submit.prompt_blocks == two.submit.prompt_blocks
        assert one.submit.prompt_tokens == len(two.task.prompt_token_ids)
    tokens = sum(len(each.task.prompt_token_ids) for each in replies(frontend))
    read = tokens - await frontend.metric("tandem_frontend_known_prompt_tokens_total")
    if settings.get("prefix_store_mb") == 0:
        assert read == tokens
    else:
        longest = len(frontend.router.last.task.prompt_token_ids)
        assert longest <= read < 1.2 * longest
        assert await frontend.metric("tandem_frontend_prefix_store_bytes") > 4 * longest


@pytest.mark.promise("S5-650")
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("size", [1500, 9000, 80_000], ids=["on the loop", "in a process", "large"])
async def test_prompts_of_completions_have_the_tokens_that_they_have_alone(
    size: int, echo: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "tandem-tiny"
    folder.mkdir()
    puts_around(folder, "both")
    tokenizer = ModelTokenizer(folder)
    async with serving(folder, say_hello, {}) as frontend:
        await frontend.set_fleet(**LONG)
        for turns in (3, 5, 5):
            prompts = [
                "".join(
                    f"<|im_start|>{each['role']}\n{name}{each['content']}<|im_end|>\n"
                    for each in conversation(turns, size)
                )
                for name in "ab"
            ]
            frontend.router.replies.clear()
            answer = await frontend.complete(prompt=[*prompts, "Hello"], max_tokens=1, echo=echo)
            assert answer.status_code == 200, answer.text
            told = {tuple(each.task.prompt_token_ids): each.submit for each in replies(frontend)}
            for number, prompt in enumerate([*prompts, "Hello"]):
                ids = tokenizer.encode(prompt, add_special_tokens=True)
                assert told[tuple(ids)].prompt_blocks == packed(ids)
                shown = prompt if echo else ""
                assert answer.json()["choices"][number]["text"] == shown + "Hello!"
        known = await frontend.metric("tandem_frontend_known_prompt_tokens_total")
        assert known > sum(map(len, told))


@pytest.mark.promise("S5-647", "S6-374")
async def test_a_prompt_of_one_key_is_known_to_no_other(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_text(key_line("a") + key_line("b"))
    frontend = await start(say_hello, api_keys_file=str(path))
    await frontend.set_fleet(**LONG)
    known = []
    for key in ("a", "a", "b"):
        body = CHAT | {"messages": conversation(3, 3000), "max_tokens": 1}
        headers = {"authorization": f"Bearer {key}"}
        answer = await frontend.http.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200
        known.append(await frontend.metric("tandem_frontend_known_prompt_tokens_total"))
    assert known[0] == 0 < known[1] == known[2]
