"""Makes the engine that a worker's settings name. Only that engine's packages are imported."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable
from typing import Any, Literal

from tandem.engine.base import Engine, EngineFollower, EngineSettings, JoinedEngine, Role
from tandem.errors import ConfigError, StartError
from tandem.logits.forms.workshop import FormPlan

EngineName = Literal["sim", "sglang"]
_ENGINES: dict[EngineName, tuple[str, str, str]] = {
    "sim": ("tandem.engine.sim", "SimEngine", "worker"),
    "sglang": ("tandem.engine.sglang", "SglangEngine", "worker,sglang"),
}
_FOLLOWERS: dict[EngineName, str] = {"sglang": "SglangFollower"}
"""The follower classes of the engines that can compute on several nodes."""
_JOINED: dict[EngineName, str] = {"sglang": "SglangJoined"}
"""The classes of the engines that several token processes can share."""


class NotInstalledError(StartError):
    """The packages of the engine are not on this machine."""


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


def join(
    name: EngineName, role: Role, settings: EngineSettings, ticket: Awaitable[bytes]
) -> JoinedEngine:
    """An engine that another process of the worker starts, for requests of this one. `ticket`: that
    of `Sharing`. Raises as `create` does.
    """
    joined: JoinedEngine = _build(name, _JOINED.get(name, ""), role, settings, ticket)
    return joined


def plan_forms(name: EngineName, settings: EngineSettings) -> FormPlan:
    """How the engine has forms of answers compiled. Raises ConfigError."""
    plan: FormPlan = importlib.import_module(f"{_ENGINES[name][0]}.forms").plan(settings)
    return plan


def _build(
    name: EngineName, class_name: str, role: Role, settings: EngineSettings, *more: Any
) -> Any:
    if settings.nodes.count > 1 and name not in _FOLLOWERS:
        raise ConfigError(f"engine {name!r} computes on one node: leave the setting nodes at 1")
    if settings.token_processes > 1 and name not in _JOINED:
        raise ConfigError(
            f"engine {name!r} serves one process: leave the setting token_processes at 1"
        )
    module_name, _, extras = _ENGINES[name]
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise NotInstalledError(
            f"engine {name!r} needs {error.name!r}, which is not installed: `make full` in a"
            f" checkout, else pip install 'tandem-serving[{extras}]'"
        ) from error
    return getattr(module, class_name)(role, settings, *more)
