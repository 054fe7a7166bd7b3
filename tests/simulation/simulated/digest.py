"""What a run has said, in a few letters, so that a change which may not alter what clients, routers
and workers say can be seen not to.

A stream's messages count in their order, and so does each client's answer; in which order streams
of one moment were served does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulated.frontend_process import Answer
    from simulated.world import World

LETTERS = 8
"""Hexadecimal digits of a digest: that one of 5,000 changed seeds is not seen is 1 in a million."""


def digest(world: World) -> str:
    """Of every message that was sent in a run, and of every answer that a client got."""
    said = sorted((*_messages(world), *_answers(world)))
    return sha256("\n".join(said).encode()).hexdigest()[:LETTERS]


def _messages(world: World) -> Iterator[str]:
    for said in world.network.said:
        yield f"{said.by} to {said.to}: {said.messages.hexdigest()}"


def _answers(world: World) -> Iterator[str]:
    for frontend in world.frontends:
        for answer in frontend.answers:
            yield f"{frontend.name}: {answer.trace_id}: {_told(answer)!r}"


def _told(answer: Answer) -> tuple[object, ...]:
    rows = {
        choice: [
            (*row[:2], *row[2], *(each.SerializeToString(deterministic=True) for each in row[3]))
            for row in rows
        ]
        for choice, rows in sorted(answer.rows.items())
    }
    ends = [tuple(end) for _, end in sorted(answer.ends.items())]
    reports = sorted(each.SerializeToString(deterministic=True) for each in answer.reports)
    error = answer.error and (answer.error.code, answer.error.param, str(answer.error))
    return rows, ends, error, answer.lost, answer.left, answer.completion_tokens, reports
