"""What is left of a traced sequence once it has ended: what its span is made of."""

from __future__ import annotations

from router.core.actions import SequenceTraced
from router.core.events import Submit
from router.core.sequences import Sequence
from tandem.errors import TandemError


def of_sequence(
    sequence: Sequence, ended: float, outcome: str, error: TandemError | None
) -> SequenceTraced:
    return SequenceTraced(
        submit=sequence.request.submit,
        output_index=sequence.output_index,
        arrived=sequence.request.arrived,
        ended=ended,
        outcome=outcome,
        error=error,
        trail=tuple(sequence.trail or ()),
    )


def of_refused(submit: Submit, now: float, error: TandemError) -> list[SequenceTraced]:
    """Of a request that was not admitted."""
    return [
        SequenceTraced(
            submit=submit,
            output_index=index,
            arrived=now,
            ended=now,
            outcome=error.code,
            error=error,
            trail=(),
        )
        for index in range(submit.n)
    ]
