"""What one connection without a key makes a frontend's memory: it sends one request after the other
for as long as it is told, and reads whatever comes.

    python benchmarks/flood_memory.py                   # four minutes
    python benchmarks/flood_memory.py --seconds 10

The memory is what is resident (VmRSS), looked at ten times a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import machine
from token_cost import MODEL

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack

MOST_GROWTH_MB = 32


def requests(model: str) -> dict[str, str]:
    body = json.dumps({"model": model, "prompt": "a", "max_tokens": 1})
    host = "Host: 127.0.0.1\r\n"
    post = f"POST /v1/completions HTTP/1.1\r\n{host}Content-Type: application/json\r\n"
    chunks = "".join(f"1\r\n{each}\r\n" for each in body)
    return {
        "GET /v1/models": f"GET /v1/models HTTP/1.1\r\n{host}\r\n",
        "GET of what is not there": f"GET /nothing HTTP/1.1\r\n{host}\r\n",
        "completions of a token": f"{post}Content-Length: {len(body)}\r\n\r\n{body}",
        "in chunks of a byte": f"{post}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n",
        "bodies that cannot be read": f"{post}Content-Length: 1\r\n\r\n{{",
    }


def resident_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def flood(stack: Stack, request: str, seconds: float) -> tuple[Counter[str], float, list[float]]:
    """Returns how many answers of which status came, how many MB were sent, and the memory over the
    time.
    """
    frontend = stack.components["frontend"]
    host, _, port = frontend.address.rpartition(":")
    data = request.encode() * (65_536 // len(request))
    heard: Counter[str] = Counter()
    sent, memory = 0, [resident_mb(frontend.pid)]
    with socket.create_connection((host, int(port)), timeout=1) as connection:
        threading.Thread(target=_read, args=(connection, heard), daemon=True).start()
        until = time.monotonic() + seconds
        looked = 0.0
        while (now := time.monotonic()) < until:
            with contextlib.suppress(TimeoutError):
                sent += connection.send(data[sent % len(data) :])
            if now - looked > 0.1:
                looked = now
                memory.append(resident_mb(frontend.pid))
    return heard, sent / 2**20, memory


def _read(connection: socket.socket, heard: Counter[str]) -> None:
    """Count answers by their first lines; one that two reads cut is not counted."""
    with contextlib.suppress(OSError):
        while data := connection.recv(65_536):
            heard.update(each.decode() for each in re.findall(rb"HTTP/1.1 (\d+)", data))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of each flood")
    options = parser.parse_args()
    grown = []
    print(f"machine: {machine.describe()}\n")
    print(
        f"{'requests':<28} {'answers':>14} {'sent, MB':>9} {'memory, MB: before':>19} {'most':>6}"
    )
    with TemporaryDirectory() as folder:
        stack_options = StackOptions(model_path=MODEL, engine="sim")
        with Stack(stack_options, run_dir=Path(folder) / "run") as stack:
            stack.wait_ready(timeout_seconds=60)
            for name, request in requests(stack.model).items():
                answers, sent, memory = flood(stack, request, options.seconds)
                told = ", ".join(f"{count} x {status}" for status, count in answers.items())
                grown.append(max(memory) - memory[0])
                print(
                    f"{name:<28} {told:>14} {sent:>9.1f} {memory[0]:>19.0f} {max(memory):>6.0f}",
                    flush=True,
                )
    return 0 if max(grown) < MOST_GROWTH_MB else 1


if __name__ == "__main__":
    raise SystemExit(main())
