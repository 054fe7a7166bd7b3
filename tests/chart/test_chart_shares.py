"""The chart refuses numbers of ranks, processes and nodes that a worker would not start with."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import chart_renders
import helm_python
import pytest
from one_case import one_case
from refusals import GPU

from tandem.engine.base import EngineSettings, Nodes, Role
from tandem.errors import ConfigError
from tandem.logits.registry import Registry
from tandem.worker.config import WorkerConfig
from tandem_sglang.setup import Setup

TENSOR = 6
"""Accelerators of a worker, which all of the numbers below divide."""
CASES = [
    (prefill, decode, sequences, processes, nodes)
    for prefill, decode, sequences in product((1, 3), (1, 3), (None, 255, 384))
    for processes, nodes in ((1, 1), (2, 1), (2, 2))
]


def renders(values: dict[str, Any]) -> bool:
    try:
        chart_renders.texts(values)
    except helm_python.HelmRenderError as refused:
        if not any(name in str(refused) for name in (".config.max_sequences", "tokenProcesses")):
            raise
        return False
    return True


def starts(role: Role, groups: int, sequences: int | None, processes: int, nodes: int) -> bool:
    """Whether a worker of that role gets past its own checks."""
    settings = EngineSettings(
        model_path=Path(__file__).resolve().parents[2] / "model" / "tandem-tiny",
        model_name="m",
        max_sequences=WorkerConfig.max_sequences if sequences is None else sequences,
        host="10.0.0.1",
        options={
            "device": "cuda",
            "tensor_parallel": TENSOR,
            "data_parallel": groups,
            "server_args": json.dumps({"disable_radix_cache": True}),  # leaves no files
        },
        registry=Registry(),
        nodes=Nodes(count=nodes, rank=0, leader="10.0.0.1:7120"),
        token_processes=processes,
    )
    try:
        Setup(role, settings)
    except ConfigError:
        return False
    return True


@pytest.mark.promise("S5-480")
@one_case(("prefill", "decode", "sequences", "processes", "nodes"), CASES)
def test_what_renders_starts_and_what_starts_renders(
    prefill: int, decode: int, sequences: int | None, processes: int, nodes: int
) -> None:
    config = {} if sequences is None else {"config": {"max_sequences": sequences}}
    values = {
        **GPU,
        "engine": {
            "tensorParallel": TENSOR,
            "dataParallel": prefill,
            "decodeDataParallel": decode,
        },
        "prefill": config,
        "decode": {**config, "tokenProcesses": processes, "workload": {"nodes": nodes}},
    }
    begins = starts(Role.PREFILL, prefill, sequences, 1, 1)
    begins = begins and starts(Role.DECODE, decode, sequences, processes, nodes)
    assert renders(values) is begins


@pytest.mark.promise("S5-480")
@one_case(("groups", "sequences"), list(product((1, 2, 3), (None, 255))))
def test_the_same_is_true_of_aggregated_workers(groups: int, sequences: int | None) -> None:
    shared = {"config": {"max_sequences": 6}}
    values = {
        **GPU,
        "engine": {"tensorParallel": TENSOR, "dataParallel": groups},
        "prefill": shared,
        "decode": shared,
        "worker": {
            "enabled": True,
            **({} if sequences is None else {"config": {"max_sequences": sequences}}),
        },
    }
    assert renders(values) is starts(Role.AGGREGATED, groups, sequences, 1, 1)


@pytest.mark.promise("S5-480")
def test_simulated_workers_have_no_ranks() -> None:
    assert renders({"engine": {"tensorParallel": TENSOR, "dataParallel": 3}})
