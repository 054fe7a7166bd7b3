"""Mooncake in place of NIXL: what it is started with, and what a worker says of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sglang_described
from sglang_settings import engine_settings

from tandem.engine.base import Role
from tandem.errors import ConfigError, StartError
from tandem_sglang import SglangEngine, arguments, mooncake, options
from tandem_sglang.launch import SglangThread

pytestmark = pytest.mark.promise("S5-422")


def engine(**raw: Any) -> SglangEngine:
    return SglangEngine(Role.DECODE, engine_settings(raw))


async def test_a_worker_without_the_package_does_not_start_and_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.engine", None)
    made = {"disaggregation_transfer_backend": "mooncake"}
    thread = SglangThread(made, None, kept={}, unequal=False, strict=False, seconds=60)  # type: ignore[arg-type]
    with pytest.raises(StartError, match="package mooncake-transfer-engine") as refused:
        await thread.start()
    assert "engine option transfer_backend=mooncake" in str(refused.value)
    await thread.stop()


@pytest.mark.parametrize(
    "name", ["disaggregation_ib_device", "disaggregation_decode_host_receive_threshold"]
)
def test_what_mooncake_alone_reads_is_given_with_it_alone(name: str) -> None:
    given = json.dumps({name: "mlx5_0"})
    assert engine(transfer_backend="mooncake", server_args=given)
    with pytest.raises(ConfigError, match=f"{name}: the engine option transfer_backend is not"):
        engine(server_args=given)


def test_a_decode_engine_that_failed_once_is_asked_again() -> None:
    made = [
        arguments.environment(options.parse(raw), host="10.0.0.1", device="cuda")
        for raw in ({}, {"transfer_backend": "mooncake"})
    ]
    name = "SGLANG_ENABLE_FAILED_SESSION_PROBE"
    assert [each.get(name) for each in made] == [None, "1"]


@pytest.mark.parametrize(
    ("protocol", "ib_device", "devices", "wire"),
    [
        ("rdma", None, True, "unknown"),
        ("rdma", "mlx5_0", True, "unknown"),
        ("rdma", None, False, "tcp"),
        ("rdma", "", True, "tcp"),
        ("tcp", None, True, "tcp"),
    ],
)
def test_what_kv_goes_over_is_said_where_it_is_sure(
    protocol: str,
    ib_device: str | None,
    devices: bool,
    wire: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "infiniband"
    if devices:
        (folder / "mlx5_0").mkdir(parents=True)
    monkeypatch.setattr(mooncake, "_DEVICES", folder)
    assert mooncake.wire(protocol, SimpleNamespace(ib_device=ib_device)) == wire


@pytest.mark.parametrize(
    ("role", "backend", "said"),
    [
        (Role.PREFILL, "nixl", ""),
        (Role.PREFILL, "mooncake", "mooncake"),
        (Role.DECODE, "mooncake", "mooncake"),
        (Role.AGGREGATED, "mooncake", ""),
    ],
)
def test_a_worker_says_what_hands_its_kv_over(role: Role, backend: str, said: str) -> None:
    made = sglang_described.fingerprint(role, disaggregation_transfer_backend=backend)
    assert made.kv_transfer == said
