"""Adapters of one model in whole stacks: what each says is its own, however requests are mixed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError

import httpx
import pytest
import resuming
from make_lora_adapter import make
from sim_oracle import Oracle
from stacks import HERE, MODEL, SIM_READY_SECONDS, Served

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack, StackError

NAMES = ("sql", "tone")
TOKENS = 24
PATIENCE = 120.0
PHASES = ("prefill_worker", "decode_worker")


@pytest.fixture(scope="module")
def adapters(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: make(model_path, folder / name, seed=seed) for seed, name in enumerate(NAMES)}


def flag(adapters: dict[str, Path], names: Sequence[str] = NAMES) -> str:
    return "--lora-adapters=" + ",".join(f"{name}={adapters[name]}" for name in names)


def options(model_path: Path, flags: dict[str, tuple[str, ...]], **more: Any) -> StackOptions:
    return StackOptions(
        **{
            "model_path": model_path,
            "engine": "sim",
            "engine_options": ("step_ms=1",),
            "flags": flags,
        }
        | more
    )


@pytest.fixture(scope="module", params=["pairs", "aggregated"])
def served(
    request: pytest.FixtureRequest,
    model_path: Path,
    adapters: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    """Two workers of each phase, or one that serves both; hooks write down what they see."""
    own = (flag(adapters), "--hook=switch_hook.SwitchHook")
    counts: dict[str, Any] = {"prefill": 2, "decode": 2}
    if request.param == "aggregated":
        counts = {"prefill": 0, "decode": 0, "aggregated": 1}
    flags = dict.fromkeys((*PHASES, "aggregated_worker"), own)
    run_dir = tmp_path_factory.mktemp("lora")
    log = run_dir / "calls.jsonl"
    log.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))
        patch.setenv("SWITCH_HOOK_LOG", str(log))
        with Stack(options(model_path, flags, **counts), run_dir=run_dir) as stack:
            stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
            yield Served("sim", stack, log)


async def ask(http: httpx.AsyncClient, name: str, prompt: list[int], **more: Any) -> list[Any]:
    """The token ids of each choice."""
    body = {
        "model": f"{MODEL}:{name}" if name else MODEL,
        "prompt": prompt,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "detokenize": False,
        **more,
    }
    answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == body["model"]
    return [each["token_ids"] for each in answer.json()["choices"]]


@pytest.mark.promise("S5-410")
async def test_a_mixture_of_adapters_answers_as_each_does_alone(served: Served) -> None:
    oracle = Oracle()
    async with httpx.AsyncClient(base_url=served.url, timeout=PATIENCE) as http:

        async def check(name: str, number: int) -> None:
            prompt = [100 + number, *range(200, 260)]
            expected = oracle.answer(prompt, TOKENS, name)
            assert await ask(http, name, prompt, n=2) == [expected] * 2, name

        async with asyncio.TaskGroup() as group:
            for number in range(12):
                for name in ("", *NAMES):
                    group.create_task(check(name, number % 6))
        cards = (await http.get("/v1/models")).json()["data"]
    assert [each["id"] for each in cards] == [MODEL, *(f"{MODEL}:{name}" for name in NAMES)]


@pytest.mark.promise("S5-411")
async def test_an_adapter_that_workers_do_not_have_is_not_found(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url, timeout=PATIENCE) as http:
        body = {"model": f"{MODEL}:none", "prompt": "a"}
        answer = await http.post("/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.promise("S5-416")
async def test_hooks_of_both_phases_are_told_which_adapter_wrote(served: Served) -> None:
    traces: dict[str, str] = {}
    async with httpx.AsyncClient(base_url=served.url, timeout=PATIENCE) as http:
        for name in ("", *NAMES):
            full = f"{MODEL}:{name}" if name else MODEL
            answer = await http.post("/v1/completions", json={"model": full, "prompt": "a b"})
            traces[answer.headers["x-tandem-trace-id"]] = name
    for trace_id, name in traces.items():
        calls = served.hook_calls(trace_id)
        assert {(call["phase"], call["lora_adapter"]) for call in calls} == {
            ("prefill", name),
            ("decode", name),
        }


@pytest.mark.promise("S5-412")
async def test_phases_with_unequal_sets_never_serve(
    model_path: Path, tmp_path: Path, adapters: dict[str, Path]
) -> None:
    flags = {"prefill_worker": (flag(adapters),), "decode_worker": (flag(adapters, ["sql"]),)}
    with Stack(options(model_path, flags), run_dir=tmp_path) as stack:
        served = Served("sim", stack, tmp_path / "none")
        rejected = "tandem_router_pair_rejected_total"
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(URLError):  # it starts
                    if served.metric("router", rejected, reason="lora_sha256"):
                        break
                await asyncio.sleep(0.1)
        assert served.metric("router", "tandem_router_ready_pairs") == 0


@pytest.mark.promise("S5-415")
def test_a_worker_with_an_adapter_of_another_model_does_not_start(
    model_path: Path, tmp_path: Path, adapters: dict[str, Path]
) -> None:
    folder = make(model_path, tmp_path / "wrong", seed=3)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 3}))
    flags = dict.fromkeys(PHASES, (f"--lora-adapters=wrong={folder}",))
    with (
        pytest.raises(StackError, match=r"wrong .*has the shape"),
        Stack(options(model_path, flags), run_dir=tmp_path / "run") as stack,
    ):
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)


@pytest.mark.promise("S5-416")
async def test_a_request_that_is_resumed_goes_on_with_its_adapter(
    model_path: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    own = (flag(adapters),)
    flags = {"router": resuming.UNFORGIVING, **dict.fromkeys(PHASES, own)}
    serving = contextlib.contextmanager(resuming.serving)
    with serving(model_path, tmp_path / "resuming", flags=flags) as stack:
        await resuming.whole(stack)
        names = ["", *NAMES]
        # So many tokens that the worker is not through when its client, on a busy machine, sees 4.
        models = [f"{MODEL}:{name}" if name else MODEL for name in names]
        cases = [{"model": model, "max_tokens": 150} for model in models]
        undisturbed = await asyncio.gather(*(resuming.answer(stack, case) for case in cases))
        assert len({each.texts[0] for each in undisturbed}) == len(names)
        bystanders = [await resuming.begun(stack) for _ in range(2)]
        killed = False

        def seen(events: int) -> None:
            nonlocal killed
            if events >= 4 and not killed:
                killed = True
                resuming.kill(stack, "decode_worker-0")

        # Each is sent twice: either worker has one.
        running = [asyncio.create_task(resuming.answer(stack, case, seen)) for case in 2 * cases]
        assert await asyncio.gather(*running) == 2 * undisturbed
        assert killed
        assert await resuming.resumed(stack, "finished") >= 1
        await resuming.let_go(bystanders)
