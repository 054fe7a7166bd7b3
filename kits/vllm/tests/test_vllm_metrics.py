"""Panels and alerts that read what engines say find it on a worker of vLLM, by the same names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import Metric

from monitoring import registries
from tandem.engine.base import EngineSettings, Role
from tandem.logits.registry import Registry
from tandem_vllm.engine import VllmEngine

UNSAID = {"tandem_engine_unit", "tandem_engine_accept_length"}
"""Tandem adds no unit to vLLM, and has it decode nothing speculatively."""


def said(families: Iterable[Metric]) -> dict[str, set[frozenset[str]]]:
    """The labels of a family's samples, by its name; without samples a panel is empty."""
    return {
        family.name: {frozenset(sample.labels) for sample in family.samples}
        for family in families
        if family.samples
    }


@pytest.mark.promise("S5-864")
async def test_a_worker_of_vllm_serves_each_metric_that_panels_and_alerts_read(
    model_path: Path,
) -> None:
    settings = EngineSettings(
        model_path=model_path,
        model_name="tiny",
        max_sequences=4,
        host="127.0.0.1",
        options={},
        registry=Registry.builtin(),
    )
    engine = VllmEngine(Role.DECODE, settings)
    try:
        served = said(registries.of_engine(engine.load, engine.figures))
    finally:
        await engine.close()
    wanted = said(registries.families())
    of_engines = {name for name in wanted if name.startswith("tandem_engine_")}
    assert of_engines - served.keys() == UNSAID
    for name, labels in served.items():
        assert labels <= wanted[name], name
