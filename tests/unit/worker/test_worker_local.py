"""What a worker keeps on its machine, whose peers reach it there alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from tandem.worker.startup import keep_transfer_local

KEPT = {"UCX_NET_DEVICES": "lo", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    with patch.dict(os.environ):
        for name in KEPT:
            os.environ.pop(name, None)
        yield


@pytest.mark.promise("S6-164")
@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("[::1]", True), ("localhost", True), ("10.0.0.5", False), ("w1", False)],
)
def test_transfers_stay_where_the_worker_is_reached(host: str, local: bool) -> None:
    keep_transfer_local(host)
    assert {name: os.environ.get(name) for name in KEPT} == (KEPT if local else dict.fromkeys(KEPT))


def test_a_choice_of_the_operators_stays() -> None:
    os.environ["UCX_NET_DEVICES"] = "mlx5_0:1"
    keep_transfer_local("127.0.0.1")
    assert os.environ["UCX_NET_DEVICES"] == "mlx5_0:1"
