"""New workers of a whole stack: ready and used once a canary has moved KV, and never where none
can.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from stacks import SIM_READY_SECONDS, Served, options
from test_failures import ask, until

from tandem.cli.stack import Stack

SICK = "prefill_worker-0"
WORKERS = (SICK, "prefill_worker-1", "decode_worker-0")
PAIRED = "--ready-when-paired"


@pytest.fixture
def hook_calls(hook_log: Path) -> str:
    """What hooks of other tests' stacks have written."""
    return _written(hook_log.parent, hook_log.name)


@pytest.fixture
def served(model_path: Path, hook_log: Path, hook_calls: str, tmp_path: Path) -> Iterator[Served]:
    """Two prefill workers, one of which hands over nothing but damaged KV; hooks, and an audit log.
    It may take its time: nobody waits for the sick one.
    """
    flags = {name: (PAIRED, _audited(tmp_path, name)) for name in WORKERS}
    flags[SICK] += ("--engine-options=fault_corrupt=always",)
    changes: dict[str, Any] = {"prefill": 2, "flags": flags}
    with Stack(options("sim", model_path, **changes), run_dir=tmp_path / "run") as stack:
        deadline = time.monotonic() + SIM_READY_SECONDS
        while _ready(Served("sim", stack, hook_log), "frontend") != 200:
            stack.check_running()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield Served("sim", stack, hook_log)


def _audited(folder: Path, name: str) -> str:
    config = folder / f"{name}.yaml"
    config.write_text(f"audit: {{path: {folder / name}.jsonl, passes: true}}\n")
    return f"--config={config}"


def _ready(served: Served, name: str) -> int:
    try:
        url = f"http://{served.stack.components[name].launch.metrics}/ready"
        return httpx.get(url, timeout=5).status_code
    except httpx.TransportError:
        return 0


def _written(folder: Path, names: str) -> str:
    return "".join(each.read_text() for each in folder.glob(names))


def _canaries(served: Served, outcome: str) -> float:
    return served.metric("router", "tandem_router_canaries_total", outcome=outcome)


@pytest.mark.promise("S5-260", "S5-261")
async def test_a_worker_is_ready_and_used_once_kv_has_moved_and_one_that_cannot_never(
    served: Served, hook_log: Path, hook_calls: str, tmp_path: Path
) -> None:
    await until(lambda: _canaries(served, "kv_corrupt") >= 2, within=60, what="it is tried again")
    assert _canaries(served, "finished") >= 1
    assert [_ready(served, name) for name in WORKERS] == [503, 200, 200]
    sick = served.stack.components[SICK].launch
    told = served.metric("router", "tandem_router_routable_workers", phase="prefill")
    assert told == 1
    # Nobody has asked for anything yet: what is counted and written down is nobody's.
    for name in WORKERS:
        assert served.metric(name, "tandem_worker_legs_total") == 0
        assert served.metric(name, "tandem_worker_prompt_tokens_total") == 0
    for name in ("requests_total", "legs_total", "cancels_total"):
        assert served.metric("router", f"tandem_router_{name}") == 0
    assert served.metric("router", "tandem_router_worker_failures_total") == 0
    assert _written(hook_log.parent, hook_log.name) == hook_calls
    assert _written(tmp_path, "*.jsonl") == ""
    answers = [await ask(served) for _ in range(8)]
    assert {each.status_code for each in answers} == {200}
    assert {each.json()["usage"]["completion_tokens"] for each in answers} == {4}
    assert len(_written(hook_log.parent, hook_log.name)) > len(hook_calls)
    assert _written(tmp_path, "decode_worker-0.jsonl")
    assert served.metric("router", "tandem_router_retries_total") == 0
    assert served.metric(SICK, "tandem_worker_legs_total") == 0
    assert served.metric("prefill_worker-1", "tandem_worker_legs_total") == 8
    assert served.metric("router", "tandem_router_worker_failures_total", worker=sick.address) == 0
