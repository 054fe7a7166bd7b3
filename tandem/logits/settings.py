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
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from tandem.settings_file import read_section

Clients = Literal["none", "select", "arguments"]


class ProcessorSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One processor of a deployment."""

    use: Annotated[str, Meta(min_length=1)]
    args: dict[str, Any] = {}
    clients: Clients = "arguments"
    """What a request may do, where the frontend lets it name the processor at all."""
    always: bool = False


def parse(raw: Mapping[str, Any]) -> dict[str, ProcessorSettings]:
    """Name to settings. Raises ConfigError, naming the processor and the field."""
    return {
        name: ProcessorSettings(use=given) if isinstance(given, str) else _read(name, given)
        for name, given in raw.items()
    }


def _read(name: str, given: Any) -> ProcessorSettings:
    if isinstance(given, Mapping):
        given = {"use": name, **given}
    return read_section(ProcessorSettings, f"logits_processors.{name}", given)
