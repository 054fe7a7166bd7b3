"""What a router says of how much it could take: of each edition, with each fleet."""

from __future__ import annotations

import pytest
from router_bench import FINGERPRINT, Bench
from router_messages import told

from tandem.byte_budget import ByteBudget
from tandem_router.core import actions
from tandem_router.core.values import Edition, Phase
from tandem_router.links import FrontendLink
from tandem_router.relay import Relay

TINY = Edition("tiny", "sha")
OTHER = FINGERPRINT._replace(model="other")


@pytest.mark.promise("S5-283")
def test_a_frontend_is_told_them_when_it_comes_and_with_each_fleet() -> None:
    bench = Bench(prefill=0, decode=0)
    relay = Relay(bench.core)
    bench.worker(Phase.PREFILL)
    bench.worker(Phase.DECODE)
    (changed,) = bench.of(actions.FleetChanged)
    relay._set_fleet(changed)
    bench.submit(1)
    link = FrontendLink(1_000, ByteBudget())
    relay.frontend_up(link)
    assert _said(link) == [1]
    bench.submit(2, n=3)
    relay._tell_fleet()
    assert _said(link) == [-2]


def _said(link: FrontendLink) -> list[int]:
    message = told(link)
    assert message is not None
    assert all(each.HasField("free_slots") for each in message.fleet.models)
    return [each.free_slots for each in message.fleet.models]
