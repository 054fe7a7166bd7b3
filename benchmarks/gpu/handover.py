"""How fast NIXL's UCX backend writes a KV cache into another process: from GPU memory to GPU memory
of the same device, and from host memory to host memory.

Two processes, each with an agent and a cache laid out as SGLang's: for each layer a buffer of keys
and one of values, in which a token has one row. The writer sends a prompt's rows in pages, as a
prefill worker does, and the clock runs from building the transfer's descriptors to its last byte.
The target compares what has arrived. Pages lie scattered at both ends, as in a pool that has been
in use for long; or side by side, and then SGLang writes all of a buffer in one piece.

Needs NIXL's wheel (`nixl-cu13`) and torch, and no SGLang.

    python benchmarks/gpu/handover.py
    UCX_TLS=tcp,cuda_copy,self python benchmarks/gpu/handover.py
    python benchmarks/gpu/handover.py --device cpu
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import gpu
import numpy as np
import torch

from tandem_sglang import arguments
from tandem_sim.kv_transfer import nixl

ROW_BYTES = 2048
"""What a token has in one buffer: Llama 3 8B's 8 KV heads of 128 in bfloat16."""
LAYERS, TOKENS = 32, 16384
PROMPTS = (1, 64, 512, 2048, 8192)
PAGES = (1, 16, 64, 128)
SIDE_BY_SIDE = 0
"""In the place of a page size: all pages of a prompt follow each other at both ends."""
CELL_SECONDS, FEWEST, MOST = 2.0, 3, 15
"""A cell is written so often: as long as it may take, but no fewer and no more."""
LIMIT_SECONDS = 60.0


class Cache:
    """A KV cache registered with a NIXL agent of its own."""

    def __init__(self, name: str, asked: argparse.Namespace) -> None:
        api, _errors = nixl._load()
        self._memory = "VRAM" if asked.device == "cuda" else "DRAM"
        self.buffers = [
            torch.zeros(asked.tokens, ROW_BYTES // 2, dtype=torch.int16, device=asked.device)
            for _ in range(2 * asked.layers)
        ]
        self.agent = api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
        self.addresses = [buffer.data_ptr() for buffer in self.buffers]
        regions = [(address, asked.tokens * ROW_BYTES, 0, "") for address in self.addresses]
        self.agent.register_memory(regions, self._memory)

    def pieces(self, addresses: Sequence[int], first_rows: Any, rows: int) -> Any:
        """Descriptors of pieces of `rows` tokens in all buffers."""
        starts = np.concatenate([first_rows * ROW_BYTES + base for base in addresses])
        made = np.empty((len(starts), 3), dtype=np.uint64)
        made[:, 0], made[:, 1], made[:, 2] = starts, rows * ROW_BYTES, 0
        return self.agent.get_xfer_descs(made, self._memory)

    def fill(self, seed: int) -> None:
        """Write what `expected` says into every row."""
        for number, buffer in enumerate(self.buffers):
            rows = torch.arange(len(buffer), device=buffer.device)
            buffer[:] = expected(rows, number, seed)[:, None]
        gpu.settle(self.buffers[0].device.type)


def expected(rows: Any, buffer: int, seed: int) -> Any:
    """Values of rows that tell from where they are and when they were written, int16."""
    return ((rows * 7 + seed * 1013 + buffer * 31) % 32749).to(torch.int16)


def target(pipe: Connection, asked: argparse.Namespace) -> None:
    """The decode worker's end: it offers its memory, and compares when it is told to."""
    cache = Cache("target", asked)
    pipe.send((cache.agent.get_agent_metadata(), cache.addresses))
    while (question := pipe.recv()) is not None:
        seed, *rows = question
        here, there = (torch.tensor(each, device=asked.device) for each in rows)
        same = all(
            bool((buffer[there] == expected(here, number, seed)[:, None]).all())
            for number, buffer in enumerate(cache.buffers)
        )
        for buffer in cache.buffers:
            buffer.zero_()
        gpu.settle(asked.device)
        pipe.send(same)


def measured(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row of figures for each prompt length and page size."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=target, args=(other, asked), daemon=True)
    process.start()
    cache = Cache("writer", asked)
    metadata, addresses = pipe.recv()
    peer = cache.agent.add_remote_agent(metadata).decode()
    for tokens in asked.prompts:
        for page in (*asked.pages, SIDE_BY_SIDE):
            if tokens >= page:
                yield _prompt(cache, peer, addresses, pipe, tokens, page)
    pipe.send(None)
    process.join(LIMIT_SECONDS)


def _prompt(
    cache: Cache, peer: str, addresses: Sequence[int], pipe: Connection, tokens: int, page: int
) -> dict[str, Any]:
    length = page or tokens  # of a piece
    rng = random.Random(tokens)
    rows, target_rows = (
        np.array(rng.sample(range(len(cache.buffers[0]) // length), tokens // length)) * length
        for _ in range(2)
    )
    cache.fill(seed := tokens + page)
    took: list[float] = []
    while len(took) <= FEWEST or (sum(took) < CELL_SECONDS and len(took) <= MOST):
        began = time.perf_counter()
        handle = cache.agent.initialize_xfer(
            "WRITE",
            cache.pieces(cache.addresses, rows, length),
            cache.pieces(addresses, target_rows, length),
            peer,
        )
        state = cache.agent.transfer(handle)
        while state == "PROC" and time.perf_counter() - began < LIMIT_SECONDS:
            state = cache.agent.check_xfer_state(handle)
        took.append(time.perf_counter() - began)
        if state != "DONE":
            raise SystemExit(f"{tokens} tokens in pages of {page}: the transfer is {state}")
        cache.agent.release_xfer_handle(handle)
    whole = np.arange(length)
    pipe.send((seed, *((first[:, None] + whole).reshape(-1) for first in (rows, target_rows))))
    if not pipe.recv():
        raise SystemExit(f"{tokens} tokens in pages of {page} did not arrive as they were")
    median = statistics.median(took[1:])
    return {
        "tokens": tokens,
        "page": page,
        "pieces": len(cache.buffers) * len(rows),
        "piece_kib": length * ROW_BYTES / 1024,
        "first_ms": took[0] * 1e3,
        "ms": median * 1e3,
        "slowest_ms": max(took[1:]) * 1e3,
        "gb_per_s": len(cache.buffers) * tokens * ROW_BYTES / median / 1e9,
    }


def verdict(found: Sequence[Mapping[str, Any]]) -> str:
    """The smallest page beyond which a larger one gains less than a quarter."""
    longest = max(each["tokens"] for each in found)
    cells = sorted(
        (each["page"], each["ms"]) for each in found if each["tokens"] == longest and each["page"]
    )
    fastest = min(ms for _page, ms in cells)
    page = next(page for page, ms in cells if ms <= fastest * 1.25)
    of_all = ", ".join(f"{ms:.0f} ms in pages of {page}" for page, ms in cells)
    return (
        f"Verdict: {longest} scattered tokens take {of_all}. Within a quarter of the fastest from "
        f"pages of {page} on; Tandem's default on CUDA is {arguments._CUDA_PAGE_SIZE}."
    )


def main() -> None:
    parser = gpu.parser(__doc__)
    parser.add_argument("--prompts", type=gpu.numbers, default=list(PROMPTS))
    parser.add_argument("--pages", type=gpu.numbers, default=list(PAGES))
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens that the cache holds")
    asked = parser.parse_args()
    where = gpu.describe(asked.device, "nixl-cu13")
    print(f"Measured on {where}; UCX_TLS={os.environ.get('UCX_TLS', '')}.\n")
    found = []
    for row in measured(asked):
        found.append(row)
        sys.stderr.write(f"{row}\n")
    head = ["tokens", "page", "pieces", "of KiB", "first, ms", "median, ms", "slowest", "GB/s"]
    print(gpu.table(head, map(_cells, found)), end="\n\n")
    print(verdict(found))
    gpu.report(asked.json, machine=where, rows=found)


def _cells(row: Mapping[str, Any]) -> list[object]:
    page = "side by side" if row["page"] == SIDE_BY_SIDE else row["page"]
    return [row["tokens"], page, *(row[name] for name in list(row)[2:])]


if __name__ == "__main__":
    main()
