"""Makes the engine that a worker's settings name. Only that engine's packages are imported."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal

from tandem.engine.base import (
    Engine,
    EngineFollower,
    EngineKit,
    EngineSettings,
    JoinedEngine,
    Role,
)
from tandem.errors import ConfigError, LoadError, StartError
from tandem.logits.forms.workshop import FormPlan
from tandem.usercode.loader import entry_points, load_entry_point

GROUP = "tandem.engines"
EngineName = Literal["sim", "sglang", "vllm"]
_BROUGHT_BY: dict[EngineName, str] = {
    "sim": "tandem-sim",
    "sglang": "'tandem-serving[sglang]'",
    "vllm": "'tandem-serving[vllm]'",
}


class NotInstalledError(StartError):
    """The packages of the engine are not on this machine."""


def create(name: EngineName, role: Role, settings: EngineSettings) -> Engine:
    """An engine that is not started yet: the whole of it, or where there are several nodes, what
    leads.

    Raises StartError: the engine is not installed, or its options are wrong.
    """
    return _fitting(name, settings).create(role, settings)


def follow(name: EngineName, role: Role, settings: EngineSettings) -> EngineFollower:
    """Create what runs on a node that does not lead, not started yet. Raises as `create` does."""
    kit = _fitting(name, settings)
    assert kit.follow is not None, "there are several nodes"
    return kit.follow(role, settings)


def join(
    name: EngineName, role: Role, settings: EngineSettings, ticket: Awaitable[bytes]
) -> JoinedEngine:
    """An engine that another process of the worker starts, for requests of this one. `ticket`: that
    of `Sharing`. Raises as `create` does.
    """
    kit = _fitting(name, settings)
    assert kit.join is not None, "there are several token processes"
    return kit.join(role, settings, ticket)


def plan_forms(name: EngineName, settings: EngineSettings) -> FormPlan:
    """How the engine has forms of answers compiled. Raises ConfigError, and as `create` does."""
    return _kit(name).plan_forms(settings)


def _fitting(name: EngineName, settings: EngineSettings) -> EngineKit:
    """The engine's kit, if the engine knows as many nodes and processes as there are to be."""
    kit = _kit(name)
    if settings.nodes.count > 1 and kit.follow is None:
        raise ConfigError(f"engine {name!r} computes on one node: leave the setting nodes at 1")
    if settings.token_processes > 1 and kit.join is None:
        raise ConfigError(
            f"engine {name!r} serves one process: leave the setting token_processes at 1"
        )
    return kit


def _kit(name: EngineName) -> EngineKit:
    target = "vllm" if name == "vllm" else "full"
    wanted = f"`make {target}` in a checkout, else pip install {_BROUGHT_BY[name]}"
    if name not in entry_points(GROUP).names:
        raise NotInstalledError(f"engine {name!r} is not installed: {wanted}")
    try:
        kit: EngineKit = load_entry_point(GROUP, name)
    except LoadError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        raise NotInstalledError(f"engine {name!r}: {error}: {wanted}") from error
    return kit
