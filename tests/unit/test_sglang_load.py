"""What SGLang's engine says of its last step, from what came of it: no GPU and no SGLang."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.engine.base import Role
from tandem.engine.sglang.engine import SglangEngine


def engine(role: Role, *generated: int, stepped_seconds_ago: float = 7.0) -> Any:
    """One with so many open requests, each with so many tokens so far."""
    made: Any = SglangEngine.__new__(SglangEngine)
    made._role, made._launched = role, None
    made._streams = {
        number: SimpleNamespace(generated=tokens, prompt_length=1)
        for number, tokens in enumerate(generated)
    }
    made._stepped = time.monotonic() - stepped_seconds_ago
    return made


@pytest.mark.promise("S5-210")
def test_decode_tells_the_age_of_its_last_tokens_while_something_runs() -> None:
    assert 7000 <= engine(Role.DECODE, 0, 3).load().step_age_ms < 60_000


def test_decode_that_waits_for_kv_alone_has_no_step_to_make() -> None:
    for made in (engine(Role.DECODE), engine(Role.DECODE, 0, 0)):
        load = made.load()
        assert (load.HasField("step_age_ms"), load.step_age_ms) == (True, 0)


def test_prefill_cannot_say() -> None:
    assert not engine(Role.PREFILL, 0, 0).load().HasField("step_age_ms")


async def test_a_step_begins_with_the_tokens_that_come() -> None:
    made = engine(Role.DECODE, 3)
    made._arrived, made._pending = asyncio.Event(), [object()]
    made._failure, made._closed = None, False
    made._arrived.set()
    await anext(made.steps())
    assert made.load().step_age_ms < 5000
