"""The story of a real request, asked at the router's admin port, and the frame of `tandem top`."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from stacks import (
    MODEL,
    PATIENCE,
    SIM_READY_SECONDS,
    Served,
    both_prefills_routable,
    options,
    until,
)

from tandem.cli.stack import Stack

PROMPT = "The for statement is used to"
_numbers = itertools.count(1)


def new_trace() -> str:
    return f"{0x570:016x}{time.time_ns() & 0xFFFFFFFF:08x}{next(_numbers):08x}"


def ask(served: Served, trace_id: str, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields}
    headers = {"traceparent": f"00-{trace_id}-{1:016x}-00"}
    return httpx.post(f"{served.url}/v1/completions", json=body, headers=headers, timeout=60)


def told(served: Served, trace_id: str) -> dict[str, Any]:
    """The one story of a trace id; no other answer of the router is one."""
    address = served.stack.components["router"].launch.metrics
    with urllib.request.urlopen(
        f"http://{address}/debug/requests/{trace_id}", timeout=10
    ) as answer:
        text = answer.read().decode()
    assert PROMPT not in text
    (only,) = json.loads(text)["requests"]
    assert only["ended_seconds_ago"] >= 0
    story: dict[str, Any] = only["story"]
    return story


def happened(story: dict[str, Any]) -> list[tuple[str, str, str]]:
    (sequence,) = story["sequences"]
    return [
        (each["name"], each.get("phase", ""), each.get("code", "")) for each in sequence["moments"]
    ]


@pytest.fixture(scope="module")
def served(
    model_path: Path, hook_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """The first request's hand-over of one of two prefill workers is damaged; each is logged."""
    run_dir = tmp_path_factory.mktemp("stories")
    flags = {
        "router": ("--log-requests", "--log-format=json", "--prefill-policy=round_robin"),
        "prefill_worker-0": ("--engine-options=fault_corrupt=nth:2",),
    }
    changes: dict[str, Any] = {"prefill": 2, "flags": flags, "hook_decode": ""}
    with Stack(options("sim", model_path, **changes), run_dir=run_dir) as stack:
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        served = Served("sim", stack, hook_log)
        both_prefills_routable(served)
        yield served


@pytest.mark.promise("S5-201", "S5-204")
def test_the_router_tells_a_real_request_s_story_and_a_retried_one_s(served: Served) -> None:
    ids = [new_trace(), new_trace()]  # one of two meets the fault
    assert [ask(served, each).status_code for each in ids] == [200, 200]
    whole, retried = sorted((told(served, each) for each in ids), key=lambda it: len(happened(it)))
    names = [name for name, _, _ in happened(whole)]
    assert names[:2] == ["queued", "pair_chosen"]
    assert ("verdict", "prefill", "") in happened(whole), "prefill's hook let it go"
    assert ("started", "decode", "") in happened(whole)
    assert happened(whole)[-1] == ("closed", "decode", "finished")
    assert (whole["outcome"], whole["model"], whole["max_tokens"]) == ("finished", MODEL, 8)
    (sequence,) = whole["sequences"]
    times = [each["at"] for each in sequence["moments"]]
    assert times == sorted(times)
    assert 0 < times[-1] <= sequence["seconds"] <= whole["seconds"]
    chosen = sequence["moments"][1]
    assert chosen["prefill"]["candidates"] == 2
    assert chosen["prefill"]["cost"] == 0.0
    workers = served.stack.components
    assert chosen["decode"]["worker"] == workers["decode_worker-0"].address
    assert chosen["decode"]["name"] == "decode_worker-0"

    assert retried["outcome"] == "finished"
    assert retried["sequences"][0]["moments"][-1]["code"] == "finished"
    assert ("retry", "", "kv_corrupt") in happened(retried)
    pairs = [each for each in retried["sequences"][0]["moments"] if each["name"] == "pair_chosen"]
    assert [each["prefill"]["name"] for each in pairs] == ["prefill_worker-0", "prefill_worker-1"]

    log = workers["router"].log.read_text(encoding="utf-8").splitlines()
    lines = [json.loads(line) for line in log if '"request ended"' in line]
    (line,) = [each for each in lines if each["trace_id"] == retried["trace_id"]]
    assert (line["level"], line["outcome"]) == ("info", "finished")
    assert ("retry", "", "kv_corrupt") in happened(json.loads(line["story"]))
    assert PROMPT not in line["story"]


@pytest.mark.promise("S5-580")
def test_a_request_that_waited_for_a_slot_says_for_how_long_and_why(
    model_path: Path, hook_log: Path, tmp_path: Path
) -> None:
    flags = {"frontend": ("--allow-reports",), "decode_worker-0": ("--max-sequences=2",)}
    full = "no slot is free on decode, which has 2"
    body = {
        "model": MODEL,
        "prompt": PROMPT,
        "max_tokens": 3000,
        "ignore_eos": True,
        "stream": True,
    }
    with Stack(options("sim", model_path, flags=flags, hook_decode=""), run_dir=tmp_path) as stack:
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        served = Served("sim", stack, hook_log)
        url = f"{served.url}/v1/completions"
        with ThreadPoolExecutor(1) as pool:
            with ExitStack() as running:
                asked = [httpx.stream("POST", url, json=body, timeout=60) for _ in range(2)]
                answers = [running.enter_context(each).iter_lines() for each in asked]
                assert all(map(next, answers))  # each holds a slot, until it is closed
                waits = pool.submit(ask, served, trace := new_trace(), tandem={"report": True})
                until(lambda: served.metric("router", "tandem_router_queue_length") == 1)
            response = waits.result(PATIENCE)  # both have been cancelled
        queued, chosen, *_ = told(served, trace)["sequences"][0]["moments"]
    assert (queued["at"], queued["name"], queued["cause"]) == (0.0, "queued", full)
    assert queued["holders"]["tenants"] == {"": 2}
    assert 0 < queued["holders"]["seconds"] < PATIENCE
    (taken,) = queued["workers"]["workers"]
    assert (taken["phase"], taken["reason"]) == ("decode", "no slot is free: 2 of 2 taken")
    report = response.json()["tandem"]
    (times,) = report["timeline"]
    assert times["queue_cause"] == full
    parts = [times[f"{part}_seconds"] for part in ("queue", "prefill", "kv", "decode")]
    assert all(part > 0 for part in parts)
    assert sum(parts) <= report["request_seconds"]
    # With the frontend's own wait for a router that takes the request.
    assert chosen["at"] - 1e-5 <= times["queue_seconds"] < report["ttft_seconds"]


@pytest.mark.promise("S5-205")
def test_top_shows_the_routers_the_workers_and_their_engines(served: Served) -> None:
    components = served.stack.components
    ports = {name: each.launch.metrics for name, each in components.items()}

    def shown() -> dict[str, Any]:
        top = subprocess.run(
            [
                *(sys.executable, "-m", "tandem.cli", "top", "--once", "--json", "--interval=0.2"),
                f"--routers={ports['router']}",
                f"--workers={ports['prefill_worker-0']},{ports['decode_worker-0']}",
                f"--frontends={ports['frontend']}",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert top.returncode == 0, top.stderr
        told: dict[str, Any] = json.loads(top.stdout)
        return told

    ask(served, new_trace())
    end = time.monotonic() + PATIENCE
    told = shown()
    while any(each["legs"] for each in told["workers"]):
        assert time.monotonic() < end, told
        told = shown()  # a leg of the request was about to end
    (router,) = told["routers"]
    assert (router["address"], router["ready_pairs"], router["frontends"]) == (
        ports["router"],
        2,
        1,
    )
    by_name = {each["name"]: each for each in told["workers"]}
    for name in ("prefill_worker-0", "prefill_worker-1", "decode_worker-0"):
        assert by_name[name]["address"] == components[name].address
        assert by_name[name]["phase"] == name.partition("_")[0]
        assert by_name[name]["state"] == "ok"
    # Of two prefill workers on one host nobody says whose a metrics port is.
    assert by_name["prefill_worker-0"]["waiting"] is None
    assert by_name[ports["prefill_worker-0"]]["waiting"] == 0
    assert by_name["decode_worker-0"]["waiting"] == 0
    assert told["models"] == [MODEL]
    assert told["traffic"]["slo"]["ttft"] > 0
