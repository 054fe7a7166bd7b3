"""What the store of earlier prompts takes of a process's memory, beside what its gauge says.

Sessions of many tenants send one prompt after the other, some of them a next turn, for longer than
the store has room. Segments come in messages, as from the processes that read bodies. Their token
ids are random numbers, for the store looks at none.

    python benchmarks/prefix_store_memory.py            # half a minute
    python benchmarks/prefix_store_memory.py --sessions 1000 --tokens 10000

The memory is what is resident (VmRSS).
"""

from __future__ import annotations

import argparse
import os
import random
import time

import flood_memory
import machine
import msgspec
from prometheus_client import CollectorRegistry

from tandem_frontend.metrics import PrefixMetrics
from tandem_frontend.openai.prefix_store import PrefixStore
from tandem_frontend.openai.prefixes import Segment

SEGMENT_TOKENS = (400, 1200)
TENANTS = 100
TURNS_EVERY = 4
"""One of so many prompts is a next turn."""
_BYTES = memoryview(os.urandom(1 << 20))
SAYS = "{:>9} {:>9} {:>12} {:>12} {:>12}"


class Sessions:
    def __init__(self, store: PrefixStore, tokens: int) -> None:
        self._store = store
        self._tokens = tokens
        self._random = random.Random(0)
        self._lengths: list[int] = []
        """Segments of each session."""

    def prompt(self) -> None:
        """A new session's first prompt, or a next turn of one that there is."""
        draw, tokens = self._random, self._tokens
        if self._lengths and draw.randrange(TURNS_EVERY) == 0:
            session, tokens = draw.randrange(len(self._lengths)), 300
        else:
            session = len(self._lengths)
            self._lengths.append(0)
        tenant, sent = str(session % TENANTS), []
        while tokens > 0:
            size = min(tokens, draw.randint(*SEGMENT_TOKENS))
            begin = draw.randrange(len(_BYTES) // 2)
            sizes = 4 * size, size // 64 * 8, size // 1024 * 16  # token ids, blocks, chunks
            sent.append(Segment(*(bytes(_BYTES[begin:][:each]) for each in sizes)))
            tokens -= size
        read = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=list[Segment])
        self._lengths[session] += len(read)
        names = [b"%08d%08d" % (session, number) for number in range(self._lengths[session])]
        found = self._store.find(tenant, names[: len(names) - len(read)])
        if len(found) + len(read) == len(names):
            self._store.keep(tenant, names, [*found, *read])

    def __len__(self) -> int:
        return len(self._lengths)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=100_000, help="of each first prompt")
    parser.add_argument("--mb", type=int, default=128, help="the store's bound")
    options = parser.parse_args()
    registry = CollectorRegistry()
    sessions = Sessions(
        PrefixStore(options.mb * 2**20, PrefixMetrics(registry)), tokens=options.tokens
    )
    print(f"machine: {machine.describe()}\nthe store's bound: {options.mb} MiB\n")
    print(SAYS.format("sessions", "gauge MiB", "resident MiB", "more by MiB", "us a prompt"))
    before, began, prompts, shown = flood_memory.resident_mb(os.getpid()), time.monotonic(), 0, 0
    while len(sessions) < options.sessions:
        sessions.prompt()
        prompts += 1
        if len(sessions) * 10 // options.sessions > shown:
            shown += 1
            gauge = registry.get_sample_value("tandem_frontend_prefix_store_bytes") or 0.0
            now = flood_memory.resident_mb(os.getpid())
            each = 1e6 * (time.monotonic() - began) / prompts
            numbers = (gauge / 2**20, now, now - before, each)
            print(SAYS.format(len(sessions), *(f"{number:.1f}" for number in numbers)), flush=True)


if __name__ == "__main__":
    main()
