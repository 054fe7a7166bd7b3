"""No answer from KV that is not the request's: what decode checks before the first token leaves."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import handover_mischief
import pytest

from tandem.engine.base import Ending, Role
from tandem.engine.kv_tag import KvCheck
from tandem.errors import KvCorruptError

PROMPT = tuple(range(100, 250))
OTHER = tuple(range(300, 450))


async def refused(running: Any, number: int, said: str) -> None:
    """It ended with nothing but the error, which another pair may do better than."""
    (delta,) = await running.end_of(number)
    assert delta.end is Ending.FAILED
    assert not delta.token_ids
    assert delta.retryable
    assert isinstance(delta.error, KvCorruptError)
    assert said in delta.error.message


def ask_both(pair: Any, prefill: dict[str, Any], decode: dict[str, Any]) -> int:
    """Legs of one room that differ. The number of decode's."""
    room = secrets.randbits(63) | 1
    pair.prefill.ask(room=room, **prefill)
    number: int = pair.decode.ask(room=room, peer=pair.prefill.description.kv_endpoint, **decode)
    return number


@pytest.mark.promise("S5-690")
@pytest.mark.parametrize("check", ["tag", "bytes"])
@pytest.mark.parametrize(
    ("prefill", "decode", "said"),
    [
        ({"prompt": OTHER}, {"prompt": PROMPT}, "another prompt"),
        ({"lora_adapter": "sql"}, {}, "another LoRA adapter"),
        ({}, {"lora_adapter": "sql"}, "another LoRA adapter"),
        ({"cache_salt": "acme"}, {"cache_salt": "umbrella"}, "another cache salt"),
    ],
    ids=str,
)
async def test_the_kv_of_another_request_is_not_answered_from(
    start: Any,
    pairing: Any,
    check: str,
    prefill: dict[str, Any],
    decode: dict[str, Any],
    said: str,
) -> None:
    pair = pairing(*[await start(role, kv_check=check) for role in (Role.PREFILL, Role.DECODE)])
    good = await pair.tokens()
    await refused(pair.decode, ask_both(pair, prefill, decode), said)
    assert await pair.tokens() == good


@pytest.mark.promise("S5-691")
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("stale", "damaged"),
        ("belated", "damaged"),
        ("withhold", "damaged"),
        ("corrupt", "damaged"),
        ("reused", "gave the pages away"),
        ("tenant", "another cache salt"),
        ("adapter", "another LoRA adapter"),
    ],
)
async def test_each_fault_of_a_hand_over_is_noticed(pair: Any, fault: str, said: str) -> None:
    good = await pair.tokens(OTHER)
    await pair.tokens(PROMPT)  # what the pages held before is this one's
    pair.prefill.engine.set_faults(**{fault: "always"}, delay_ms=60)
    _, number = pair.ask(OTHER)
    await refused(pair.decode, number, said)
    pair.prefill.engine.set_faults()
    assert await pair.tokens(OTHER) == good


@pytest.mark.promise("S5-691")
async def test_what_is_handed_over_twice_costs_nobody_a_wrong_answer(
    start: Any, pairing: Any
) -> None:
    """The second time the pages are another request's: the pool holds three."""
    small = {"max_total_tokens": 64 * 12, "fault_doubled": "every:2", "fault_delay_ms": 3}
    decode = {"max_total_tokens": 64 * 12}
    pair = pairing(await start(Role.PREFILL, **small), await start(Role.DECODE, **decode))
    prompts = [PROMPT[start:] for start in range(6)]
    good = [await pair.tokens(prompt) for prompt in prompts]
    asked = [(turn % 6, pair.ask(prompts[turn % 6])[1]) for turn in range(120)]
    answered = 0
    for which, number in asked:
        deltas = await pair.decode.end_of(number)
        if deltas[-1].error is None:
            assert [token for delta in deltas for token in delta.token_ids] == good[which]
            answered += 1
        else:
            await refused(pair.decode, number, "damaged")
    assert answered >= 60


@pytest.mark.promise("S5-690")
async def test_pages_that_were_given_away_meanwhile_are_not_answered_from(pair: Any) -> None:
    """Freed by whatever mistake, and another's: the tag is of the earlier use."""
    started = pair.decode.engine._started
    room = secrets.randbits(63) | 1
    number = pair.decode.ask(room=room, peer=pair.prefill.description.kv_endpoint)
    (sequence,) = started.scheduler.sequences()
    started.pool.release(sequence.pages)
    again = started.pool.allocate(len(sequence.pages))
    assert set(again) == set(sequence.pages)
    pair.prefill.ask(room=room)
    await refused(pair.decode, number, "an earlier use of the pages")


@pytest.mark.promise("S5-690")
async def test_kv_of_another_layout_is_not_answered_from(pair: Any) -> None:
    pair.prefill.engine._started.model._layout += 1
    _, number = pair.ask()
    await refused(pair.decode, number, "another model or layout")


async def test_engines_that_check_otherwise_are_no_pair(start: Any) -> None:
    said = set()
    for check in KvCheck:
        for role in (Role.PREFILL, Role.DECODE):
            engine = await start(role, kv_check=check)
            said.add((check, engine.description.fingerprint.SerializeToString(deterministic=True)))
    assert len(said) == len(KvCheck)
    prefill, decode = await start(Role.PREFILL, kv_check="off"), await start(Role.DECODE)
    room = 5
    prefill.ask(room=room)
    number = decode.ask(room=room, peer=prefill.description.kv_endpoint)
    await refused(decode, number, "without a tag")


@pytest.mark.parametrize(
    ("check", "faults"),
    [
        (KvCheck.BYTES, handover_mischief.FAULTS),
        (KvCheck.TAG, (*handover_mischief.OF_WHOSE, *handover_mischief.OF_PAGES)),
    ],
)
@pytest.mark.promise("S5-691")
async def test_no_hand_over_over_a_misbehaving_transfer_gives_a_wrong_answer(
    check: KvCheck, faults: Sequence[str]
) -> None:
    tally = await handover_mischief.hand_over(2000, seed=7, check=check, faults=faults)
    assert not tally.wrong
    assert not tally.needless
    assert tally.answered > 1000
    unnoticed = [fault for fault in faults if fault not in ("again", "doubled")]
    assert all(tally.noticed[fault] > 20 for fault in unnoticed)


async def test_without_a_check_the_same_transfer_gives_wrong_answers() -> None:
    """Else the test above proves nothing."""
    tally = await handover_mischief.hand_over(2000, seed=7, check=KvCheck.OFF)
    seen = {"prompt", "adapter", "crossed", "late", "stale", "torn"}
    assert seen <= tally.wrong.keys()
