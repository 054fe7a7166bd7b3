"""A load generator for streamed chat completions: closed loop over keep-alive connections, one
epoll loop.

It is its own process so that its CPU is not counted, and it parses as little as it can: it counts
`data:` lines and looks for the end of the chunked body. With `--read` it parses each event and
takes its text, as a program of one's own does at least. Prints one JSON object.

    python benchmarks/load.py --address 127.0.0.1:8000 --model tandem-tiny --streams 64 --requests
    512 --tokens 128
"""

from __future__ import annotations

import argparse
import json
import random
import select
import socket
import statistics
import time
from dataclasses import dataclass, field

WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "on")
END_OF_BODY = b"0\r\n\r\n"
EVENT = b"data: "
DONE = EVENT + b"[DONE]"


@dataclass
class Result:
    tokens: int
    requests: int
    seconds: float
    ttft_ms_p50: float
    ttft_ms_p99: float
    itl_ms_p50: float
    itl_ms_p99: float
    failed: int
    cpu_seconds: float
    """What this process used from the first request to the last answer."""


@dataclass
class Seen:
    """What all connections of a load saw together."""

    ttft: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    finished: int = 0
    failed: int = 0
    characters: int = 0
    """In answers that were read."""


class Connection:
    """One client: sends its next request as soon as the answer to the last one has ended."""

    def __init__(
        self, address: tuple[str, int], seen: Seen, *, quick_ack: bool = False, reads: bool = False
    ) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.seen = seen
        self.busy = False
        self._quick_ack = quick_ack
        self._reads = reads
        self._line = b""
        self._sent_at = 0.0
        self._last = 0.0
        self._tail = b""
        self._waiting = True

    def send(self, request: bytes) -> None:
        self._sent_at = time.perf_counter()
        self._waiting, self._tail, self.busy = True, b"", True
        self.socket.sendall(request)

    def read(self) -> None:
        """Take what has come; `busy` is False once the answer is complete."""
        data = self.socket.recv(1 << 18)
        if self._quick_ack:  # what the kernel forgets again after some acknowledgements
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        now = time.perf_counter()
        if not data:
            raise ConnectionError("the server closed a keep-alive connection")
        events = data.count(EVENT)
        seen = self.seen
        if not self._tail and not data.startswith(b"HTTP/1.1 200"):
            seen.failed += 1
        if events and self._waiting:
            seen.ttft.append(now - self._sent_at)
        elif events:
            seen.gaps.append(now - self._last)
        if events:
            self._waiting, self._last = False, now
        if self._reads:
            self._take(data)
        self._tail = (self._tail + data)[-len(END_OF_BODY) :]
        if self._tail == END_OF_BODY:
            seen.finished += 1
            self.busy = False

    def _take(self, data: bytes) -> None:
        """The text of all events that are complete."""
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            if line.startswith(EVENT) and not line.startswith(DONE):
                for choice in json.loads(line[len(EVENT) :])["choices"]:
                    self.seen.characters += len(choice["delta"].get("content") or "")


def request(address: str, model: str, tokens: int, words: int, seed: int, key: str = "") -> bytes:
    """One POST of a chat completion with `words` random words."""
    prompt = " ".join(random.Random(seed).choices(WORDS, k=words))
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "stream": True,
            "ignore_eos": True,
            "temperature": 0,
        }
    ).encode()
    login = f"Authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\n{login}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def run(
    address: str,
    *,
    model: str,
    streams: int,
    requests: int,
    tokens: int,
    words: int = 48,
    key: str = "",
    quick_ack: bool = False,
    reads: bool = False,
) -> Result:
    """`requests` completions of `tokens` tokens each, `streams` at a time. `quick_ack`: what is
    received is acknowledged at once, where the system would wait for more. `reads`: the text of
    each event is taken.
    """
    host, _, port = address.rpartition(":")
    seen = Seen()
    connections = [
        Connection((host, int(port)), seen, quick_ack=quick_ack, reads=reads)
        for _ in range(min(streams, requests))
    ]
    by_fd = {connection.socket.fileno(): connection for connection in connections}
    poll = select.epoll()
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    pending = iter([request(address, model, tokens, words, seed, key) for seed in range(requests)])
    started, spent = time.perf_counter(), time.process_time()
    for connection in connections:
        connection.send(next(pending))
    while seen.finished < requests:
        for fd, _ in poll.poll(120) or _fail("no answer for 120 seconds"):
            connection = by_fd[fd]
            connection.read()
            if not connection.busy and (body := next(pending, None)) is not None:
                connection.send(body)
    seconds, spent = time.perf_counter() - started, time.process_time() - spent
    for connection in connections:
        connection.socket.close()
    if reads and not seen.characters:
        raise ValueError("answers without text")
    return Result(
        tokens=tokens * (requests - seen.failed),
        requests=requests,
        seconds=seconds,
        ttft_ms_p50=_percentile(seen.ttft, 50) * 1e3,
        ttft_ms_p99=_percentile(seen.ttft, 99) * 1e3,
        itl_ms_p50=_percentile(seen.gaps, 50) * 1e3,
        itl_ms_p99=_percentile(seen.gaps, 99) * 1e3,
        failed=seen.failed,
        cpu_seconds=spent,
    )


def _percentile(values: list[float], percent: int) -> float:
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _fail(message: str) -> list[tuple[int, int]]:
    raise TimeoutError(message)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--address", default="127.0.0.1:8000")
    parser.add_argument("--model", default="tandem-tiny")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument(
        "--words", type=int, default=48, help="words of a prompt, about as many tokens"
    )
    parser.add_argument("--key", default="", help="key of the client (default: none)")
    parser.add_argument("--quick-ack", action="store_true", help="acknowledge at once")
    parser.add_argument("--read", action="store_true", help="parse events and take their text")
    options = parser.parse_args()
    result = run(
        options.address,
        model=options.model,
        streams=options.streams,
        requests=options.requests,
        tokens=options.tokens,
        words=options.words,
        key=options.key,
        quick_ack=options.quick_ack,
        reads=options.read,
    )
    print(json.dumps(vars(result)))


if __name__ == "__main__":
    main()
