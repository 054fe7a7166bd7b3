"""Two revisions of a model side by side that differ in what they can take: each request runs where
it can.
"""

from __future__ import annotations

from typing import Any

import pytest
from test_router_core import FINGERPRINT, Bench

from tandem.endings import Outcome
from tandem.errors import EngineError
from tandem_router.core import actions, events
from tandem_router.core.values import Phase, Profile

OLD, NEW = "old", "new"
WAIT = 5.0


def made(old: dict[str, Any], new: dict[str, Any], **bounds: Any) -> Bench:
    """A pair of each revision, with one slot."""
    bench = Bench(0, 0, pair_wait_seconds=WAIT, **bounds)
    for place, (revision, profile) in enumerate(((OLD, old), (NEW, new))):
        add(bench, revision, place, **profile)
    return bench


def add(bench: Bench, revision: str, place: int, **profile: Any) -> None:
    print_ = FINGERPRINT._replace(deployment_revision=revision)
    for phase in Phase:
        bench.worker(
            phase, place, name=revision, fingerprint=print_, **{"max_sequences": 1} | profile
        )


def where(bench: Bench) -> list[str]:
    """The workers of the legs that the last event started, as they are called."""
    workers = bench.core.state.fleet.workers
    return [workers[each.worker].profile.name for each in bench.of(actions.StartLeg)]


@pytest.mark.promise("S5-221")
@pytest.mark.parametrize("longer", [OLD, NEW])
def test_what_only_one_revision_can_hold_runs_there(longer: str) -> None:
    contexts = {OLD: 100, NEW: 100} | {longer: 1_000}
    bench = made({"context_length": contexts[OLD]}, {"context_length": contexts[NEW]})
    (served,) = bench.core.state.fleet.served()
    assert (served.context_length, served.longest_context) == (100, 1_000)
    bench.submit(1, prompt_tokens=90, max_tokens=11)
    assert where(bench) == [longer] * 2
    bench.submit(2, prompt_tokens=1_000, max_tokens=1)
    assert bench.ends() == [(2, "context_length_exceeded")]
    bench.submit(3, prompt_tokens=500, max_tokens=500)
    assert not bench.done, "it waits for the place that is taken"
    other = OLD if longer == NEW else NEW
    bench.submit(4, prompt_tokens=50, max_tokens=50)
    assert where(bench) == [other] * 2, "what waits for the other keeps nobody from this one"


@pytest.mark.promise("S5-221")
def test_what_only_one_revision_knows_runs_there() -> None:
    old, new = frozenset({"regex", "gone"}), frozenset({"regex", "come"})
    bench = made({"logits_processors": old}, {"logits_processors": new})
    (served,) = bench.core.state.fleet.served()
    assert served.logits_processors == ("regex",)
    assert served.any_logits_processors == ("come", "gone", "regex")
    for number, (name, revision) in enumerate((("gone", OLD), ("come", NEW)), start=1):
        bench.submit(number, logits_processors=frozenset({name, "regex"}))
        assert where(bench) == [revision] * 2
    bench.submit(3, logits_processors=frozenset({"come", "gone"}))
    (end,) = bench.of(actions.EndSequence)
    assert bench.ends() == [(3, "unsupported_parameter")]
    assert "come, gone" in str(end.error)


@pytest.mark.promise("S5-411")
def test_what_needs_an_adapter_runs_where_it_is() -> None:
    old, new = ({"lora_adapters": frozenset({"sql", name})} for name in ("gone", "come"))
    bench = made(old, new)
    (served,) = bench.core.state.fleet.served()
    assert served.lora_adapters == ("come", "gone", "sql")
    for number, (name, revision) in enumerate((("gone", OLD), ("come", NEW)), start=1):
        bench.submit(number, lora_adapter=name)
        assert where(bench) == [revision] * 2
    bench.submit(3, lora_adapter="come")
    assert not bench.done, "it waits for the place that is taken"
    bench.submit(4, lora_adapter="none")
    (end,) = bench.of(actions.EndSequence)
    assert bench.ends() == [(4, "model_not_found")]
    assert "tiny:none" in str(end.error)


@pytest.mark.promise("S5-422")
def test_workers_that_hand_over_by_unequal_libraries_make_no_pair() -> None:
    bench = Bench(0, 0)
    for phase, library in ((Phase.PREFILL, "mooncake"), (Phase.DECODE, "")):
        bench.worker(phase, fingerprint=FINGERPRINT._replace(kv_transfer=library))
    bench.submit(1)
    assert bench.ends() == [(1, "no_pair")]
    assert bench.core.state.counts.pairs_rejected == {"kv_transfer": 1}


@pytest.mark.promise("S5-462")
def test_workers_of_which_one_alone_drafts_make_no_pair_and_it_is_said_why() -> None:
    bench = Bench(0, 0)
    for phase, draft in ((Phase.PREFILL, "EAGLE"), (Phase.DECODE, "")):
        bench.worker(phase, fingerprint=FINGERPRINT._replace(kv_beside=draft))
    bench.submit(1)
    assert bench.ends() == [(1, "no_pair")]
    assert bench.core.state.counts.pairs_rejected == {"kv_beside": 1}


@pytest.mark.promise("S5-412")
def test_unequal_sets_of_adapters_make_no_pair() -> None:
    bench = Bench(0, 0)
    for phase, digest in ((Phase.PREFILL, "a"), (Phase.DECODE, "b")):
        bench.worker(
            phase,
            fingerprint=FINGERPRINT._replace(lora_sha256=digest),
            lora_adapters=frozenset({"sql"}),
        )
    bench.submit(1, lora_adapter="sql")
    assert bench.ends() == [(1, "no_pair")]
    assert bench.core.state.counts.pairs_rejected == {"lora_sha256": 1}


def test_the_context_that_counts_is_of_those_that_know_the_processors() -> None:
    names = frozenset({"come"})
    bench = made({"context_length": 1_000}, {"logits_processors": names})
    bench.submit(1, prompt_tokens=100, max_tokens=1, logits_processors=names)
    (end,) = bench.of(actions.EndSequence)
    assert bench.ends() == [(1, "context_length_exceeded")]
    assert "context length is 100 tokens" in str(end.error)


@pytest.mark.promise("S5-221")
def test_what_waits_for_a_revision_that_goes_waits_for_another_such_pair() -> None:
    bench = made({"context_length": 1_000}, {})
    bench.submit(1, prompt_tokens=500)
    bench.submit(2, prompt_tokens=500)
    bench.submit(3, prompt_tokens=500)
    bench.feed(events.WorkerDraining("prefill-0", True), after=1.0)
    bench.submit(4, prompt_tokens=500)
    assert bench.ends() == [(4, "context_length_exceeded")], "nobody is left who could"
    bench.feed(events.Tick(), after=WAIT - 0.1)
    assert not bench.ends()
    bench.worker(
        Phase.PREFILL,
        2,
        max_sequences=1,
        context_length=1_000,
        fingerprint=FINGERPRINT._replace(deployment_revision=OLD),
    )
    assert not bench.ends()
    legs = [each for each in bench.core.state.legs.values() if each.sequence.number == 1]
    for leg in sorted(legs, key=lambda each: each.number):
        bench.feed(events.LegStarted(leg.worker.key, leg.number))
        bench.feed(events.LegClosed(leg.worker.key, leg.number, Outcome.FINISHED))
    assert [each.command.sequence for each in bench.of(actions.StartLeg)] == [2, 2]
    bench.feed(events.WorkerDraining("prefill-2", True))
    bench.feed(events.Tick(), after=WAIT - 0.1)
    assert not bench.ends()
    bench.feed(events.Tick(), after=0.2)
    assert bench.ends() == [(3, "no_pair")], "in bounded time"


@pytest.mark.promise("S5-221")
def test_a_retry_that_no_other_pair_can_run_ends_at_once() -> None:
    bench = made({"context_length": 1_000}, {}, max_retries=1)
    bench.submit(1, prompt_tokens=500)
    prefill, decode = bench.legs()
    failed = EngineError("it broke")
    bench.close(prefill, Outcome.FAILED, error=failed, retryable=True, begun=True)
    assert bench.ends() == [(1, "engine_error")]
    bench.close(decode, Outcome.CANCELLED)


@pytest.mark.promise("S5-221")
def test_a_context_only_request_runs_where_it_fits() -> None:
    bench = made({"context_length": 1_000, "parks": True}, {"parks": True})
    for number in (1, 2):
        bench.submit(number, prompt_tokens=500, context_only=True)
    assert [each.name for each in free(bench)] == [NEW], "though it has a place"
    bench.submit(3, prompt_tokens=50, context_only=True)
    assert not bench.of(actions.StartLeg), "such a one passes nobody"


@pytest.mark.promise("S5-221")
@pytest.mark.parametrize("context_only", [True, False])
def test_nobody_passes_a_context_only_request_behind_one_of_its_like(context_only: bool) -> None:
    bench = made({"context_length": 1_000, "parks": True}, {"parks": True})
    for number in (1, 2):
        bench.submit(number, prompt_tokens=500)
    bench.submit(3, prompt_tokens=500, context_only=True)
    bench.submit(4, prompt_tokens=50, context_only=context_only)
    assert [each.name for each in free(bench)] == [NEW], "it would have a place"
    assert not bench.of(actions.StartLeg)


def free(bench: Bench) -> list[Profile]:
    """Of the prefill workers, those with a slot."""
    workers = bench.core.state.fleet.workers.values()
    return [each.profile for each in workers if each.phase is Phase.PREFILL and each.free]
