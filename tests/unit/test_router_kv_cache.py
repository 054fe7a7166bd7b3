"""What a router says of its workers' KV caches: of each edition's decode workers, together."""

from __future__ import annotations

from router_bench import FINGERPRINT, Bench
from router_loads import worker_load
from router_messages import told

from tandem.byte_budget import ByteBudget
from tandem.v1 import router_pb2
from tandem_router.core import actions
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
