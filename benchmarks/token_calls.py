"""Which functions one token passes, from the engine's step to the client's socket, and in how many
files.

A stack with the sim engine streams one answer, and every call of our functions is counted in all
processes between two moments of the stream. The engine and generated code are left out. A coroutine
that is woken counts as a call. On a busy machine several steps share a message unless they are far
apart: then give `--step-ms`.

    python benchmarks/token_calls.py
    python benchmarks/token_calls.py --resume           # of a request that is to be resumed
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from token_cost import ROOT, serving

TOKENS = 200
"""Between the two moments."""
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
    path = os.path.join(out, str(os.getpid()))
    with open(path + ".part", "w") as file:
        json.dump(found, file)
    os.rename(path + ".part", path + ".json")
signal.signal(signal.SIGUSR1, save)
sys.setprofile(called)
threading.setprofile(called)
"""
LEFT_OUT = ("tandem/engine/", "tandem/v1/", "benchmarks/", ".venv/")


def counted(pids: list[int], out: Path) -> Counter[tuple[str, str]]:
    """The calls so far, by file and function."""
    total: Counter[tuple[str, str]] = Counter()
    for pid in pids:
        path = out / f"{pid}.json"
        path.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR1)
        until = time.monotonic() + 10
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        for file, function, count in json.loads(path.read_text()):
            total[file, function] += count
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--resume", action="store_true", help="ask for resume")
    parser.add_argument("--step-ms", type=float, default=20)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        out = Path(folder)
        profiler = PROFILER.format(root=str(ROOT), out=folder)
        (out / "sitecustomize.py").write_text(profiler)
        paths = (folder, *filter(None, (os.environ.get("PYTHONPATH"),)))
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        with serving(step_ms=options.step_ms) as stack:
            pids = [each.pid for each in stack.components.values()]
            body = {"model": "tandem-tiny", "prompt": "a", "max_tokens": 400, "stream": True}
            request = urllib.request.Request(
                f"{stack.url}/v1/completions",
                json.dumps({**body, "ignore_eos": True, "resume": options.resume}).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                lines = (line for line in answer if line.startswith(b"data: {"))
                for _ in range(50):
                    next(lines)
                before = counted(pids, out)
                for _ in range(TOKENS):
                    next(lines)
                after = counted(pids, out)
    calls = {
        key: (after[key] - before[key]) / TOKENS for key in after if not key[0].startswith(LEFT_OUT)
    }
    each = {key: share for key, share in calls.items() if share >= 0.9}
    for (file, function), share in sorted(each.items()):
        print(f"{round(share):3d}  {file}: {function}")
    files = {file for file, _ in each}
    print(f"{sum(round(share) for share in each.values())} calls in {len(files)} files")


if __name__ == "__main__":
    sys.exit(main())
