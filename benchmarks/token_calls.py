"""Which functions a request passes up to the first byte of its answer, and which one of its tokens,
from the engine's step to the client's socket: how many calls, and in how many files.

A stack with the sim engine streams answers, and every call of our functions is counted in all
processes: of some requests up to their first bytes, and of 200 tokens. The engine and generated
code are left out. A coroutine that is woken counts as a call. On a busy machine several steps share
a message unless they are far apart: then give `--step-ms`.

    python benchmarks/token_calls.py
    python benchmarks/token_calls.py --resume           # of a request that is to be resumed
    python benchmarks/token_calls.py --page             # writes docs/request-lifecycle.md's table
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from token_cost import ROOT, part_of, serving

from tandem.cli.stack import Stack

TOKENS = 200
"""Between the two moments."""
REQUESTS = 5
"""After a first one. What is called of all of them is called of a request, and not beside it."""
PROFILER = """
import collections, json, os, signal, sys, threading
root, out = {root!r} + os.sep, {out!r}
counts = collections.Counter()
def called(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(root):
        counts[code.co_filename[len(root):], code.co_qualname] += 1
def save(*_):
    found = [[*key, count] for key, count in counts.items()]
    counts.clear()
    path = os.path.join(out, str(os.getpid()))
    with open(path + ".part", "w") as file:
        json.dump(found, file)
    os.rename(path + ".part", path + ".json")
signal.signal(signal.SIGUSR1, save)
sys.setprofile(called)
threading.setprofile(called)
"""
LEFT_OUT = ("tandem/engine/", "kits/sglang/", "kits/sim/", "tandem/v1/", "benchmarks/", ".venv/")
GRPC = "kits/loop_grpc/"
"""Stands in gRPC's place."""
PAGE = ROOT / "docs" / "request-lifecycle.md"
MADE = re.compile(r"(<!-- calls of a (request|token) -->\n).*?(?=<!-- end -->)", re.DOTALL)
"""What of the page is written here."""


class Call(NamedTuple):
    """A function of ours, in one of the stack's processes."""

    part: str
    """frontend, router, prefill or decode."""
    file: str
    function: str


Calls = Mapping[Call, float]
"""How often each was called, in the order of the first call in its process."""


def counted(stack: Stack, out: Path) -> Calls:
    """The calls since this was asked last."""
    total: dict[Call, float] = {}
    for component in stack.components.values():
        path = out / f"{component.pid}.json"
        path.unlink(missing_ok=True)
        os.kill(component.pid, signal.SIGUSR1)
        until = time.monotonic() + 10
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        for file, function, count in json.loads(path.read_text()):
            if not file.startswith(LEFT_OUT):
                total[Call(part_of(component), file, function)] = count
    return total


def events(stack: Stack, *, tokens: int, resume: bool) -> Iterator[bytes]:
    """The events of a streamed answer, as they come."""
    body = {"model": "tandem-tiny", "prompt": "a", "max_tokens": tokens, "stream": True}
    request = urllib.request.Request(
        f"{stack.url}/v1/completions",
        json.dumps({**body, "ignore_eos": True, "resume": resume}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        yield from (line for line in answer if line.startswith(b"data: {"))


def measured(*, step_ms: float, resume: bool) -> tuple[Calls, Calls]:
    """The calls of a request up to its first byte, and those of one of its tokens."""
    with TemporaryDirectory() as folder:
        out = Path(folder)
        profiler = PROFILER.format(root=str(ROOT), out=folder)
        (out / "sitecustomize.py").write_text(profiler)
        paths = (folder, *filter(None, (os.environ.get("PYTHONPATH"),)))
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        with serving(step_ms=step_ms) as stack:
            firsts = []
            for _ in range(1 + REQUESTS):
                counted(stack, out)
                lines = events(stack, tokens=8, resume=resume)
                next(lines)
                firsts.append(counted(stack, out))
                for _ in lines:  # else the next request's calls have its end
                    pass
            first = {
                call: min(each[call] for each in firsts[1:])
                for call in firsts[-1]
                if all(call in each for each in firsts[1:])
            }
            lines = events(stack, tokens=2 * TOKENS, resume=resume)
            for _ in range(50):
                next(lines)
            counted(stack, out)
            for _ in range(TOKENS):
                next(lines)
            many = counted(stack, out)
    each = {call: count / TOKENS for call, count in many.items()}
    return first, {call: share for call, share in each.items() if share >= 0.9}


def described(calls: Calls) -> str:
    """How many calls those are, in how many files."""
    files = {call.file for call in calls}
    return f"{sum(round(share) for share in calls.values())} calls in {len(files)} files"


def request_lines(calls: Calls) -> str:
    """What the page says of a request's way to the first byte of its answer."""
    functions = len({(call.file, call.function) for call in calls})
    way = "Up to the first byte of its answer a request passes"
    return f"{way} {functions} functions, by\n{described(calls)}.\n"


def token_lines(calls: Calls) -> str:
    """The table of a token's calls: a line for each file of a process, in their order."""
    lines = ["| process | functions | file |", "| --- | --- | --- |"]
    for part in ("decode", "router", "frontend"):
        of_part = {call: round(share) for call, share in calls.items() if call.part == part}
        head = f"{part} | "
        for file in dict.fromkeys(call.file for call in of_part):
            named = [
                f"`{call.function.replace('<locals>.', '')}`" + (f" ×{n}" if n > 1 else "")
                for call, n in of_part.items()
                if call.file == file
            ]
            lines.append(f"| {head}{', '.join(named)} | `{file}` |")
            head = "| "
    in_place = sum(round(n) for call, n in calls.items() if call.file.startswith(GRPC))
    lines += ["", f"These are {described(calls)}, {in_place} of them in gRPC's place.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--resume", action="store_true", help="ask for resume")
    parser.add_argument("--page", action="store_true", help="write the table of the page")
    parser.add_argument("--step-ms", type=float, default=20)
    options = parser.parse_args()
    first, token = measured(step_ms=options.step_ms, resume=options.resume)
    made = {"request": request_lines(first), "token": token_lines(token)}
    if options.page:
        PAGE.write_text(MADE.sub(lambda found: found[1] + made[found[2]], PAGE.read_text()))
    for (part, file, function), share in token.items():
        print(f"{round(share):3d}  {part:9} {file}: {function}")
    print(f"a token: {described(token)}")
    print(made["request"], end="")


if __name__ == "__main__":
    sys.exit(main())
