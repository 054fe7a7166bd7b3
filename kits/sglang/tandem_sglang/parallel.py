"""How the accelerators of a worker share a model, in either phase.

Both phases are told the sizes of both, and say them in their fingerprints: so each refuses at its
start what SGLang could not hand over, and two workers that were told otherwise never make a pair.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.engine.base import Role
from tandem.errors import ConfigError
from tandem_sglang.options import Options

_OF_DECODE = ("decode_tensor_parallel", "decode_data_parallel", "decode_pipeline_parallel")


@dataclass(frozen=True, slots=True)
class Parallel:
    """The sizes of one worker."""

    tensor: int
    """Accelerators that share each layer."""
    data: int
    """Groups of them in which attention is computed apart, for sequences of their own."""

    pipeline: int
    """Groups of `tensor` accelerators that have a part of the layers each."""

    @property
    def accelerators(self) -> int:
        return self.tensor * self.pipeline

    @property
    def kv_ranks(self) -> int:
        """Among so many a sequence's KV of a layer is divided."""
        return self.tensor // self.data


def of(options: Options, role: Role) -> Parallel:
    """The degrees of parallelism of a worker with that role."""
    tensor, data = options.tensor_parallel, options.data_parallel
    pipeline = options.pipeline_parallel
    if role is Role.DECODE:
        tensor = options.decode_tensor_parallel or tensor
        data = options.decode_data_parallel or data
        pipeline = options.decode_pipeline_parallel or pipeline
    return Parallel(tensor, data, pipeline)


def kv_ranks(options: Options) -> dict[Role, int]:
    """Ranks among which a sequence's KV is divided, in either phase."""
    return {role: of(options, role).kv_ranks for role in (Role.PREFILL, Role.DECODE)}


def check(options: Options, role: Role) -> None:
    """Raises ConfigError for sizes that this role does not have, and for those that SGLang cannot
    hand KV over between, whatever the model.
    """
    given = [name for name in _OF_DECODE if getattr(options, name)]
    if role is Role.AGGREGATED and given:
        raise ConfigError(
            f"engine option {given[0]} is for workers of one phase: an aggregated one has "
            f"{given[0].removeprefix('decode_')} alone"
        )
    for each in (of(options, Role.PREFILL), of(options, Role.DECODE)):
        if each.tensor % each.data:
            raise ConfigError(
                f"{each.data} groups cannot share {each.tensor} accelerators equally: set engine "
                "option tensor_parallel to a multiple of data_parallel, in both phases"
            )
    if options.decode_pipeline_parallel not in (0, 1, options.pipeline_parallel):
        raise ConfigError(
            "SGLang hands KV over to as many groups of layers as prefill has, or to one: set engine"
            " option decode_pipeline_parallel to 1 or 0"
        )
    few, many = sorted(kv_ranks(options).values())
    if many % few:
        raise ConfigError(
            f"no KV can be handed over between {few} and {many} ranks: set engine options "
            "tensor_parallel and decode_tensor_parallel, each divided by the phase's groups "
            "(data_parallel), so that one is a multiple of the other"
        )
