"""What SGLang itself says of its arguments: asked in a process of its own by sglang_arguments.py.

Reads lines of JSON from stdin, each a list of arguments of its engine, and answers with the names
of all that it has and what it makes of each list entry on an H100, which it is told that this
machine has. SGLang may print other lines.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
from sglang.srt.arg_groups import memory_hook
from sglang.srt.runtime_context import override_platform
from sglang.srt.server_args import ServerArgs

from tandem.errors import StartError
from tandem_sglang import releases, unequal

ANSWER = "answer: "
"""Begins the lines that are answers."""
H100_MIB = 81_559
H100 = {
    "is_cuda": True,
    "is_sm90": True,
    "is_hopper_with_cuda_12_3": True,
    "has_flashinfer": True,
    "device_sm": 90,
    "device_capability": (9, 0),
}


def resolved(given: dict[str, Any]) -> Any:
    """Every argument as SGLang resolves it, by Tandem's names, or what it raises."""
    try:
        made = ServerArgs(**releases.named_for(given, frozenset(ServerArgs.__struct_fields__)))
        with override_platform(**H100):
            made.resolve_once()
        told: dict[str, Any] = json.loads(json.dumps(releases.resolved(made), default=str))
        return told | {"unequal": _said_of_unequal_ranks(made)}
    except Exception as error:  # noqa: BLE001 - the test that asked shows it
        return f"{type(error).__name__}: {error}"


def _said_of_unequal_ranks(made: ServerArgs) -> str:
    """Why phases of this model cannot have unequal numbers of ranks; empty: they can."""
    try:
        unequal.check(made)
    except StartError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    memory_hook.get_device_memory_capacity = lambda _device: H100_MIB
    names = [field.name for field in msgspec.structs.fields(ServerArgs)]
    for line in sys.stdin:
        told = {"names": names, "resolved": [resolved(given) for given in json.loads(line)]}
        sys.stdout.write(f"\n{ANSWER}{json.dumps(told)}\n")
        sys.stdout.flush()
