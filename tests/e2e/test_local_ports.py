"""What a stack on one machine opens to others."""

from __future__ import annotations

import pytest
from openai import AsyncOpenAI
from stacks import MODEL, SGLANG_READY_SECONDS, Served, listens_at


@pytest.mark.timeout(SGLANG_READY_SECONDS + 60)
@pytest.mark.promise("S6-164")
async def test_a_stack_is_reached_on_loopback_alone(served: Served, client: AsyncOpenAI) -> None:
    """UCX and torch's store, left alone, listen on every network of the machine."""
    answer = await client.completions.create(model=MODEL, prompt="The for", max_tokens=4)
    assert answer.choices  # a hand-over has opened what it opens
    assert listens_at(served.stack) == {"127.0.0.1"}
