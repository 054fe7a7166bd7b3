"""What real SGLang costs behind Tandem: the first requests after readiness beside the tenth, tokens
of a frame and CPU of a token in decode, and full collections of garbage while it serves.

    python benchmarks/sglang_steps.py                      # on the CPU, about three minutes
    python benchmarks/sglang_steps.py --streams 8 --tokens 64
    python benchmarks/sglang_steps.py --token-processes 2  # CPU of a token in each process
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
import psutil
import token_cost

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack

FIRST_REQUESTS = 10
MOST_RATIO = 1.5
MOST_COLLECTION_MS = 50.0
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1, "seed": 7}


def metric(address: str, name: str, labels: str = "") -> float:
    """The sum of a metric's series, of those whose labels begin so, as a regular expression."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        text = response.read().decode()
    found = re.findall(rf"^{name}(?:\{{{labels}[^}}]*\}})? (\S+)$", text, re.MULTILINE)
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
    parser.add_argument("--tokens", type=int, default=64, help="output tokens of a request")
    parser.add_argument(
        "--token-processes", type=int, default=1, help="token processes of the decode worker"
    )
    parser.add_argument("--rounds", type=int, default=1, help="rounds of all streams")
    options = parser.parse_args()
    print(f"machine: {machine.describe()}\n")
    stack_options = StackOptions(
        model_path=token_cost.MODEL,
        engine="sglang",
        token_processes=options.token_processes,
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
            for _ in range(options.rounds):
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
    processes, schedulers = _processes(decode.pid)
    spenders = [*processes, *schedulers, router.pid]

    def counted() -> list[float]:
        admin = decode.launch.metrics
        return [
            metric(router.launch.metrics, "tandem_router_relayed_frames_total"),
            metric(admin, "tandem_worker_step_seconds_count"),
            *(_made(admin, number, of=len(processes)) for number in range(1, len(processes) + 1)),
        ]

    before = counted()
    cpu = [machine.cpu_seconds(pid) for pid in spenders]  # what a scrape takes is not in it
    result = token_cost.generate(stack, streams=streams, requests=streams, tokens=tokens)
    spent = [machine.cpu_seconds(pid) - was for pid, was in zip(spenders, cpu, strict=True)]
    frames, steps, *passed = (now - was for now, was in zip(counted(), before, strict=True))
    own, scheduled = spent[: len(processes)], sum(spent[len(processes) : -1])
    made = result["tokens"]
    print(
        f"{streams} streams of {tokens} tokens: {steps:.0f} worker steps, {frames:.0f} frames,"
        f" {made / frames:.1f} tokens a frame, {sum(own) * 1e6 / made:.1f} us of the decode"
        f" worker's own CPU a token; {scheduled * 1e6 / made:.0f} us of its scheduler's,"
        f" {spent[-1] * 1e6 / made:.1f} us of the router's"
    )
    for number, pid in enumerate(processes, start=1) if len(processes) > 1 else ():
        tokens_passed, seconds = passed[number - 1], own[number - 1]
        print(
            f"  token process {number}: {tokens_passed / sum(passed):.0%} of the tokens,"
            f" {seconds * 1e6 / tokens_passed:.1f} us a token of its own,"
            f" {seconds / sum(own):.0%} of the CPU time;"
            f" {machine.memory_bytes(pid) / 2**20:.0f} MiB of memory"
        )


def _processes(worker: int) -> tuple[list[int], list[int]]:
    """A worker's token processes, the first of which is itself, and SGLang's schedulers."""
    children = [(each, " ".join(each.cmdline())) for each in psutil.Process(worker).children()]
    further = [each.pid for each, command in children if "multiprocessing.spawn" in command]
    return [worker, *further], [
        each.pid for each, command in children if command.startswith("sglang::scheduler")
    ]


def _made(address: str, number: int, *, of: int) -> float:
    """Tokens that a token process has passed on. One alone has no number."""
    labels = rf'[^}}]*token_process="{number}"' if of > 1 else ""
    return metric(address, "tandem_worker_tokens_total", labels)


if __name__ == "__main__":
    main()
