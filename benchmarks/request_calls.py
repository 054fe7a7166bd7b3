"""How many Python functions a request of two tokens calls in each component, here and at another
commit, or here where they are to be resumed.

Sixteen requests at a time are served by a stack with the sim engine, and every call is counted in
all threads of its processes. Unlike times, the counts do not depend on what else the machine does,
but for how many requests share a message. `token_calls.py` counts those of a token.

    python benchmarks/request_calls.py b383a71
    python benchmarks/request_calls.py --resume         # without it, and with it
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from against import ROOT, checkout, import_path

REQUESTS = 800
STREAMS, TOKENS = 16, 2
PROFILER = """
import os, signal, sys, threading
calls = [0]
def called(frame, event, argument):
    if event == "call":
        calls[0] += 1
def save(*_):
    path = os.path.join({out!r}, str(os.getpid()))
    with open(path + ".part", "w") as file:
        file.write(str(calls[0]))
    os.rename(path + ".part", path + ".calls")
signal.signal(signal.SIGUSR1, save)
sys.setprofile(called)
threading.setprofile(called)
"""
SECONDS = 10.0
"""A process says within these what it has counted."""


def said(pid: int, out: Path) -> int:
    """What a process has counted so far."""
    path = out / f"{pid}.calls"
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    until = time.monotonic() + SECONDS
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    return int(path.read_text())


def count(tree: Path, flags: tuple[str, ...]) -> dict[str, float]:
    """Calls of a request in a tree's components, of which the frontend has these flags. The tree
    must be this process's folder.
    """
    sys.path.insert(0, str(tree / "benchmarks"))
    import token_cost

    with TemporaryDirectory() as folder:
        out = Path(folder)
        (out / "sitecustomize.py").write_text(PROFILER.format(out=folder))
        os.environ["PYTHONPATH"] = os.pathsep.join((folder, import_path(tree)))
        with token_cost.serving(step_ms=10, flags={"frontend": flags}) as stack:
            pids = {token_cost.part_of(each): each.pid for each in stack.components.values()}
            token_cost.generate(stack, streams=STREAMS, requests=64, tokens=TOKENS)
            before = {part: said(pid, out) for part, pid in pids.items()}
            token_cost.generate(stack, streams=STREAMS, requests=REQUESTS, tokens=TOKENS)
            return {part: (said(pid, out) - before[part]) / REQUESTS for part, pid in pids.items()}


def counted(tree: Path, *flags: str) -> dict[str, float]:
    """The same, in a process of the tree's own."""
    command = [sys.executable, __file__, "--count", str(tree), *flags]
    env = {**os.environ, "PYTHONPATH": import_path(tree)}
    done = subprocess.run(
        command, cwd=tree, env=env, stdout=subprocess.PIPE, text=True, timeout=600, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    other = parser.add_mutually_exclusive_group()
    other.add_argument("commit", nargs="?", help="commit to compare with")
    other.add_argument(
        "--resume", action="store_true", help="compare this checkout without and with resume"
    )
    parser.add_argument("--count", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count:
        flags = ("--resume",) if options.resume else ()
        print(json.dumps(count(options.count, flags)))
        return
    if not (options.resume or options.commit):
        parser.error("give a commit, or --resume")
    if options.resume:
        names, old, new = ("without", "resume"), counted(ROOT), counted(ROOT, "--resume")
    else:
        with checkout(options.commit) as tree:
            names, old, new = (options.commit[:8], "here"), counted(tree), counted(ROOT)
    print(f"calls of a request of {TOKENS} tokens\n{'':<10} {names[0]:>8} {names[1]:>8}")
    for part, calls in old.items():
        print(f"{part:<10} {calls:8.0f} {new[part]:8.0f}")


if __name__ == "__main__":
    main()
