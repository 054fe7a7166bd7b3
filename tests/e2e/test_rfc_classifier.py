"""Seed 004 by its letter: the RFC's own class on every endpoint and in both executors."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import switch_hook
from rfc_classifier import PolicyHook
from stacks import MODEL, SIM_READY_SECONDS, Served, options

from tandem.cli.stack import Stack
from tandem_executor import (
    AsyncExecutor,
    Executor,
    ExecutorConfig,
    OutputConfig,
    Request,
    Response,
)

SECONDS = 60.0
PROMPT = [101, 102, 103, 104]
REPLACED = "Replaced by policy."
SETTINGS = """
hook: switch_hook.SwitchHook
classifiers:
  hold_back: all
  logprobs: true
  entries: ["rfc_classifier:PolicyHook"]
"""
USER = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "max_tokens": 8},
    "/v1/completions": {"prompt": "hello", "max_tokens": 8},
    "/v1/responses": {"input": "hello", "max_output_tokens": 8},
    "/v1/messages": {"messages": USER, "max_tokens": 8},
}


@pytest.fixture(scope="module")
def judged(
    model_path: Path, hook_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A sim stack whose decode worker loads the class by its path."""
    tmp = tmp_path_factory.mktemp("rfc")
    settings = tmp / "decode.yaml"
    settings.write_text(SETTINGS)
    flags = {
        "frontend": ("--allow-external-scores", "--extra-fields=my_policy"),
        "prefill_worker": ("--propagate-terminate",),
        "decode_worker": (f"--config={settings}",),
    }
    with Stack(options("sim", model_path, hook_decode="", flags=flags), run_dir=tmp) as stack:
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        yield Served("sim", stack, hook_log)


@pytest.mark.promise("S4-130", "S4-125", "S4-103", "S4-113")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", list(BODIES))
def test_the_rfcs_class_judges_every_endpoint(judged: Served, path: str, stream: bool) -> None:
    def ask(policy: Any) -> str:
        body = {"model": MODEL, "my_policy": policy, "stream": stream, **BODIES[path]}
        answer = httpx.post(f"{judged.url}{path}", json=body, timeout=SECONDS)
        assert answer.status_code == 200, answer.text
        assert "x-tandem-ignored-fields" not in answer.headers
        return answer.text

    assert REPLACED in ask("strict")
    assert REPLACED not in ask(["lenient", {"deeply": None}])


@pytest.mark.promise("S0-038")
@pytest.mark.parametrize(
    ("asked", "counted"),
    [
        ({"phase": "prefill", "behaviour": switch_hook.TERMINATE_FIRST}, 1),
        ({"phase": "decode", "behaviour": switch_hook.TERMINATE_THIRD}, 3),
        ({"policy": "strict"}, 8),
        ({"policy": ["lenient"]}, 8),
    ],
    ids=["prefill's hook", "decode's hook", "blocked", "shown"],
)
@pytest.mark.parametrize("path", list(BODIES))
def test_usage_counts_what_was_generated_streamed_and_whole(
    judged: Served, path: str, asked: dict[str, Any], counted: int
) -> None:
    """Also what nobody was shown: the token that prefill's hook terminated."""
    behaviour = asked.get("behaviour", switch_hook.PASS)
    for stream in (False, True):
        trace_id = switch_hook.trace(behaviour, asked.get("phase", "decode"))
        body = {"model": MODEL, "stream": stream, **BODIES[path], "temperature": 0}
        if path.endswith("completions"):
            body["ignore_eos"] = True
            body |= {"stream_options": {"include_usage": True}} if stream else {}
        answer = httpx.post(
            f"{judged.url}{path}",
            json=body | {"my_policy": asked.get("policy", ["lenient"])},
            headers={"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"},
            timeout=SECONDS,
        )
        found = re.findall(r'"(?:completion|output)_tokens": ?(\d+)', answer.text)
        assert int(found[-1]) == counted, answer.text


@pytest.mark.promise("S4-106", "S4-130")
def test_its_scores_are_those_of_the_request(judged: Served) -> None:
    body = {"model": MODEL, **BODIES["/v1/completions"], "my_policy": ["lenient", {"deep": None}]}
    asked = {**body, "tandem": {"external_scores": True}, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{judged.url}/v1/completions", json=asked, timeout=SECONDS).json()
    scores = answer["choices"][0]["external_scores"]["policy"]
    assert scores == {"block": False, "tokens": 8, "seen": {"my_policy": body["my_policy"]}}


@asynccontextmanager
async def _executor(kind: str, where: str | Path, config: ExecutorConfig) -> AsyncIterator[Any]:
    if kind == "asyncio":
        async with AsyncExecutor(where, config) as executor:
            yield executor
        return
    threaded = await asyncio.to_thread(Executor, where, config)
    try:
        yield threaded
    finally:
        await asyncio.to_thread(threaded.shutdown)


async def _ask(executor: Any, policy: str) -> Response:
    output = OutputConfig(
        return_external_scores=True, exclude_input_from_output=True, return_log_probs=True
    )
    fields = {"my_policy": policy}
    request = Request(PROMPT, 8, output_config=output, extra_fields=fields)
    request_id = executor.enqueue_request(request)
    if isinstance(executor, AsyncExecutor):
        (response,) = await executor.await_responses(request_id, SECONDS)
    else:
        (response,) = await asyncio.to_thread(executor.await_responses, request_id, SECONDS)
    found: Response = response
    return found


@pytest.mark.promise("S4-130", "S4-122", "S4-123", "S4-124")
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
@pytest.mark.parametrize("where", ["engines of its own", "a router elsewhere"])
async def test_the_rfcs_class_judges_for_programs(
    judged: Served, model_path: Path, kind: str, where: str
) -> None:
    own = where == "engines of its own"
    held_back = {"classifiers": {"hold_back": "all"}}
    config = ExecutorConfig(engine="sim", worker_settings=held_back) if own else ExecutorConfig()
    address = judged.stack.components["router"].address
    async with _executor(kind, model_path if own else address, config) as executor:
        if own:
            executor.register_external_classifier_hook(PolicyHook())
        passed, blocked = await _ask(executor, "lenient"), await _ask(executor, "strict")
    scores = {"block": False, "tokens": 8, "seen": {"my_policy": "lenient"}}
    assert passed.result.external_scores == {"policy": scores}
    assert len(passed.result.output_token_ids[0]) == 8
    result = blocked.result
    assert (result.withheld, result.stop_reason) == (True, "policy")
    assert (result.replacement, result.output_token_ids) == (REPLACED, [[]])
    assert result.log_probs == [[]]
    assert json.dumps(result.external_scores)
