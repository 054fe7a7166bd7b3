"""A sequence whose decode worker is lost goes on at another, from what its engine had made; the
simulation's rules look on.
"""

from __future__ import annotations

import pytest
from test_router_core import Bench

from tandem.endings import Outcome
from tandem.errors import EngineError, InvalidRequestError
from tandem.v1 import common_pb2, worker_pb2
from tandem_router import translate
from tandem_router.core import actions, events, resuming
from tandem_router.core.values import MOST_TOKENS, Phase

pytestmark = pytest.mark.promise("S5-217", "S5-218")
Legs = tuple[actions.StartLeg, actions.StartLeg]


def begun(bench: Bench, **fields: object) -> Legs:
    """A request that is to be resumed, which decode has begun in company of another router's."""
    bench.submit(**{"resume": True, "prompt_tokens": 10, "max_tokens": 20} | fields)
    legs = bench.legs()
    bench.feed(events.LegStarted(legs[1].worker, legs[1].leg))
    return legs


def stack(decode: int = 2, **settings: object) -> Bench:
    bench = Bench(1, 0, **settings)
    for index in range(decode):
        bench.worker(Phase.DECODE, index, other_legs=1)
    return bench


def made(leg: actions.StartLeg, steps: bytes = b"s", **said: object) -> events.LegMade:
    return events.LegMade(leg.worker, leg.leg, steps, 1, **said)  # type: ignore[arg-type]


def lose(bench: Bench, legs: Legs) -> None:
    bench.close(legs[0])
    bench.feed(events.WorkerDown(legs[1].worker, "it died"))


def reason(bench: Bench) -> str:
    """Why the one sequence was not resumed."""
    (end,) = bench.of(actions.EndSequence)
    assert end.error is not None
    assert end.error.code == "worker_lost"
    return end.error.message.partition("; not resumed: ")[2]


def test_another_worker_goes_on_from_all_that_was_made() -> None:
    bench = stack()
    legs = begun(bench)
    assert (legs[0].command.say_made, legs[1].command.say_made, legs[1].made) == (False, True, b"")
    bench.feed(made(legs[1], b"ab"), made(legs[1], b"c"))
    lose(bench, legs)
    prefill, decode = bench.legs()
    assert decode.worker != legs[1].worker
    assert {prefill.made, decode.made} == {b"abc"}
    assert {prefill.command.say_made, decode.command.say_made} == {False}
    bench.feed(events.LegStarted(decode.worker, decode.leg))
    bench.close(prefill)
    bench.close(decode)
    assert bench.at_rest()
    assert bench.core.state.counts.resumed == {"finished": 1}


def test_what_was_made_is_kept_of_those_alone_who_ask() -> None:
    bench = stack()
    legs = begun(bench, resume=False)
    assert not legs[1].command.say_made
    bench.feed(made(legs[1]))
    lose(bench, legs)
    assert bench.ends() == [(1, "worker_lost")]
    assert reason(bench) == ""


def test_the_prompt_of_what_was_made_counts_in_the_load_of_prefill() -> None:
    bench = stack()
    legs = begun(bench)
    bench.feed(made(legs[1]), made(legs[1]))
    lose(bench, legs)
    assert bench.core.state.fleet.workers["prefill-0"].cost == (10 + 2) / 2


def test_a_resumed_prompt_is_no_longer_than_a_message_can_say() -> None:
    bench = Bench(0, 0)
    bench.worker(Phase.PREFILL, 0, context_length=MOST_TOKENS)
    for index in range(2):
        bench.worker(Phase.DECODE, index, context_length=MOST_TOKENS, other_legs=1)
    legs = begun(bench, prompt_tokens=MOST_TOKENS - 1, max_tokens=1)
    assert legs[0].command.to_compute == MOST_TOKENS - 1
    bench.feed(made(legs[1]), made(legs[1]))
    lose(bench, legs)
    prefill, _ = bench.legs()
    assert prefill.command.to_compute == MOST_TOKENS


def test_a_sequence_is_resumed_once() -> None:
    bench = stack(3)
    legs = begun(bench)
    bench.feed(made(legs[1]))
    bench.close(legs[0])
    bench.feed(events.WorkerDown(legs[1].worker, "it ended in good order", died=False))
    again = bench.legs()
    bench.feed(events.LegStarted(again[1].worker, again[1].leg))
    bench.close(again[0])
    bench.feed(events.WorkerDown(again[1].worker, "it ended in good order", died=False))
    assert reason(bench) == resuming.TWICE
    assert bench.core.state.counts.resumed == {"failed": 1}


def test_an_attempt_to_resume_that_fails_is_tried_again_from_the_same_place() -> None:
    bench = stack(3, max_retries=1)
    legs = begun(bench)
    bench.feed(made(legs[1]))
    lose(bench, legs)
    again = bench.legs()
    failed = EngineError("the hand-over failed")
    bench.close(again[1], Outcome.FAILED, error=failed, retryable=True)
    bench.close(again[0], Outcome.CANCELLED)
    assert [leg.made for leg in bench.legs()] == [b"s", b"s"]


def test_a_worker_that_says_nothing_or_why_it_cannot_ends_it_with_the_reason() -> None:
    bench = stack()
    lose(bench, begun(bench))
    assert reason(bench) == resuming.NOT_SAID
    bench = stack()
    legs = begun(bench)
    bench.feed(made(legs[1], b"", obstacle="its hooks say no"), made(legs[1]))
    lose(bench, legs)
    assert reason(bench) == "its hooks say no"
    assert bench.core.state.counts.resumed == {"refused": 1}


def test_the_last_pair_and_a_suspect_are_not_resumed() -> None:
    bench = stack(1)
    legs = begun(bench)
    bench.feed(made(legs[1]))
    lose(bench, legs)
    assert reason(bench) == resuming.NO_PAIR
    bench = Bench(1, 2)  # it was alone
    legs = begun(bench)
    bench.feed(made(legs[1]))
    lose(bench, legs)
    assert reason(bench) == resuming.SUSPECT


def test_an_engine_that_dies_is_a_worker_that_dies() -> None:
    bench = stack()
    legs = begun(bench)
    bench.feed(made(legs[1]))
    bench.close(legs[0])
    died = EngineError("the engine died")
    bench.close(legs[1], Outcome.FAILED, error=died, worker_died=True)
    assert bench.legs()[1].made == b"s"


def test_an_engine_s_failure_alone_is_no_death() -> None:
    bench = stack()
    legs = begun(bench)
    bench.feed(made(legs[1]))
    bench.close(legs[0])
    bench.close(legs[1], Outcome.FAILED, error=EngineError("it failed"))
    assert bench.ends() == [(1, "engine_error")]


def test_what_was_held_begins_again() -> None:
    bench = stack()
    legs = begun(bench, want_report=True)
    assert legs[1].command.hold_output
    bench.feed(made(legs[1]))
    bench.feed(events.WorkerDown(legs[1].worker, "it died"))
    bench.close(legs[0], Outcome.CANCELLED)
    prefill, decode = bench.legs()
    assert {prefill.made, decode.made} == {b""}
    assert (decode.command.hold_output, decode.command.say_made) == (True, True)


def test_what_prefill_was_to_say_it_has_said_before_a_resumption() -> None:
    bench = stack()
    legs = begun(bench, want_report=True)
    bench.close(legs[0])  # releases
    bench.feed(made(legs[1]))
    bench.feed(events.WorkerDown(legs[1].worker, "it died"))
    assert not bench.legs()[1].command.hold_output


def test_a_client_that_has_its_end_loses_nothing_with_the_worker() -> None:
    bench = stack()
    legs = begun(bench)
    bench.feed(made(legs[1]), made(legs[1], b"", over=True))
    lose(bench, legs)
    assert not bench.done[1:] or not bench.ends()
    assert bench.at_rest()
    assert bench.core.state.counts.requests == {"finished": 1}


def test_what_is_made_takes_of_the_budget_and_no_other_request_pays() -> None:
    bench = stack(memory=4000)
    legs = begun(bench)
    bench.feed(made(legs[1], b"s" * 2990))
    bench.feed(made(legs[1], b"s" * 20))
    assert bench.core.budget.held <= 10, "what cannot be used is not kept"
    lose(bench, legs)
    assert reason(bench) == resuming.NO_MEMORY


def test_what_is_made_after_a_sequence_has_ended_is_not_kept() -> None:
    bench = stack()
    legs = begun(bench)
    bench.feed(events.Cancel(1, 1))
    held = bench.core.budget.held
    bench.feed(made(legs[1], b"s" * 100))
    assert bench.core.budget.held == held, "its leg is open until the worker has cancelled it"


def test_more_than_fits_beside_a_task_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "MAX_MADE_BYTES", 10)
    made_of = resuming.Made()
    allotment = Bench().core.budget.allotment()
    assert made_of.add(events.LegMade("w", 1, b"s" * 10, 1), allotment)
    assert not made_of.add(events.LegMade("w", 1, b"s", 1), allotment)
    assert made_of.obstacle == resuming.TOO_LONG
    assert not allotment.size


def test_a_worker_that_refuses_to_go_on_is_no_fault_of_the_client_s() -> None:
    bench = stack()
    legs = begun(bench)
    bench.feed(made(legs[1]))
    lose(bench, legs)
    prefill, _ = bench.legs()
    bench.close(prefill, Outcome.FAILED, error=InvalidRequestError("resume: no"))
    assert reason(bench) == "resume: no"


def test_a_blocked_output_that_is_made_again_forgets_what_was_made() -> None:
    bench = Bench(1, 0)
    for index in range(2):
        bench.worker(Phase.DECODE, index, other_legs=1, has_classifiers=True)
    legs = begun(bench)
    bench.feed(made(legs[1], b"first run"))
    bench.close(legs[0])
    bench.close(legs[1], Outcome.REGENERATE, overlay=b"again")
    prefill, decode = bench.legs()
    assert (decode.overlay, decode.made, decode.command.say_made) == (b"again", b"", True)
    bench.feed(events.LegStarted(decode.worker, decode.leg), made(decode, b"second"))
    lose(bench, (prefill, decode))
    assert [(leg.overlay, leg.made) for leg in bench.legs()] == [(b"again", b"second")] * 2


def test_nothing_but_what_was_made_is_laid_over_a_task() -> None:
    step = common_pb2.TokenLogprobs(token_id=[4, 5])
    steps = common_pb2.Resumption(step=[step]).SerializeToString()
    task = common_pb2.Task.FromString(translate.resumption(steps + steps))
    assert [list(each.token_id) for each in task.resume.step] == [[4, 5], [4, 5]]
    foreign = common_pb2.Task(model="another").SerializeToString()
    laid = common_pb2.Task.FromString(translate.resumption(foreign))
    assert not laid.model


def test_a_worker_cannot_say_more_tokens_than_bytes() -> None:
    said = worker_pb2.LegMade(steps=b"abc", tokens=2**31, obstacle="x" * 1000)
    (event,) = translate.leg_events("w", [worker_pb2.LegEvent(leg=1, made=said)])
    assert isinstance(event, events.LegMade)
    assert (event.tokens, len(event.obstacle)) == (3, 200)
