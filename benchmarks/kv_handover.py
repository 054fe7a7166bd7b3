"""How fast NIXL's UCX backend writes a KV cache into another process: from GPU memory to GPU memory
of the same device, and from host memory to host memory.

Two processes, each with an agent and a cache laid out as SGLang's: for each layer a buffer of keys
and one of values, in which a token has one row. The writer sends a prompt's rows in pages, as a
prefill worker does, and the clock runs from building the transfer's descriptors to its last byte.
The target compares what has arrived.

    python benchmarks/kv_handover.py --memory VRAM
    UCX_TLS=tcp,cuda_copy,self python benchmarks/kv_handover.py --memory VRAM
    python benchmarks/kv_handover.py --memory DRAM
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch

from tandem.kv_transfer import nixl

LAYERS, KV_HEADS, HEAD_SIZE = 32, 8, 128  # Llama 3 8B: 128 KiB a token in bfloat16
TOKENS = 16384
PROMPTS = (1, 64, 512, 2048, 8192)
PAGE_SIZES = (1, 64)
REPEATS, WARM_UP = 15, 3
LIMIT_SECONDS = 30.0


class Cache:
    """A KV cache registered with a NIXL agent of its own."""

    def __init__(self, name: str, memory: str) -> None:
        api, _errors = nixl._load()
        device = "cuda" if memory == "VRAM" else "cpu"
        width = KV_HEADS * HEAD_SIZE
        self.buffers = [
            torch.zeros(TOKENS, width, dtype=torch.bfloat16, device=device)
            for _ in range(2 * LAYERS)
        ]
        self.row_bytes = width * 2
        self.memory = memory
        self.agent = api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
        self.addresses = [buffer.data_ptr() for buffer in self.buffers]
        regions = [(address, TOKENS * self.row_bytes, 0, "") for address in self.addresses]
        self.agent.register_memory(regions, memory)

    def pages(self, addresses: list[int], first_rows: Any, page_size: int) -> Any:
        """Descriptors of whole pages in all buffers."""
        starts = np.concatenate([first_rows * self.row_bytes + base for base in addresses])
        rows = np.empty((len(starts), 3), dtype=np.uint64)
        rows[:, 0], rows[:, 1], rows[:, 2] = starts, page_size * self.row_bytes, 0
        return self.agent.get_xfer_descs(rows, self.memory)

    def fill(self, seed: int) -> None:
        """Rows that tell from where they are and when they were written."""
        base = torch.arange(TOKENS, dtype=torch.int32) * 7 + seed * 1013
        for number, buffer in enumerate(self.buffers):
            rows = ((base + number * 31) % 32749).to(torch.int16).to(buffer.device)
            buffer.view(torch.int16)[:] = rows[:, None]
        if self.memory == "VRAM":
            torch.cuda.synchronize()


def target(pipe: Connection, memory: str) -> None:
    """The decode worker's end: it offers its memory, and compares when it is told to."""
    cache = Cache("target", memory)
    expected = Cache("expected", memory)  # only its rows are used
    pipe.send((cache.agent.get_agent_metadata(), cache.addresses))
    while (question := pipe.recv()) is not None:
        seed, rows, target_rows = question
        expected.fill(seed)
        there = torch.tensor(target_rows, device=cache.buffers[0].device)
        here = torch.tensor(rows, device=cache.buffers[0].device)
        same = all(
            torch.equal(buffer[there].view(torch.int16), other[here].view(torch.int16))
            for buffer, other in zip(cache.buffers, expected.buffers, strict=True)
        )
        for buffer in cache.buffers:
            buffer.zero_()
        pipe.send(same)


def measured(memory: str) -> Iterator[dict[str, Any]]:
    """One row of figures for each prompt length and page size."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=target, args=(other, memory), daemon=True)
    process.start()
    cache = Cache("writer", memory)
    metadata, addresses = pipe.recv()
    peer = cache.agent.add_remote_agent(metadata).decode()
    for tokens in PROMPTS:
        for page_size in PAGE_SIZES:
            if tokens >= page_size:
                yield _prompt(cache, peer, addresses, pipe, tokens, page_size)
    pipe.send(None)
    process.join(LIMIT_SECONDS)


def _prompt(
    cache: Cache, peer: str, addresses: list[int], pipe: Connection, tokens: int, page_size: int
) -> dict[str, Any]:
    count, rng = tokens // page_size, random.Random(tokens)
    rows, target_rows = (
        np.array(rng.sample(range(TOKENS // page_size), count), dtype=np.int64) * page_size
        for _ in range(2)
    )
    took, writing = [], []
    for number in range(WARM_UP + REPEATS):
        if number in (0, WARM_UP + REPEATS - 1):
            cache.fill(number + 1)
        began = time.perf_counter()
        handle = cache.agent.initialize_xfer(
            "WRITE",
            cache.pages(cache.addresses, rows, page_size),
            cache.pages(addresses, target_rows, page_size),
            peer,
        )
        posted = time.perf_counter()
        state = cache.agent.transfer(handle)
        while state == "PROC" and time.perf_counter() - began < LIMIT_SECONDS:
            state = cache.agent.check_xfer_state(handle)
        ended = time.perf_counter()
        if state != "DONE":
            raise SystemExit(f"{tokens} tokens in pages of {page_size}: the transfer is {state}")
        cache.agent.release_xfer_handle(handle)
        took.append(ended - began)
        writing.append(ended - posted)
    whole = np.arange(page_size)
    pipe.send(
        (
            WARM_UP + REPEATS,
            (rows[:, None] + whole).reshape(-1).tolist(),
            (target_rows[:, None] + whole).reshape(-1).tolist(),
        )
    )
    if not pipe.recv():
        raise SystemExit(f"{tokens} tokens in pages of {page_size} did not arrive as they were")
    size = 2 * LAYERS * tokens * cache.row_bytes
    median = statistics.median(took[WARM_UP:])
    return {
        "tokens": tokens,
        "page_size": page_size,
        "mib": size / 2**20,
        "first_ms": took[0] * 1e3,
        "ms": median * 1e3,
        "slowest_ms": max(took[WARM_UP:]) * 1e3,
        "writing_ms": statistics.median(writing[WARM_UP:]) * 1e3,
        "gb_per_s": size / median / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--memory", choices=("VRAM", "DRAM"), required=True)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    asked = parser.parse_args()
    where = torch.cuda.get_device_name() if asked.memory == "VRAM" else "host memory"
    print(f"Measured on {machine.describe()}, {where}, UCX_TLS={os.environ.get('UCX_TLS', '')}.\n")
    print("| tokens | page | MiB | first, ms | median, ms | of it writing | slowest | GB/s |")
    print("| --- |" + " --- |" * 7)
    rows = []
    for row in measured(asked.memory):
        rows.append(row)
        print(
            "| {tokens} | {page_size} | {mib:.1f} | {first_ms:.1f} | {ms:.2f} | {writing_ms:.2f} "
            "| {slowest_ms:.2f} | {gb_per_s:.1f} |".format(**row)
        )
        sys.stdout.flush()
    if asked.json:
        asked.json.write_text(json.dumps({"machine": machine.describe(), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
