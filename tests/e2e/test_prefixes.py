"""A prompt's beginning is computed once: `usage` says so, over whole stacks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from stacks import SIM_READY_SECONDS, Served, options

from tandem.cli.stack import Stack
from tandem.prefix_blocks import BLOCK_TOKENS

PROMPT = [n % 90 + 10 for n in range(6 * BLOCK_TOKENS + 10)]


@pytest.fixture(scope="module")
def cached(
    model_path: Path, hook_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    run_dir = tmp_path_factory.mktemp("prefixes")
    made = options("sim", model_path, prefill=3, engine_options=("prefix_cache_tokens=100000",))
    with Stack(made, run_dir=run_dir) as stack:
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        yield Served("sim", stack, hook_log)


def cached_tokens(served: Served, prompt: list[int], **fields: Any) -> int:
    body = {"model": "tandem-tiny", "prompt": prompt, "max_tokens": 2, **fields}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
    answer.raise_for_status()
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.promise("S5-255", "S5-256")
def test_a_second_turn_is_sent_where_the_first_one_is_cached(cached: Served) -> None:
    """By chance it would be one time in three."""
    for start in range(5):
        prompt = [100 + start, *PROMPT]
        assert cached_tokens(cached, prompt) == 0
        assert cached_tokens(cached, [*prompt, *PROMPT[:100]]) == 6 * BLOCK_TOKENS


@pytest.mark.promise("S5-257")
def test_several_outputs_of_a_prompt_are_prefilled_once(cached: Served) -> None:
    before = computed(cached)
    cached_tokens(cached, [110, *PROMPT], n=4)
    told = 4 * (len(PROMPT) + 1) - 3 * 6 * BLOCK_TOKENS
    assert computed(cached) - before == told


@pytest.mark.promise("S5-642", "S5-643")
def test_a_clock_at_the_beginning_is_told_of_until_the_session_ends(cached: Served) -> None:
    """Of tokens, so that a block is where it is; the session's name is in no document."""
    session = {"session_control": {"session_id": "a clock in its instructions"}}
    before = cached.metric("router", "tandem_router_lost_hit_tokens_total")
    for clock in range(4):
        prompt = [120, *PROMPT[:BLOCK_TOKENS], 121 + clock, *PROMPT]
        cached_tokens(cached, prompt, nvext=session)
    assert cached.metric("router", "tandem_router_sessions") == 1
    lost = cached.metric("router", "tandem_router_lost_hit_tokens_total") - before
    assert lost == 2 * 6 * BLOCK_TOKENS, "of the third prompt and the fourth"
    address = cached.stack.components["router"].launch.metrics
    text = httpx.get(f"http://{address}/debug/lost-hits").text
    assert "clock" not in text
    (told,) = json.loads(text)["sessions"]
    assert (told["token"], told["turns"], told["tokens"]) == (64, 3, 6 * BLOCK_TOKENS)
    session["session_control"]["action"] = "close"
    cached_tokens(cached, PROMPT, nvext=session)
    assert cached.metric("router", "tandem_router_sessions") == 0


def computed(served: Served) -> float:
    """Prompt tokens that the prefill workers did not find in their caches."""
    total = 0.0
    for index in range(3):
        name = f"prefill_worker-{index}"
        labels = {"phase": "prefill"}
        total += served.metric(name, "tandem_worker_prompt_tokens_total", **labels)
        total -= served.metric(name, "tandem_worker_cached_tokens_total", **labels)
    return total


@pytest.mark.sglang
@pytest.mark.promise("S5-254")
def test_sglang_tells_of_its_cache_and_a_second_turn_shows_it(sglang: Served) -> None:
    """The router that has known nothing of the prompt books what is left of it, by the events."""
    prompt = [99, *PROMPT]
    assert cached_tokens(sglang, prompt) < BLOCK_TOKENS
    assert cached_tokens(sglang, [*prompt, 5, 6, 7]) >= 6 * BLOCK_TOKENS
