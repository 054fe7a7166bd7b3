"""What a router says of its workers' KV caches: of each edition's decode workers, together."""

from __future__ import annotations

import pytest
from router_bench import FINGERPRINT, Bench
from router_loads import worker_load
from router_messages import told

from tandem.byte_budget import ByteBudget
from tandem.v1 import router_pb2
from tandem_router.core import actions, events
from tandem_router.core.values import Edition, Phase
from tandem_router.links import FrontendLink
from tandem_router.relay import Relay

PAGED = FINGERPRINT._replace(page_size=16)
TINY = Edition(PAGED.model, PAGED.tokenizer_sha256)


def paged(decode: int = 2, page_size: int = 16) -> Bench:
    bench = Bench(prefill=0, decode=0)
    print_ = FINGERPRINT._replace(page_size=page_size)
    bench.worker(Phase.PREFILL, fingerprint=print_)
    for index in range(decode):
        bench.worker(Phase.DECODE, index, fingerprint=print_)
    return bench


def report(bench: Bench, worker: str, used: int, total: int) -> None:
    bench.feed(worker_load(worker, 0, kv_tokens_used=used, kv_tokens_total=total))


def pages(count: int, used: int, size: int) -> router_pb2.KvCache:
    return router_pb2.KvCache(pages=count, used_pages=used, page_size=size)


@pytest.mark.promise("S2-077")
def test_it_is_what_all_decode_workers_hold_in_whole_pages() -> None:
    bench = paged()
    report(bench, "decode-0", used=17, total=160)
    assert bench.core.kv_cache(TINY) is None, "the other has not said it"
    report(bench, "decode-1", used=0, total=330)
    report(bench, "prefill-0", used=999, total=999)
    assert bench.core.kv_cache(TINY) == pages(30, 2, 16)
    bench.feed(events.WorkerDraining("decode-1", True))
    assert bench.core.kv_cache(TINY) == pages(10, 2, 16), "it takes nothing new"
    bench.feed(events.WorkerDown("decode-0", "it is gone"))
    assert bench.core.kv_cache(TINY) is None


def test_where_pages_differ_their_size_is_not_said() -> None:
    bench = paged(decode=1)
    larger = FINGERPRINT._replace(page_size=64)
    bench.worker(Phase.DECODE, 1, fingerprint=larger)
    report(bench, "decode-0", used=16, total=160)
    report(bench, "decode-1", used=64, total=640)
    assert bench.core.kv_cache(TINY) == pages(20, 2, 0)


@pytest.mark.parametrize("page_size", [0, 16])
def test_a_worker_that_cannot_say_it_leaves_all_unsaid(page_size: int) -> None:
    bench = paged(decode=1, page_size=page_size)
    report(bench, "decode-0", used=4, total=0 if page_size else 100)
    assert bench.core.kv_cache(TINY) is None


def test_numbers_that_cannot_be_still_fit_the_wire() -> None:
    bench = paged(page_size=1)
    for worker in ("decode-0", "decode-1"):
        report(bench, worker, used=2**64 - 1, total=2**64 - 1)
    assert bench.core.kv_cache(TINY) == pages(2**63, 2**63, 1)
    report(bench, "decode-0", used=500, total=100)
    report(bench, "decode-1", used=0, total=100)
    assert bench.core.kv_cache(TINY) == pages(200, 100, 1), "no more is used than there is"


def test_frontends_are_told_it_with_each_fleet_and_no_longer_once_it_is_not_known() -> None:
    bench = paged(decode=1)
    relay = Relay(bench.core)
    link = FrontendLink(1_000, ByteBudget())
    bench.worker(Phase.DECODE, 1, fingerprint=PAGED)
    (changed,) = bench.of(actions.FleetChanged)
    relay._set_fleet(changed)
    relay.frontend_up(link)
    assert _said(link) is None
    for worker in ("decode-0", "decode-1"):
        report(bench, worker, used=16, total=160)
    relay._tell_fleet()
    assert _said(link) == router_pb2.KvCache(pages=20, used_pages=2, page_size=16)
    report(bench, "decode-1", used=0, total=0)
    relay._tell_fleet()
    assert _said(link) is None


def _said(link: FrontendLink) -> router_pb2.KvCache | None:
    message = told(link)
    assert message is not None
    (model,) = message.fleet.models
    return model.kv_cache if model.HasField("kv_cache") else None
