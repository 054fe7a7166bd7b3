"""What a worker counts of its legs, and what it reads of its network interfaces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import Metric
from worker_harness import Bench, taken

from tandem.endings import Outcome
from tandem.engine.base import EngineFigures, RankLoad
from tandem.engine.prefix_log import PrefixLog
from tandem.errors import KvTransferError
from tandem.logits.forms.workshop import FormPlan, Workshop, WorkshopLimits
from tandem.logits.model import Model
from tandem.prefix_blocks import unpacked
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import worker_pb2
from tandem.worker.core.ledger import Taken
from tandem.worker.core.leg import Closing
from tandem.worker.counters import WorkerCounters
from tandem.worker.engine_metrics import engine_metrics
from tandem.worker.leg_metrics import leg_metrics
from tandem.worker.link import RouterLink
from tandem.worker.metrics import WorkerCollector
from tandem.worker.network_metrics import network_metrics

DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo:    1000      10    0    0    0     0          0         0     1000      10    0    0
  eth0: 5000000     700    0    0    0     0          0         0    30000     300    0    0
"""


def _values(families: list[Metric], series: str) -> dict[str, float]:
    """By the values of all labels but the phase."""
    return {
        ",".join(value for name, value in sample.labels.items() if name != "phase"): sample.value
        for family in families
        for sample in family.samples
        if sample.name == series
    }


def test_a_failed_leg_is_counted_by_its_code_and_every_code_is_there_at_zero() -> None:
    counters = WorkerCounters()
    counters.closed(Closing(Outcome.FAILED, error=KvTransferError("it did not come")))
    counters.closed(Closing(Outcome.FINISHED))
    failed = _values(list(leg_metrics("decode", counters)), "tandem_worker_failed_legs_total")
    assert failed["kv_transfer_failed"] == 1
    assert failed["hook_failed"] == failed["kv_corrupt"] == failed["draining"] == 0
    assert sum(failed.values()) == 1
    ended = _values(list(leg_metrics("decode", counters)), "tandem_worker_legs_total")
    assert (ended["failed"], ended["finished"]) == (1, 1)


def test_the_time_and_the_prompt_of_a_leg_are_added_up() -> None:
    counters = WorkerCounters()
    counters.ran(seconds=0.3, prompt_tokens=100, cached_tokens=64)
    counters.ran(seconds=1.7, prompt_tokens=20, cached_tokens=0)
    families = list(leg_metrics("prefill", counters))
    assert _values(families, "tandem_worker_prompt_tokens_total") == {"": 120}
    assert _values(families, "tandem_worker_cached_tokens_total") == {"": 64}
    assert _values(families, "tandem_worker_leg_seconds_count") == {"": 2}
    assert _values(families, "tandem_worker_leg_seconds_sum") == {"": 2.0}


def _collected(load: worker_pb2.Load, phase: str = "decode") -> list[Metric]:
    plan = FormPlan(compiler="none:None", arguments={}, used_here=frozenset())
    collector = WorkerCollector(
        phase=phase,
        counters=WorkerCounters(),
        hooks=None,
        classifiers=None,
        forms=Workshop(plan, Model(vocabulary=1), WorkshopLimits()),
        load=lambda: load,
        figures=EngineFigures,
        taken=lambda: TAKEN,
    )
    return list(collector.collect())


TAKEN = Taken(2.5, {"": (1.0, 2.0, 300.0), "a": (0.5, 4.0, 7.0)})


@pytest.mark.parametrize(("used", "total", "share"), [(30, 120, 0.25), (0, 0, 0.0)])
def test_kv_use_is_a_share_also_before_the_engine_knows_its_size(
    used: int, total: int, share: float
) -> None:
    collected = _collected(worker_pb2.Load(kv_tokens_used=used, kv_tokens_total=total))
    found = _values(collected, "tandem_worker_kv_used_ratio")
    assert found == {"": share}


@pytest.mark.parametrize(("age", "shown"), [(None, {}), (0, {"": 0.0}), (1500, {"": 1.5})])
def test_the_age_of_a_step_is_absent_where_the_engine_cannot_say(
    age: int | None, shown: dict[str, float]
) -> None:
    collected = _collected(worker_pb2.Load(step_age_ms=age))
    assert _values(collected, "tandem_worker_step_age_seconds") == shown


@pytest.mark.promise("S5-800")
def test_what_keys_took_of_a_worker_is_counted_by_key() -> None:
    found = _collected(worker_pb2.Load(), phase="prefill")
    assert _values(found, "tandem_worker_idle_seconds_total") == {"": 2.5}
    assert _values(found, "tandem_worker_key_seconds_total") == {"": 1.0, "a": 0.5}
    assert _values(found, "tandem_worker_key_slot_seconds_total") == {"": 2.0, "a": 4.0}
    assert _values(found, "tandem_worker_key_kv_token_seconds_total") == {"": 300.0, "a": 7.0}


def test_network_bytes_are_summed_over_interfaces(tmp_path: Path) -> None:
    interfaces = tmp_path / "dev"
    interfaces.write_text(DEV)
    found = _values(
        list(network_metrics("decode", interfaces)), "tandem_worker_network_bytes_total"
    )
    assert found == {"receive": 5_001_000, "transmit": 31_000}


def test_a_machine_without_such_counts_has_no_series(tmp_path: Path) -> None:
    assert [f.samples for f in network_metrics("decode", tmp_path / "absent")] == [[]]


@pytest.mark.skipif(not Path("/proc/self/net/dev").exists(), reason="Linux counts there")
def test_this_machines_counts_can_be_read() -> None:
    found = _values(list(network_metrics("decode")), "tandem_worker_network_bytes_total")
    assert found.keys() == {"receive", "transmit"}


@pytest.mark.promise("S5-254")
def test_each_router_is_told_what_entered_and_left_the_cache_since_it_was_told(
    tokenizer: Tokenizer,
) -> None:
    log = PrefixLog()
    bench = Bench(tokenizer, phase="prefill", prefixes=log)
    log.enter([1, 2])
    assert _cache(bench.link) == (True, [1, 2], [])
    log.leave([2])
    other = bench.connect()
    assert _cache(other) == (True, [1], [])
    bench.shell.report_load()
    assert (_cache(bench.link), _cache(other)) == ((False, [], [2]), (False, [], []))
    assert not bench.shell.load().HasField("cache")


def _cache(link: RouterLink) -> tuple[bool, list[int], list[int]]:
    frame = taken(link)
    assert frame is not None
    told = frame.load.cache
    return told.anew, list(unpacked(told.entered)), list(unpacked(told.left))


def _engine_values(figures: EngineFigures) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in engine_metrics("decode", figures)
        for sample in family.samples
    }


@pytest.mark.promise("S5-299")
def test_each_rank_of_an_engine_has_its_series() -> None:
    one = RankLoad(
        running=1,
        queued=2,
        preallocating=3,
        transferring=4,
        retracted=5,
        kv_tokens_used=25,
        kv_tokens_total=100,
    )
    other = replace(one, rank=1, running=6, kv_tokens_total=0, accept_length=1.5)
    found = _engine_values(EngineFigures(ranks=(one, other), retractions=7))
    states = ("running", "queued", "preallocating", "transferring", "retracted")
    counts = {
        rank: [found["tandem_engine_requests", "decode", rank, e] for e in states] for rank in "01"
    }
    assert counts == {"0": [1, 2, 3, 4, 5], "1": [6, 2, 3, 4, 5]}
    assert found["tandem_engine_kv_used_ratio", "decode", "0"] == 0.25
    assert found["tandem_engine_kv_used_ratio", "decode", "1"] == 0
    assert found["tandem_engine_retractions_total", "decode"] == 7
    accepted = [key for key in found if key[0] == "tandem_engine_accept_length"]
    assert accepted == [("tandem_engine_accept_length", "decode", "1")]


def test_an_engine_that_says_nothing_of_ranks_has_no_samples_of_them() -> None:
    assert not _engine_values(EngineFigures())
