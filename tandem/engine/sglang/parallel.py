"""How the accelerators of a worker share a model, in either phase.

Both phases are told the sizes of both, and say them in their fingerprints: so each refuses at its
start what SGLang could not hand over, and two workers that were told otherwise never make a pair.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.engine.base import Role
from tandem.engine.sglang.options import Options
from tandem.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Parallel:
    """The sizes of one worker."""

    tensor: int
    """Accelerators that share each layer."""


def of(options: Options, role: Role) -> Parallel:
    """What a worker of that role has."""
    tensor = options.tensor_parallel
    if role is Role.DECODE:
        tensor = options.decode_tensor_parallel or tensor
    return Parallel(tensor)


def kv_ranks(options: Options) -> dict[Role, int]:
    """Ranks among which a sequence's KV is divided, in either phase."""
    return {role: of(options, role).tensor for role in (Role.PREFILL, Role.DECODE)}


def check(options: Options, role: Role) -> None:
    """Raises ConfigError for sizes that this role does not have, and for those that SGLang cannot
    hand KV over between, whatever the model.
    """
    if role is Role.AGGREGATED and options.decode_tensor_parallel:
        raise ConfigError(
            "engine option decode_tensor_parallel is for workers of one phase: "
            "an aggregated one has tensor_parallel alone"
        )
    few, many = sorted(kv_ranks(options).values())
    if many % few:
        raise ConfigError(
            f"no KV can be handed over between {few} and {many} ranks: set engine options "
            "tensor_parallel and decode_tensor_parallel so that one is a multiple of the other"
        )
