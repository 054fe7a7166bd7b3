"""What engines of the tiny model are made of, where no test starts them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tandem.engine.base import EngineSettings, Role
from tandem.logits.registry import Registry
from tandem_sglang import arguments, options
from tandem_sglang.ports import Ports

MODEL = Path(__file__).resolve().parents[3] / "model" / "tandem-tiny"


def engine_settings(raw: Mapping[str, Any], **more: Any) -> EngineSettings:
    """`raw`: engine options."""
    given: dict[str, Any] = {
        "model_path": MODEL,
        "model_name": "tiny",
        "max_sequences": 8,
        "host": "127.0.0.1",
        "options": raw,
        "registry": Registry.builtin(),
    }
    return EngineSettings(**given | more)


def server_args(
    role: Role, raw: Mapping[str, Any], *, device: str = "cpu", **more: Any
) -> dict[str, Any]:
    """Keyword arguments of SGLang's Engine."""
    given: dict[str, Any] = {
        "model_path": MODEL,
        "max_sequences": 8,
        "host": "10.0.0.1",
        "ports": Ports(bootstrap=4321),
        "processors": True,
    }
    return arguments.server_args(options.parse(raw), role=role, device=device, **given | more)
