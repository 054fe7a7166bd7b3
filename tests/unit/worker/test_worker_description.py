"""What a worker says of itself."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tandem.engine.base import EngineDescription
from tandem.logits.registry import Registry
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker import description
from tandem.worker.config import WorkerConfig


@pytest.mark.promise("S6-190")
@pytest.mark.parametrize(("hook", "classifiers"), [*product([False, True], repeat=2)])
def test_routers_are_told_who_judges(model_path: Path, hook: bool, classifiers: bool) -> None:
    engine = EngineDescription(fingerprint=common_pb2.Fingerprint(), limits=worker_pb2.Limits())
    said = description.describe(
        "decode",
        WorkerConfig(model_path=model_path),
        engine,
        has_hook=hook,
        has_classifiers=classifiers,
        registry=Registry(),
    )
    assert not said.lora_adapters
    assert (said.has_hook, said.has_classifiers) == (hook or classifiers, classifiers)


@pytest.mark.promise("S5-411")
def test_routers_are_told_the_adapters_by_name(model_path: Path) -> None:
    engine = EngineDescription(
        fingerprint=common_pb2.Fingerprint(lora_sha256="set"), limits=worker_pb2.Limits()
    )
    said = description.describe(
        "decode",
        WorkerConfig(model_path=model_path, lora_adapters={"tone": "/t", "sql": "/s"}),
        engine,
        has_hook=False,
        has_classifiers=False,
        registry=Registry(),
    )
    assert list(said.lora_adapters) == ["sql", "tone"]
    assert said.fingerprint.lora_sha256 == "set"
