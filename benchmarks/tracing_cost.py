"""What tracing costs: CPU of a streamed token and of a short request, with tracing off, with a
tenth of the requests traced, and with all of them.

The three stacks run side by side and are measured in turn, round after round, so that what else the
machine does meets all of them alike. Spans go to a collector in this process, which is not counted.

    python benchmarks/tracing_cost.py                   # about two minutes
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock

import machine
import token_cost

from tandem.cli.stack import Stack

ROUNDS = 5
STREAMS, TOKENS = 64, 128
REQUESTS = 800
SETTINGS: Mapping[str, str] = {"off": "", "0.1": "0.1", "1.0": "1.0"}


class Taker(BaseHTTPRequestHandler):
    """Takes whatever it is sent."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def collector() -> Iterator[str]:
    """The base URL of a collector."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Taker) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def traced(url: str, ratio: str) -> Iterator[Stack]:
    """A stack that traces so much. `ratio`: empty: nothing."""
    variables = {"TANDEM_OTLP_ENDPOINT": url, "TANDEM_TRACE_SAMPLE_RATIO": ratio} if ratio else {}
    with mock.patch.dict(os.environ, variables), token_cost.serving() as stack:
        yield stack


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    per_token: dict[str, list[float]] = defaultdict(list)
    per_request: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as running:
        url = running.enter_context(collector())
        stacks = {
            name: running.enter_context(traced(url, ratio)) for name, ratio in SETTINGS.items()
        }
        for stack in stacks.values():
            token_cost.generate(stack, streams=16, requests=64, tokens=16)
        for _ in range(rounds):
            for name, stack in stacks.items():
                usage, result = token_cost.measure(
                    stack, streams=STREAMS, requests=2 * STREAMS, tokens=TOKENS
                )
                per_token[name].append(usage.total * 1e6 / result["tokens"])
                usage, result = token_cost.measure(stack, streams=16, requests=REQUESTS, tokens=2)
                per_request[name].append(usage.total * 1e3 / result["requests"])
    print(f"machine: {machine.describe()}; medians of {rounds} rounds")
    print(f"{'traced':>8} {'us a token':>12} {'ms a two-token request':>24}")
    for name in SETTINGS:
        token, request = statistics.median(per_token[name]), statistics.median(per_request[name])
        print(f"{name:>8} {token:12.1f} {request:24.3f}")


if __name__ == "__main__":
    main()
