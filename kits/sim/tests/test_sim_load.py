"""What the sim engine says of its load: each request is where it says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem.engine.base import Role

PROMPT_TOKENS = 3 * 64
"""Whole pages."""


def counts(running: Any) -> tuple[int, ...]:
    """Running, queued, preallocating, transferring."""
    (rank,) = running.engine.figures().ranks
    assert (rank.rank, rank.retracted, rank.accept_length) == (0, 0, None)
    return rank.running, rank.queued, rank.preallocating, rank.transferring


@pytest.mark.promise("S5-299")
async def test_prompts_queue_behind_the_one_that_is_computed(start: Any) -> None:
    prefill = await start(Role.PREFILL, prefill_base_ms=60_000, max_total_tokens=3 * PROMPT_TOKENS)
    numbers = [prefill.ask(room=room) for room in range(1, 6)]
    await asyncio.sleep(0.05)
    assert counts(prefill) == (1, 4, 0, 0)
    assert prefill.engine.load().waiting_legs == 4
    assert prefill.engine.load().kv_tokens_used == 3 * PROMPT_TOKENS
    for number in numbers:
        prefill.engine.cancel(number)
    await prefill.until(lambda: prefill.idle)


@pytest.mark.promise("S5-299")
async def test_decode_runs_what_has_arrived_and_keeps_the_rest_waiting(start: Any) -> None:
    prefill = await start(Role.PREFILL)
    decode = await start(Role.DECODE, step_ms=100, max_total_tokens=3 * PROMPT_TOKENS)
    peer = prefill.description.kv_endpoint
    absent = decode.ask(room=1, peer=peer)
    prefill.ask(room=2)
    runs = decode.ask(room=2, peer=peer, max_tokens=40, ignore_eos=True)
    late = [decode.ask(room=room, peer=peer) for room in (3, 4)]
    await decode.until(lambda: runs in decode.said)
    assert counts(decode) == (1, 0, 1, 2)
    assert decode.engine.load().waiting_legs == 1
    for number in (absent, runs, *late):
        decode.engine.cancel(number)
        await decode.end_of(number)
    assert counts(decode) == (0, 0, 0, 0)
    assert decode.engine.figures().retractions == 0
