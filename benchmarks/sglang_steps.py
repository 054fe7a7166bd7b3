"""What real SGLang costs behind Tandem: the first requests after readiness beside the tenth, tokens
of a frame and CPU of a token in decode, and full collections of garbage while it serves.

    python benchmarks/sglang_steps.py                      # on the CPU, about three minutes
    python benchmarks/sglang_steps.py --streams 8 --tokens 64
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import machine
import token_cost

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack

FIRST_REQUESTS = 10
MOST_RATIO = 1.5
MOST_COLLECTION_MS = 50.0
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1, "seed": 7}


def metric(address: str, name: str) -> float:
    """The sum of a metric's series."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        text = response.read().decode()
    found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
    if not found:
        raise LookupError(f"{address} exports no {name}")
    return sum(map(float, found))


def ask(stack: Stack, **fields: Any) -> float:
    """Seconds that a chat of 16 tokens takes."""
    message = {"role": "user", "content": "Tell me of a small town."}
    shape = {"model": token_cost.MODEL.name, "max_tokens": 16, "ignore_eos": True}
    body = {**shape, "messages": [message], **fields}
    request = urllib.request.Request(
        f"{stack.url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=300) as response:
        response.read()
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64, help="of a request")
    options = parser.parse_args()
    print(f"machine: {machine.describe()}\n")
    stack_options = StackOptions(
        model_path=token_cost.MODEL,
        engine="sglang",
        flags=dict.fromkeys(
            ("prefill_worker", "decode_worker"), (f"--max-sequences={options.streams}",)
        ),
    )
    with TemporaryDirectory() as folder:
        notes = _watch_collections(Path(folder))
        with Stack(stack_options, run_dir=Path(folder)) as stack:
            stack.wait_ready(timeout_seconds=600)
            began = time.monotonic()
            _first_requests(stack)
            _steps(stack, streams=options.streams, tokens=options.tokens)
            ended = time.monotonic()
        _collections(notes, began, ended)


def _watch_collections(folder: Path) -> Path:
    """Have every process of a stack to come note its full collections, in the file returned."""
    notes = folder / "collections"
    notes.touch()
    paths = [str(Path(__file__).resolve().parent / "gc_watch"), os.getenv("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ["GC_WATCH"] = str(notes)
    return notes


def _collections(notes: Path, began: float, ended: float) -> None:
    """Those between two moments, in milliseconds of their thread's CPU time."""
    found = []
    for line in notes.read_text().splitlines():
        moment, ms, process = line.split(" ", 2)
        if began <= float(moment) <= ended:
            found.append((float(ms), process))
    if not found:
        print("full collections while serving: none")
        return
    longest, process = max(found)
    print(
        f"full collections while serving: {len(found)}, the longest {longest:.1f} ms of CPU time"
        f" ({'within' if longest <= MOST_COLLECTION_MS else 'ABOVE'} {MOST_COLLECTION_MS:.0f} ms),"
        f" in {process[:100]}"
    )


def _first_requests(stack: Stack) -> None:
    for name, fields in (("greedy", {"temperature": 0.0}), ("sampled", SAMPLED)):
        seconds = [ask(stack, **fields) for _ in range(FIRST_REQUESTS)]
        print(
            f"{name}: first request {seconds[0] * 1e3:.0f} ms, tenth {seconds[-1] * 1e3:.0f} ms,"
            f" ratio {seconds[0] / seconds[-1]:.2f} (at most {MOST_RATIO} is wanted)"
        )


def _steps(stack: Stack, *, streams: int, tokens: int) -> None:
    """The engine has a step for each token, and more while prompts come one after the other."""
    router, decode = stack.components["router"], stack.components["decode_worker-0"]
    frames = metric(router.launch.metrics, "tandem_router_relayed_frames_total")
    steps = metric(decode.launch.metrics, "tandem_worker_step_seconds_count")
    cpu = machine.cpu_seconds(decode.pid)
    result = token_cost.generate(stack, streams=streams, requests=streams, tokens=tokens)
    cpu = machine.cpu_seconds(decode.pid) - cpu
    steps = metric(decode.launch.metrics, "tandem_worker_step_seconds_count") - steps
    frames = metric(router.launch.metrics, "tandem_router_relayed_frames_total") - frames
    made = result["tokens"]
    print(
        f"{streams} streams of {tokens} tokens: {steps:.0f} worker steps, {frames:.0f} frames,"
        f" {made / frames:.1f} tokens a frame, {cpu * 1e6 / made:.1f} us of the decode worker's"
        " own CPU a token"
    )


if __name__ == "__main__":
    main()
