"""Makes the engine that a worker's settings name. Only that engine's packages are imported."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tandem.engine.base import ONE_NODE, Engine, EngineFollower, Nodes, Role
from tandem.errors import ConfigError, StartError
from tandem.logits.registry import Registry

EngineName = Literal["sim", "sglang"]
_ENGINES: dict[EngineName, tuple[str, str, str]] = {
    "sim": ("tandem.engine.sim", "SimEngine", "worker"),
    "sglang": ("tandem.engine.sglang", "SglangEngine", "worker,sglang"),
}
_FOLLOWERS: dict[EngineName, str] = {"sglang": "SglangFollower"}
"""The follower classes of the engines that can compute on several nodes."""


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
    nodes: Nodes = ONE_NODE


def create(name: EngineName, role: Role, settings: EngineSettings) -> Engine:
    """An engine that is not started yet: the whole of it, or where there are several nodes, what
    leads.

    Raises StartError: the engine is not installed, or its options are wrong.
    """
    engine: Engine = _build(name, _ENGINES[name][1], role, settings)
    return engine


def follow(name: EngineName, role: Role, settings: EngineSettings) -> EngineFollower:
    """Create what runs on a node that does not lead, not started yet. Raises as `create` does."""
    follower: EngineFollower = _build(name, _FOLLOWERS.get(name, ""), role, settings)
    return follower


def _build(name: EngineName, class_name: str, role: Role, settings: EngineSettings) -> Any:
    spread = {"nodes": settings.nodes} if settings.nodes.count > 1 else {}
    if spread and name not in _FOLLOWERS:
        raise ConfigError(f"engine {name!r} computes on one node: leave the setting nodes at 1")
    module_name, _, extras = _ENGINES[name]
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise StartError(
            f"engine {name!r} needs {error.name!r}, which is not installed: "
            f"pip install 'tandem-serving[{extras}]'"
        ) from error
    return getattr(module, class_name)(
        role=role,
        model_path=settings.model_path,
        model_name=settings.model_name,
        max_sequences=settings.max_sequences,
        host=settings.host,
        options=settings.options,
        registry=settings.registry,
        **spread,
    )
