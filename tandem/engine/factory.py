"""Makes the engine that a worker's settings name. Only that engine's packages are imported."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tandem.engine.base import Engine, Role
from tandem.errors import StartError
from tandem.logits.registry import Registry

EngineName = Literal["sim", "sglang"]
_ENGINES: dict[EngineName, tuple[str, str, str]] = {
    "sim": ("tandem.engine.sim", "SimEngine", "worker"),
    "sglang": ("tandem.engine.sglang", "SglangEngine", "worker,sglang"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What every engine is built from."""

    model_path: Path
    model_name: str
    max_sequences: int
    host: str
    """The address of this machine that peers reach."""
    options: Mapping[str, Any]
    """The engine's own; it refuses those it does not know."""
    registry: Registry
    """The logits processors that requests may name."""


def create(name: EngineName, role: Role, settings: EngineSettings) -> Engine:
    """An engine that is not started yet.

    Raises StartError: the engine is not installed, or its options are wrong.
    """
    module_name, class_name, extras = _ENGINES[name]
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise StartError(
            f"engine {name!r} needs {error.name!r}, which is not installed: "
            f"pip install 'tandem-serving[{extras}]'"
        ) from error
    engine: Engine = getattr(module, class_name)(
        role=role,
        model_path=settings.model_path,
        model_name=settings.model_name,
        max_sequences=settings.max_sequences,
        host=settings.host,
        options=settings.options,
        registry=settings.registry,
    )
    return engine
