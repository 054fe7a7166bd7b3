"""What clients see when parts of real SGLang die under them: one stack is brought down, a part
after the other.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from resuming import (
    CASES,
    SEEDED,
    UNFORGIVING,
    Answer,
    answer,
    kill,
    metrics,
    resumed,
    serving,
    until,
    whole,
)
from stacks import MODEL, SGLANG_READY_SECONDS, metric_sum

from tandem.cli.stack import Stack

zmq = pytest.importorskip("zmq", reason="SGLang brings it")
pytestmark = [pytest.mark.sglang, pytest.mark.timeout(2 * SGLANG_READY_SECONDS + 240)]
FOUND_WITHIN = 40.0
"""Seconds within which a dead scheduler must have become an error: its prefill needs six."""
LONG: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True, "stream": True}
LEAST = 6
"""Sequences of which a worker dies, of a dozen or more that it has."""
RUNS = 30
"""Requests beside each other, of all cases."""
DECODE = ("decode_worker-0", "decode_worker-1")


@pytest.fixture(scope="module")
def stack(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A prefill worker, two decode workers, and a router that refuses at once where no pair is."""
    yield from serving(
        model_path,
        tmp_path_factory.mktemp("failures"),
        engine="sglang",
        engine_options=("dtype=float32",),
        flags={"router": (*UNFORGIVING, "--pair-memory-seconds=0")},
        ready_seconds=SGLANG_READY_SECONDS,
    )


def standing(stack: Stack) -> list[str]:
    """The names of the stack's decode workers that are alive."""
    return [name for name in DECODE if stack.components[name].process.poll() is None]


@pytest.mark.promise("S5-217")
@pytest.mark.parametrize("deaths", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_real_engines_go_on_exactly(stack: Stack, deaths: int) -> None:
    """Greedily, by seeds, with penalties, in a form, with processors and several outputs, on the
    CPU. Each death has its part of the cases, and comes later in their outputs than the one before.
    """
    regex = SEEDED | {"guided_regex": "[a-z ]{200}", "ignore_eos": False}
    cases = CASES | {"regex": regex, "seeded penalties": SEEDED | CASES["penalties"]}
    names = sorted(cases)
    earlier = await resumed(stack, "finished")
    for number, place in enumerate((4, 13)[:deaths]):
        part = {name: cases[name] for name in names[number::deaths]}
        for name in set(DECODE) - set(standing(stack)):
            stack.restart(name)
        await one_dies(stack, part, victim=DECODE[number], place=place)
    assert await resumed(stack, "finished") - earlier >= len(CASES)
    assert await resumed(stack, "failed") == 0


async def one_dies(
    stack: Stack,
    cases: dict[str, dict[str, Any]],
    *,
    victim: str,
    place: int,
) -> None:
    """At a token of the cases, which run beside each other, so often that the worker has enough of
    them: some end early. When it dies is told by itself: the other one may be far ahead.
    """
    await whole(stack, SGLANG_READY_SECONDS)
    cases = {name: fields | {"max_tokens": 150} for name, fields in cases.items()}
    undisturbed = {}

    async def undisturb(name: str) -> None:
        # One goes to either worker as a rule, and to the same one now and then.
        twice = await asyncio.gather(*(answer(stack, cases[name]) for _ in range(2)))
        undisturbed[name], other = map(comparable, twice)
        assert undisturbed[name] == other
        assert not other.error

    forms = [name for name, fields in cases.items() if any("guided" in each for each in fields)]
    await asyncio.gather(*(undisturb(name) for name in cases.keys() - forms))
    for name in forms:
        # A worker that has not seen a form would begin it when all others have ended.
        before = await forms_seen(stack)
        while any(now <= then for now, then in zip(await forms_seen(stack), before, strict=True)):
            await undisturb(name)
    earlier = await resumed(stack, "finished")
    made, _ = await at_work(stack, victim)

    async def at_the_place() -> bool:
        tokens, running = await at_work(stack, victim)
        return running >= LEAST and tokens - made >= place * running

    often = sorted(RUNS // len(cases) * [*cases])  # a case's runs are shared out between the two
    running = [(name, asyncio.create_task(answer(stack, cases[name]))) for name in often]
    await until(at_the_place, within=60)
    kill(stack, victim)
    answers = [(name, comparable(await task)) for name, task in running]
    others = [each for each in answers if each[1] != undisturbed[each[0]]]
    assert not others, [(each, undisturbed[each[0]]) for each in others]
    assert await resumed(stack, "finished") - earlier >= LEAST // 2  # some end as it is killed
    stack.components[victim].process.wait(10)


async def at_work(stack: Stack, worker: str) -> tuple[float, float]:
    """Tokens that it has made, and sequences that it runs."""
    text = await metrics(stack, worker)
    tokens, opened, waiting = (
        metric_sum(text, f"tandem_worker_{name}", {})
        for name in ("tokens_total", "open_legs", "waiting_legs")
    )
    return tokens, opened - waiting


async def forms_seen(stack: Stack) -> list[float]:
    """By either decode worker."""
    compiled = "tandem_form_compilations_total", {"outcome": "compiled"}
    return [metric_sum(await metrics(stack, name), *compiled) for name in DECODE]


def comparable(given: Answer) -> Answer:
    """Log-probabilities depend on who else is in a batch, in their last digits, and what is cached
    on who came before.
    """
    given.usage.pop("prompt_tokens_details", None)
    given.logprobs = {choice: [each[:1] for each in of] for choice, of in given.logprobs.items()}
    return given


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "The for statement is used to", **fields}


async def _events(client: httpx.AsyncClient, url: str) -> AsyncIterator[dict[str, Any]]:
    async with client.stream("POST", f"{url}/v1/completions", json=_body(**LONG)) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


def _scheduler(stack: Stack, name: str) -> psutil.Process:
    """SGLang's scheduler is a child of the worker that names itself."""
    worker = psutil.Process(stack.components[name].pid)
    (found,) = (each for each in worker.children() if "sglang::scheduler" in each.cmdline()[0])
    return found


def _send_stray_frame(scheduler: psutil.Process) -> None:
    """To each of its ports: by what it cannot read, SGLang's KV thread alone would end."""
    with zmq.Context() as context:
        for connection in scheduler.net_connections("tcp4"):
            if connection.status == psutil.CONN_LISTEN:
                with context.socket(zmq.PUSH) as stranger:
                    stranger.linger = 1000
                    stranger.connect(f"tcp://127.0.0.1:{connection.laddr.port}")
                    stranger.send_multipart([b"stray"])


@pytest.mark.promise("S5-461")
async def test_stray_frames_cost_nobody_and_a_scheduler_that_dies_is_a_typed_error_in_bounded_time(
    stack: Stack,
) -> None:
    decode, *others = standing(stack)
    for other in others:
        kill(stack, other)
        await asyncio.to_thread(stack.components[other].process.wait, 30)
    await until(partial(_one_pair_stands, stack), within=FOUND_WITHIN)
    async with httpx.AsyncClient(timeout=60) as client:
        stream = _events(client, stack.url)
        assert "choices" in await anext(stream)

        for name in ("prefill_worker-0", decode):
            _send_stray_frame(_scheduler(stack, name))
        answered = await client.post(f"{stack.url}/v1/completions", json=_body(max_tokens=4))
        assert answered.status_code == 200, answered.text
        assert "choices" in await anext(stream)

        _scheduler(stack, "prefill_worker-0").kill()
        began = time.monotonic()
        refused = await client.post(f"{stack.url}/v1/completions", json=_body(max_tokens=4))
        assert refused.status_code in (502, 503)
        codes = ("worker_lost", "engine_error", "kv_transfer_failed", "no_pair")
        assert refused.json()["error"]["code"] in codes
        assert time.monotonic() - began < FOUND_WITHIN
        # What decode already has does not need prefill any more.
        assert "choices" in await anext(stream)

        _scheduler(stack, decode).kill()
        async with asyncio.timeout(FOUND_WITHIN):
            last = [event async for event in stream][-1]
        assert last["error"]["code"] in ("worker_lost", "engine_error")
        refused = await client.post(f"{stack.url}/v1/completions", json=_body(max_tokens=4))
        assert refused.json()["error"]["code"] == "no_pair"
        for name in ("prefill_worker-0", decode):
            ended = stack.components[name].process
            assert await asyncio.to_thread(ended.wait, 30) == 1


async def _one_pair_stands(stack: Stack) -> bool:
    text = await metrics(stack, "router")
    return metric_sum(text, "tandem_router_ready_pairs", {}) == 1
