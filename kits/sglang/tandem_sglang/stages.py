"""Runs in SGLang's scheduler processes under pipeline parallelism: what a step has failed for ends
the same requests on all stages.

The last stage alone samples, so only its ranks know which forms failed. SGLang sends what it made
round the ring of stages, and every one of them, the last too, takes in what came from the ring, one
microbatch after another. So what was noted of a step travels with the step's tokens.
"""

from __future__ import annotations

from typing import Any

from tandem_sglang import failures

_CODES = "tandem_failures"


def send(sent: dict[str, Any], result: Any) -> None:
    """Put what was noted for a result into what is sent of it: one note at most."""
    for noted in failures.kept(result):
        sent[_CODES] = noted.codes


def receive(result: Any, tensors: dict[str, Any], tell: failures.Tell) -> None:
    """Keep what came with a result's tokens. `tell`: what all that is noted in a pipeline is noted
    with.
    """
    # Not taken out: the next stage is sent the same dict.
    if (codes := tensors.get(_CODES)) is not None:
        failures.keep(result, [failures.Noted(codes, tell)])
