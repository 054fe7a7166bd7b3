"""Two models behind one endpoint, each with workers, tokenizer and template of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from second_model import second_model
from stacks import MODEL, SIM_READY_SECONDS, Served

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem.engine.model_files import eos_token_ids
from tandem.logits.spec import FORCED_SEQUENCE, forced_token_sequence
from tandem.text.tokenizer import Tokenizer
from tandem_frontend.openai.reading.bodies import SMALL_BYTES

SECOND = "second"
PATIENCE = 60.0
SAYING = "This is what only the workers of {} can say."


@pytest.fixture
def second(model_path: Path, tmp_path: Path) -> Path:
    return second_model(model_path, tmp_path / SECOND)


@asynccontextmanager
async def running(
    model_path: Path, run_dir: Path, *further: Path, **frontend: Any
) -> AsyncIterator[tuple[Served, httpx.AsyncClient]]:
    """A sim stack; `frontend`: settings of it."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in frontend.items()]
    options = StackOptions(
        model_path=model_path,
        further_models=further,
        engine="sim",
        engine_options=("step_ms=1",),
        flags={"frontend": (f"--client-logits-processors={FORCED_SEQUENCE}", *flags)},
    )
    with Stack(options, run_dir=run_dir) as stack:
        await asyncio.to_thread(stack.wait_ready, timeout_seconds=SIM_READY_SECONDS)
        async with httpx.AsyncClient(base_url=stack.url, timeout=PATIENCE) as http:
            yield Served("sim", stack, run_dir / "none"), http


async def until_served(http: httpx.AsyncClient, name: str, status: int = 200) -> httpx.Response:
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await http.post(
                "/v1/completions", json={"model": name, "prompt": "a", "max_tokens": 1}
            )
            if answer.status_code == status:
                return answer
            await asyncio.sleep(0.1)


class Speaker:
    """Requests whose answers are right only where one model's tokens stay that model's."""

    def __init__(self, http: httpx.AsyncClient, folders: dict[str, Path]) -> None:
        self._http = http
        self._forced: dict[str, Any] = {}
        for name, folder in folders.items():
            tokens = Tokenizer.load(folder).encode(SAYING.format(name), special_tokens=False)
            entry = forced_token_sequence(tokens, min(eos_token_ids(folder)))
            self._forced[name] = {"name": entry.name, "args": dict(entry.args)}

    async def ask(self, name: str, *, stream: bool, padding: int = 0) -> None:
        body = {
            "model": name,
            "messages": [{"role": "user", "content": "Hello"}],
            "invented": "x" * padding,
            "max_tokens": 64,
            "stream": stream,
            "logits_processors": [self._forced[name]],
        }
        answer = await self._http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        if stream:
            lines = [line for line in answer.text.split("\n\n") if line.startswith("data: {")]
            chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
            assert {chunk["model"] for chunk in chunks} == {name}
            text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        else:
            text = answer.json()["choices"][0]["message"]["content"]
            assert answer.json()["model"] == name
        assert text == SAYING.format(name)


async def interleaved(http: httpx.AsyncClient, folders: dict[str, Path]) -> None:
    speaker = Speaker(http, folders)
    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            for name in folders:
                for stream in (True, False):
                    group.create_task(speaker.ask(name, stream=stream))
        for name in folders:  # large enough to be read in a process
            group.create_task(speaker.ask(name, stream=False, padding=SMALL_BYTES))


@pytest.mark.promise("S6-325")
async def test_a_frontend_joins_the_routers_of_two_releases(
    model_path: Path, tmp_path: Path, second: Path
) -> None:
    async with running(second, tmp_path / "other") as (other, _):
        routers = other.stack.components["router"].address
        # A frontend of its own for both: the last flag of a name counts.
        async with running(
            model_path, tmp_path / "run", models=f"{SECOND}={second}", router=f"{routers}"
        ) as (served, http):
            await until_served(http, SECOND)
            assert (await http.get(f"/v1/models/{MODEL}")).status_code == 200
            joined = served.stack.components["frontend"]
            own = served.stack.components["router"].address
            joined.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(joined.process.wait, PATIENCE)
            flags = (*joined.launch.flags, f"--router={own},{routers}")
            joined.launch = replace(joined.launch, flags=flags)
            served.stack.restart("frontend")
            await asyncio.to_thread(served.stack.wait_ready, timeout_seconds=SIM_READY_SECONDS)
            for name in (MODEL, SECOND):
                await until_served(http, name)
            await interleaved(http, {MODEL: model_path, SECOND: second})


@pytest.mark.promise("S6-325")
async def test_models_behind_one_router_never_cross_and_workers_that_leave_cost_their_own_alone(
    model_path: Path, tmp_path: Path, second: Path
) -> None:
    """The workers may come back."""
    async with running(
        model_path, tmp_path / "run", second, router_wait_seconds=0.2, model_unload_seconds=0
    ) as (served, http):
        await until_served(http, SECOND)
        await interleaved(http, {MODEL: model_path, SECOND: second})
        name = "tandem_frontend_model_requests_total"
        for model in (MODEL, SECOND):
            count = served.metric("frontend", name, model=model, outcome="success")
            assert count == 21 + (model == SECOND)
        leaving = [served.stack.components[f"{phase}_worker-1"] for phase in ("prefill", "decode")]
        for worker in leaving:
            worker.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(worker.process.wait, PATIENCE)
        answer = await until_served(http, SECOND, 503)
        assert answer.json()["error"]["code"] == "no_pair"
        await Speaker(http, {MODEL: model_path}).ask(MODEL, stream=False)
        for worker in leaving:
            served.stack.restart(worker.name)
        await until_served(http, SECOND)
        await interleaved(http, {MODEL: model_path, SECOND: second})


@pytest.mark.promise("S6-326")
async def test_weights_that_change_under_load_lose_nothing_and_are_kept(
    model_path: Path, tmp_path: Path, second: Path
) -> None:
    file = tmp_path / "names.yaml"

    def weigh(first: int, other: int) -> None:
        fresh = file.with_suffix(".new")
        fresh.write_text(f"chat:\n  {MODEL}: {first}\n  {SECOND}: {other}\n")
        os.replace(fresh, file)

    weigh(1, 0)
    async with running(model_path, tmp_path / "run", second, model_names_file=file) as (
        served,
        http,
    ):
        await until_served(http, SECOND)
        stopped = asyncio.Event()
        outcomes: Counter[int] = Counter()

        async def client() -> None:
            body = {"model": "chat", "prompt": "Hello", "max_tokens": 3}
            while not stopped.is_set():
                answer = await http.post("/v1/completions", json=body)
                outcomes[answer.status_code] += 1

        def went(model: str) -> float:
            return served.metric(
                "frontend", "tandem_frontend_model_requests_total", model=model, outcome="success"
            )

        async def until(model: str, more: int) -> None:
            first = went(model)
            async with asyncio.timeout(PATIENCE):
                while True:
                    if went(model) >= first + more:
                        return
                    await asyncio.sleep(0.05)

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(client())
            before = went(SECOND)
            await until(MODEL, 20)
            assert went(SECOND) == before
            weigh(1, 1)
            await until(SECOND, 20)
            weigh(0, 1)
            await until(SECOND, 20)
            settled = -1.0
            async with asyncio.timeout(PATIENCE):
                while settled != went(MODEL):  # until the file's new weights count
                    settled = went(MODEL)
                    await until(SECOND, 20)
            stopped.set()
        assert set(outcomes) == {200}
