"""What a deployment says of its logits processors: `logits_processors` in a worker's settings.

logits_processors:
  ban: my_package.processors:BanToken     # a name that requests use, and its class
  house_style:
    use: my_package.processors:Style      # import path, ready-made, or an installed entry point;
                                          # default: what is ready-made or installed as this name
    args: {strength: 2.0}                 # laid under what a request gives
    clients: select                       # none, select (without arguments) or arguments
    always: true                          # every request gets it, after its own
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from tandem.errors import ConfigError
from tandem.settings_file import nearest

Clients = Literal["none", "select", "arguments"]
_CLIENTS = ("none", "select", "arguments")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessorSettings:
    """One processor of a deployment."""

    use: str
    args: Mapping[str, Any] = field(default_factory=dict)
    clients: Clients = "arguments"
    """What a request may do, where the frontend lets it name the processor at all."""
    always: bool = False


def parse(raw: Mapping[str, Any]) -> dict[str, ProcessorSettings]:
    """Name to settings. Raises ConfigError, naming the processor and the field."""
    return {name: _one(name, given) for name, given in raw.items()}


def _one(name: str, given: Any) -> ProcessorSettings:
    where = f"logits_processors.{name}"
    if isinstance(given, str):
        given = {"use": given}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} must be an import path or a mapping, not {given!r}")
    known = sorted(each.name for each in fields(ProcessorSettings))
    if unknown := sorted(map(str, set(given) - set(known))):
        raise ConfigError(
            f"{where}.{unknown[0]} is none of {', '.join(known)}{nearest(unknown[0], known)}"
        )
    use = given.get("use", name)
    if not isinstance(use, str) or not use:
        raise ConfigError(f"{where}: use must be an import path or a name, not {use!r}")
    args = given.get("args", {})
    if not isinstance(args, Mapping) or not all(isinstance(key, str) for key in args):
        raise ConfigError(f"{where}: args must be a mapping of arguments, not {args!r}")
    clients = given.get("clients", "arguments")
    if clients not in _CLIENTS:
        raise ConfigError(f"{where}: clients must be one of {', '.join(_CLIENTS)}, not {clients!r}")
    always = given.get("always", False)
    if not isinstance(always, bool):
        raise ConfigError(f"{where}: always must be true or false, not {always!r}")
    return ProcessorSettings(use=use, args=dict(args), clients=clients, always=always)
