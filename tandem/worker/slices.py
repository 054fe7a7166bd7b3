"""A router's command in parts, so that no command keeps the event loop long, whatever is in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tandem.v1 import worker_pb2

SLICE_LEGS = 16
"""Legs that are started at once."""
SLICE_BYTES = 128 * 1024
"""What the tasks of legs that are started at once come to, one of them counted for each leg: an
engine may look at every token of every leg."""
SLICE_NUMBERS = 1024
"""Releases, cancels or other numbers that are acted on at once."""
MOST_NUMBERS = 65_536
"""A router says no more of one kind in a command."""


def is_too_long(command: worker_pb2.WorkerCommand) -> bool:
    """Whether it says more than a router says at once."""
    lists: tuple[Sequence[object], ...] = (
        command.start,
        command.release,
        command.cancel,
        command.keep,
        command.forget,
    )
    return max(map(len, lists)) > MOST_NUMBERS


def kept(command: worker_pb2.WorkerCommand) -> Iterator[Sequence[worker_pb2.KeptTask]]:
    """The tasks that are to be kept, some at once."""
    for begin in range(0, len(command.keep), SLICE_NUMBERS):
        yield command.keep[begin : begin + SLICE_NUMBERS]


def slices(
    command: worker_pb2.WorkerCommand, kept_sizes: Sequence[int]
) -> Iterator[worker_pb2.WorkerCommand]:
    """The command's parts but for what is kept, in the order in which they are to be acted on; the
    whole, where it is short. `kept_sizes`: what the kept task of each of its starts takes, in
    bytes; 0: none.
    """
    few = len(command.start) <= SLICE_LEGS and sum(kept_sizes) <= SLICE_BYTES
    if few and max(len(command.release), len(command.cancel), len(command.forget)) <= SLICE_NUMBERS:
        yield command
        return
    for begin, end in _cuts(command.start, kept_sizes):
        yield worker_pb2.WorkerCommand(start=command.start[begin:end])
    for release in _numbers(command.release):
        yield worker_pb2.WorkerCommand(release=release)
    for begin in range(0, len(command.cancel), SLICE_NUMBERS):
        yield worker_pb2.WorkerCommand(cancel=command.cancel[begin : begin + SLICE_NUMBERS])
    for forget in _numbers(command.forget):
        yield worker_pb2.WorkerCommand(forget=forget)


def _numbers(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for begin in range(0, len(numbers), SLICE_NUMBERS):
        yield numbers[begin : begin + SLICE_NUMBERS]


def _cuts(
    starts: Sequence[worker_pb2.StartLeg], kept_sizes: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Where slices of starts begin and end: each has one start at least."""
    begin = size = 0
    for place, (start, kept) in enumerate(zip(starts, kept_sizes, strict=True)):
        own = kept + len(start.task)
        if place > begin and (place - begin == SLICE_LEGS or size + own > SLICE_BYTES):
            yield begin, place
            begin, size = place, 0
        size += own
    if begin < len(starts):
        yield begin, len(starts)
