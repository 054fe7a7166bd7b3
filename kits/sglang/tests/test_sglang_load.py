"""What SGLang's engine says of its load, from what its schedulers said and what came of its
requests: no GPU and no SGLang.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.engine.base import Delta, Ending, Role
from tandem_sglang import requests
from tandem_sglang.additions import shared_numbers
from tandem_sglang.engine import SglangEngine
from tandem_sglang.outputs import RunningRows
from tandem_sglang.traffic import Traffic


def engine(role: Role, *generated: int, stepped_seconds_ago: float = 7.0, sharers: int = 1) -> Any:
    """One with so many open requests, each with so many tokens so far."""
    made: Any = SglangEngine.__new__(SglangEngine)
    none: Any = None
    Traffic.__init__(made, role, none, data_ranks=1, sharers=sharers)
    made._streams = {
        requests.rid(number): SimpleNamespace(generated=tokens, prompt_length=1, retractions=0)
        for number, tokens in enumerate(generated)
    }
    made._stepped = time.monotonic() - stepped_seconds_ago
    made._states = None
    return made


def snapshot(**said: Any) -> Any:
    """What one of SGLang's schedulers writes, with its names."""
    queues = {name: said.pop(name, 0) for name in ("waiting", "grammar")}
    disaggregation = {
        name: said.pop(name, 0)
        for name in (
            "prefill_bootstrap_queue_reqs",
            "prefill_inflight_queue_reqs",
            "decode_prealloc_queue_reqs",
            "decode_transfer_queue_reqs",
            "decode_retracted_queue_reqs",
        )
    }
    plain = {
        "timestamp": 1.0,
        "dp_rank": 0,
        "num_running_reqs": 0,
        "num_used_tokens": 0,
        "max_total_num_tokens": 65536,
        "token_usage": round(said.get("num_used_tokens", 0) / 65536, 4),
        "speculative": None,
    }
    return SimpleNamespace(
        queues=SimpleNamespace(**queues),
        disaggregation=SimpleNamespace(**disaggregation),
        **(plain | said),
    )


def saying(made: Any, *snapshots: Any) -> Any:
    """The engine, whose schedulers have said that."""
    reader = SimpleNamespace(read_all=lambda: list(snapshots))
    made._launched = SimpleNamespace(
        manager=SimpleNamespace(load_snapshot_reader=reader), capacity=1000, units=()
    )
    return made


DECODING = {
    "num_running_reqs": 2,
    "waiting": 3,
    "decode_prealloc_queue_reqs": 5,
    "decode_transfer_queue_reqs": 7,
    "decode_retracted_queue_reqs": 11,
    "num_used_tokens": 12345,
}


@pytest.mark.promise("S5-299")
def test_each_rank_s_snapshot_is_its_load() -> None:
    second = {"dp_rank": 1, "speculative": SimpleNamespace(accept_length=2.5)}
    made = saying(
        engine(Role.DECODE, *[3] * 40), snapshot(**DECODING), snapshot(**DECODING | second)
    )
    load = made.load()
    assert (load.open_legs, load.waiting_legs) == (40, 2 * (3 + 5 + 11))
    assert (load.kv_tokens_used, load.kv_tokens_total) == (2 * 12345, 2 * 65536)
    first, other = made.figures().ranks
    assert (first.rank, first.running, first.queued, first.preallocating) == (0, 2, 3, 5)
    assert (first.transferring, first.retracted, first.accept_length) == (7, 11, None)
    assert (other.rank, other.accept_length) == (1, 2.5)


@pytest.mark.promise("S5-299")
def test_who_waits_for_decode_s_pages_does_not_wait_for_more_prefill() -> None:
    said = snapshot(waiting=3, prefill_bootstrap_queue_reqs=5, prefill_inflight_queue_reqs=7)
    made = saying(engine(Role.PREFILL, *[0] * 20), said)
    (rank,) = made.figures().ranks
    assert (rank.queued, rank.preallocating, rank.transferring) == (3, 5, 7)
    assert made.load().waiting_legs == 3


@pytest.mark.promise("S5-450")
def test_of_one_engine_each_process_tells_its_part() -> None:
    """What waits is rounded up: one that waits is not to be told as none."""
    said = snapshot(**DECODING)
    load = saying(engine(Role.DECODE, *[3] * 40, sharers=3), said).load()
    assert (load.open_legs, load.waiting_legs) == (40, 7)
    assert (load.kv_tokens_used, load.kv_tokens_total) == (12345 // 3, 65536 // 3)
    alone = saying(engine(Role.DECODE, 0, 3, sharers=4)).load()
    assert (alone.waiting_legs, alone.kv_tokens_used, alone.kv_tokens_total) == (1, 5, 250)


@pytest.mark.promise("S5-299")
@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_who_waits_for_its_form_is_queued(role: Role) -> None:
    made = saying(engine(role, *[0] * 9), snapshot(waiting=3, grammar=4))
    (rank,) = made.figures().ranks
    assert rank.queued == made.load().waiting_legs == 7


def test_no_more_wait_than_are_open() -> None:
    assert saying(engine(Role.DECODE, 0), snapshot(**DECODING)).load().waiting_legs == 1


def test_the_fuller_of_two_pools_is_what_is_used() -> None:
    said = snapshot(num_used_tokens=900, token_usage=0.5)
    assert saying(engine(Role.DECODE), said).load().kv_tokens_used == 32768


@pytest.mark.parametrize("said", [[], [snapshot(**DECODING, timestamp=0.0)]])
def test_without_snapshots_load_is_estimated_and_nothing_is_said_of_ranks(said: list[Any]) -> None:
    made = saying(engine(Role.DECODE, 0, 3), *said)
    load = made.load()
    assert (load.waiting_legs, load.kv_tokens_used, load.kv_tokens_total) == (1, 5, 1000)
    assert not made.figures().ranks


@pytest.mark.promise("S5-371")
def test_states_of_processors_are_counted_over_all_data_parallel_ranks() -> None:
    made = engine(Role.DECODE)
    made._states = shared_numbers(3)
    made._states[0], made._states[2] = 4, 5
    assert made.figures().logits_states == 9


def test_retractions_of_open_and_of_ended_requests_are_counted() -> None:
    made = saying(engine(Role.DECODE, 3, 3))
    for number, stream in enumerate(made._streams.values(), start=1):
        stream.retractions = number
    made._emit(Delta(1, (), end=Ending.STOP))
    assert made.figures().retractions == 3
    assert list(made._streams) == [requests.rid(0)]


@pytest.mark.promise("S5-210")
def test_decode_tells_the_age_of_its_last_tokens_while_something_runs() -> None:
    assert 7000 <= engine(Role.DECODE, 0, 3).load().step_age_ms < 60_000


def test_decode_that_waits_for_kv_alone_has_no_step_to_make() -> None:
    for made in (engine(Role.DECODE), engine(Role.DECODE, 0, 0)):
        load = made.load()
        assert (load.HasField("step_age_ms"), load.step_age_ms) == (True, 0)


def test_prefill_cannot_say() -> None:
    assert not engine(Role.PREFILL, 0, 0).load().HasField("step_age_ms")


def test_a_step_begins_with_the_tokens_that_come() -> None:
    made = engine(Role.DECODE, 3)
    made._take(RunningRows([], [], [], [], []))
    assert made.load().step_age_ms < 5000
