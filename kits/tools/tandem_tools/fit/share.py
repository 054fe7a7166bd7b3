"""The share of a GPU's memory that SGLang gives weights and KV cache together, its
`mem_fraction_static`, where nothing says it.

It is the rule of SGLang 0.5.21 (`handle_gpu_memory_settings` in its arg_groups/memory_hook.py) on
CUDA, for workers of one phase that Tandem starts: prefill captures no graphs, decode those of as
many sequences as each of its groups may have. All numbers are MiB, or MiB a token or sequence.
"""

from __future__ import annotations

from tandem_tools.fit.shape import Division, Phase

_STEPS = ((60 * 1024, 4096), (160 * 1024, 8192))
"""Tokens of a step of prefill (`chunked_prefill_size`) on GPUs that have less memory than this."""
_STEP_ON_LARGER = 16384
_LEAST_STEP = 2048
_ALWAYS = 512
_EACH_TOKEN = 1.5
_EACH_GPU = 128
_EACH_GRAPH = 2
_EACH_GROUPED, _MANY_GRAPHS, _EACH_OF_MANY = 3, 300, 1.5
"""With data-parallel groups, for each sequence of a worker; and more where a group has many."""
_LARGE_GPU, _LEAST_ON_LARGE = 60 * 1024, 10 * 1024
_DEEPEP = 2 * 1024
"""Decode's buffers for what experts exchange."""


def of_sglang(phase: Phase, mib: int, division: Division, *, sequences: int, deepep: bool) -> float:
    """`mib`: what the driver says of a GPU; `sequences`: decode's `max_sequences`, of all groups
    together; `deepep`: experts exchange tokens by it.
    """
    if phase == "prefill":
        step = next((tokens for below, tokens in _STEPS if mib < below), _STEP_ON_LARGER)
        return _left(mib, _reserved(mib, step, division.gpus))
    reserved = _reserved(mib, sequences, division.gpus, _graphs(division.groups, sequences))
    return _left(mib, reserved + _DEEPEP * deepep)


def _graphs(groups: int, sequences: int) -> float:
    each = sequences // groups
    if groups == 1:
        return _EACH_GRAPH * each
    many = _EACH_OF_MANY if each > _MANY_GRAPHS else 0
    return _EACH_GRAPH * each + (_EACH_GROUPED + many) * each * groups


def _reserved(mib: int, tokens: int, gpus: int, graphs: float = 0.0) -> float:
    needed = _ALWAYS + _EACH_TOKEN * max(tokens, _LEAST_STEP) + _EACH_GPU * gpus + graphs
    return max(needed, _LEAST_ON_LARGE) if mib > _LARGE_GPU else needed


def _left(mib: int, reserved: float) -> float:
    return round((mib - reserved) / mib, 3)
