"""Sessions whose prompts differ at the same early place each time, and what a session leaves."""

from __future__ import annotations

import itertools
import json
import logging
import random
from collections.abc import Sequence
from typing import Any

import pytest
from router_bench import Bench
from router_loads import cache_changes, worker_load
from simulated import submits

from tandem.prefix_blocks import BLOCK_TOKENS, session_text
from tandem.v1 import router_pb2
from tandem_router import debug
from tandem_router.core import events
from tandem_router.core.actions import HitsLost, StartLeg
from tandem_router.core.lost_hits import MOST_COMPARED, MOST_SESSIONS, MOST_TOLD, LostHits
from tandem_router.core.values import Phase
from tandem_router.policies import Prefix
from tandem_router.relay import Relay

SESSION = 0xA1
STABLE = tuple(range(1, 5))
"""What all prompts begin with, in front of what changes."""


class Agent:
    """A router's core with one prefill worker, which keeps what it was sent, and a client."""

    def __init__(self) -> None:
        self.bench = Bench(0, 0, prefill_policy=lambda: Prefix(random.Random(1).randrange))
        for phase in Phase:
            self.bench.worker(phase, max_sequences=64, context_length=10**6)
        self._numbers = itertools.count(1)
        self._blocks = itertools.count(1000)

    def turn(self, blocks: Sequence[int], session: int = SESSION, **fields: Any) -> list[LostHits]:
        """Returns what the router tells of it."""
        given = {"prompt_tokens": len(blocks) * BLOCK_TOKENS, "prompt_blocks": tuple(blocks)}
        self.bench.submit(next(self._numbers), session=session, **given, **fields)
        told = [each.lost for each in self.bench.of(HitsLost)]
        self.end(*self.bench.legs())
        return told

    def end(self, prefill: StartLeg, decode: StartLeg) -> None:
        self.bench.close(prefill)
        self.bench.feed(events.LegStarted(decode.worker, decode.leg))
        self.bench.close(decode)

    def fresh(self, count: int, after: Sequence[int] = ()) -> tuple[int, ...]:
        """A prompt that begins so, and then as no other does."""
        return (*after, *(next(self._blocks) for _ in range(count)))

    @property
    def lost_tokens(self) -> int:
        return self.bench.core.snapshot().counts.lost_hit_tokens

    @property
    def told(self) -> tuple[LostHits, ...]:
        return self.bench.core.snapshot().lost_hits


@pytest.mark.promise("S5-642")
@pytest.mark.parametrize("stable", [STABLE, ()], ids=["behind a stable head", "at the beginning"])
def test_a_session_whose_prompts_differ_early_each_time_is_told_of_once(
    stable: Sequence[int],
) -> None:
    agent = Agent()
    told = [agent.turn(agent.fresh(16 + turn, stable), trace_id="t") for turn in range(6)]
    assert [len(each) for each in told] == [0, 0, 1, 0, 0, 0]
    (last,) = agent.told
    assert (last.session, last.token, last.turns) == (SESSION, len(stable) * BLOCK_TOKENS, 5)
    lost = [16 + turn for turn in (1, 2, 3, 4)]  # of each prompt but the first two: all of the last
    assert agent.lost_tokens == last.total_tokens == sum(lost) * BLOCK_TOKENS


@pytest.mark.promise("S5-642")
def test_a_session_that_goes_on_from_its_last_prompt_loses_nothing() -> None:
    agent, prompt = Agent(), STABLE
    for _ in range(6):
        prompt = agent.fresh(8, prompt)
        assert agent.turn(prompt) == []
    for cut in (5, 4, 3):  # what a template leaves out of earlier turns is near the end
        assert agent.turn(agent.fresh(8, prompt[:-cut])) == []
    assert (agent.lost_tokens, agent.told) == (0, ())


@pytest.mark.promise("S5-642")
def test_what_changes_near_the_end_each_time_is_no_early_difference() -> None:
    agent, stable = Agent(), agent_prompt(30)
    for _ in range(4):
        assert agent.turn(agent.fresh(20, stable)) == []
    assert agent.lost_tokens == 0


@pytest.mark.promise("S5-642")
def test_a_difference_at_another_place_each_time_is_chance() -> None:
    agent, prompt = Agent(), agent_prompt(40)
    for place in (4, 6, 8, 10, 12):
        agent.turn(agent.fresh(36, prompt[:place]))
    assert agent.lost_tokens == 0


@pytest.mark.promise("S5-642")
def test_prompts_of_a_subagent_between_the_turns_are_no_difference() -> None:
    """Both begin with the same tools, and each goes on from its own last prompt."""
    agent, turn, subagent = Agent(), Agent().fresh(20, STABLE), Agent().fresh(30, (*STABLE, 7))
    for _ in range(5):
        turn, subagent = agent.fresh(2, turn), agent.fresh(2, subagent)
        assert agent.turn(turn) + agent.turn(subagent) == []
    assert agent.lost_tokens == 0


@pytest.mark.promise("S5-642")
def test_other_prompts_between_the_turns_hide_no_difference() -> None:
    agent = Agent()
    told = []
    for _ in range(4):
        told += agent.turn(agent.fresh(20, STABLE))
        told += agent.turn((90, 91, 92))  # a title is asked for, of the same prompt each time
    assert [each.token for each in told] == [len(STABLE) * BLOCK_TOKENS]


@pytest.mark.promise("S5-642")
def test_where_another_has_had_the_prompt_cached_nothing_is_lost() -> None:
    agent, prompts = Agent(), [agent_prompt(20, first=1000 * each) for each in range(1, 5)]
    for each in prompts:
        agent.turn(each, session=1)
    before = agent.lost_tokens
    for each in prompts:
        assert agent.turn(each, session=2) == []
    assert agent.lost_tokens == before


@pytest.mark.promise("S5-642")
def test_fleets_without_caches_miss_no_hits() -> None:
    agent = Agent()
    report = cache_changes(anew=True, entered=(), left=(), keeps_none=True)
    agent.bench.feed(worker_load("prefill-0", 0, cache=report))
    for _ in range(4):
        assert agent.turn(agent.fresh(20)) == []
    assert agent.lost_tokens == 0


@pytest.mark.promise("S5-642")
def test_what_is_kept_of_sessions_is_bounded() -> None:
    agent = Agent()
    lost_hits = agent.bench.core.state.lost_hits
    numbers = range(1, MOST_SESSIONS + 100)
    for _ in range(3):
        agent.turn(agent.fresh(MOST_COMPARED + 50, STABLE))
    assert agent.told[0].tokens == (MOST_COMPARED - len(STABLE)) * BLOCK_TOKENS
    for session, _ in itertools.product(numbers, range(3)):
        lost_hits.note(router_pb2.Submit(session=session), agent.fresh(2), 0)
    assert len(lost_hits) == MOST_SESSIONS
    assert [each.session for each in agent.told] == [*reversed(numbers)][:MOST_TOLD]


@pytest.mark.promise("S5-642")
async def test_a_log_line_and_a_document_say_where_and_no_clients_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent()
    relay = Relay(agent.bench.core)
    for _ in range(2):
        agent.turn(agent.fresh(20, STABLE))
    blocks = agent.fresh(20, STABLE)
    submit = submits.submit(
        99,
        n=1,
        model="tiny",
        timeout_seconds=9,
        task=b"t",
        prompt_tokens=len(blocks) * BLOCK_TOKENS,
        prompt_blocks=blocks,
        session=SESSION,
        trace_id="ab" * 16,
    )
    caplog.set_level(logging.WARNING)
    for action in agent.bench.feed(submit):
        if isinstance(action, HitsLost):
            relay._carry_out[HitsLost](action)
    relay.complaints.close()
    (line,) = [each.__dict__ for each in caplog.records if each.name == "tandem_router.relay"]
    assert (line["session"], line["trace_id"]) == (session_text(SESSION), "ab" * 16)
    assert "up to token 256" in line["reason"]
    (told,) = json.loads(debug.lost_hits(relay).body)["sessions"]
    assert told["session"] == session_text(SESSION) == "00000000000000a1"
    assert (told["token"], told["tokens"], told["trace_id"]) == (256, 20 * 64, "ab" * 16)


def agent_prompt(count: int, first: int = 500) -> tuple[int, ...]:
    return tuple(range(first, first + count))


# --- the end of a session ---


@pytest.mark.promise("S5-643")
def test_a_session_that_ends_leaves_nothing_behind() -> None:
    agent = Agent()
    for _ in range(2):
        agent.turn(agent.fresh(20, STABLE))
    assert agent.bench.core.snapshot().sessions == 1
    agent.turn(agent.fresh(20, STABLE), ends_session=True)
    assert agent.bench.core.snapshot().sessions == 0
    assert len(agent.bench.core.state.lost_hits) == 0


@pytest.mark.promise("S5-643")
def test_a_session_lasts_until_its_last_request_has_ended() -> None:
    agent = Agent()
    agent.bench.submit(500, session=SESSION, ends_session=True)
    legs = agent.bench.legs()
    assert agent.bench.core.snapshot().sessions == 1
    agent.end(*legs)
    assert agent.bench.core.snapshot().sessions == 0


@pytest.mark.promise("S5-643")
def test_a_last_request_that_is_cancelled_ends_its_session_too() -> None:
    agent = Agent()
    agent.turn(STABLE)
    agent.bench.submit(500, session=SESSION, ends_session=True)
    agent.bench.feed(events.Cancel(1, 500))
    assert agent.bench.core.snapshot().sessions == 0


@pytest.mark.promise("S5-643")
def test_the_outputs_of_a_request_take_no_place_of_a_session_once_it_has_ended() -> None:
    agent = Agent()
    agent.bench.submit(500, n=2, prompt_tokens=9)
    legs = agent.bench.of(StartLeg)
    assert agent.bench.core.snapshot().sessions == 1
    for prefill, decode in (legs[:2], legs[2:]):
        agent.end(prefill, decode)
    assert agent.bench.core.snapshot().sessions == 0


@pytest.mark.promise("S5-643")
def test_a_request_of_no_session_ends_none() -> None:
    agent = Agent()
    agent.turn(STABLE)
    agent.turn(STABLE, session=0, ends_session=True)
    assert agent.bench.core.snapshot().sessions == 1


# --- what outputs are expected to have ---


@pytest.mark.promise("S5-644")
def test_a_long_output_that_is_expected_keeps_its_decode_worker_from_others() -> None:
    bench = Bench(1, 2)
    for index in range(2):
        bench.feed(worker_load(f"decode-{index}", 0, kv_tokens_used=0, kv_tokens_total=100))
    bench.worker(Phase.PREFILL, 0, max_sequences=8)

    def decode(first: int, **fields: Any) -> str:
        bench.submit(first, prompt_tokens=1, max_tokens=80, **fields)
        return bench.legs()[1].worker

    assert decode(1, expected_tokens=70) == "decode-0"
    assert [decode(first) for first in (2, 3)] == ["decode-1", "decode-1"]


@pytest.mark.promise("S5-644")
def test_what_an_output_was_expected_to_have_counts_until_it_has_ended() -> None:
    bench = Bench(1, 1)
    bench.feed(worker_load("decode-0", 0, kv_tokens_used=0, kv_tokens_total=100))
    bench.submit(1, prompt_tokens=10, max_tokens=80, expected_tokens=70)
    prefill, started = bench.legs()
    worker = bench.core.state.fleet.workers["decode-0"]
    assert (worker.tokens, bench.core.state.fleet.workers["prefill-0"].tokens) == (80, 10)
    bench.feed(worker_load("decode-0", 1, kv_tokens_used=50, kv_tokens_total=100))
    assert worker.tokens + worker.other_tokens == 80, "what it has made was expected"
    bench.feed(worker_load("decode-0", 1, kv_tokens_used=95, kv_tokens_total=100))
    assert worker.tokens + worker.other_tokens == 95, "it makes more than was expected"
    bench.close(prefill)
    bench.feed(events.LegStarted(started.worker, started.leg))
    bench.close(started)
    assert worker.tokens == 0
