"""What a lost decode worker's engine had made of a sequence, on its way through this worker.

The client has seen a part, which part nobody here knows. So all output goes through the whole
pipeline again, step by step as it came: stop strings, hooks, classifiers. The frontend, which reads
the rows, knows which of them it has shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from tandem.engine.base import Delta, Logprobs
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.core.outgoing import encoded_logprobs
from tandem.worker.core.output import token_logprobs

STEPS = 64
"""How many steps are replayed at once: other legs wait for no more, and no hook is given more
before it has answered.
"""


class Replay:
    """What waits of one leg, until that has caught up with its engine."""

    __slots__ = ("deltas", "straight", "unruled")

    def __init__(self, made: common_pb2.Resumption, request_id: int, *, straight: bool) -> None:
        """`straight`: nobody judges or cuts what comes behind it."""
        self.deltas = deque(_deltas(made.step, request_id))
        """What waits: first the replay, then what the engine brings meanwhile."""
        self.straight = straight
        self.unruled = 0
        """Pieces on which hooks have yet to rule."""

    def behind(self, delta: Delta, *, first: bool) -> None:
        """The engine has brought something. With its `first` tokens the KV has arrived. A failure
        before that comes alone: then nothing is replayed here.
        """
        if first and not delta.token_ids:
            self.deltas.clear()
        elif first:
            self.deltas[0].kv, delta.kv = delta.kv, None
        self.deltas.append(delta)

    def next(self) -> Iterator[Delta]:
        """The next ones, as many as are replayed at once."""
        for _ in range(min(STEPS, len(self.deltas))):
            yield self.deltas.popleft()


def said(leg: int, delta: Delta) -> worker_pb2.LegEvent:
    """What a router is told of a step, to keep it."""
    token_ids = delta.token_ids
    if delta.logprobs is None:
        step = common_pb2.TokenLogprobs(token_id=token_ids)
    else:
        step = encoded_logprobs(0, token_ids, token_logprobs(delta.logprobs))
    steps = common_pb2.Resumption(step=[step]).SerializeToString()
    made = worker_pb2.LegMade(steps=steps, tokens=len(token_ids))
    return worker_pb2.LegEvent(leg=leg, made=made)


def _deltas(steps: Iterable[common_pb2.TokenLogprobs], request_id: int) -> Iterator[Delta]:
    for step in steps:
        logprobs = Logprobs(step.logprob[:], _alternatives(step)) if step.logprob else None
        yield Delta(request_id, step.token_id[:], logprobs=logprobs)


def _alternatives(step: common_pb2.TokenLogprobs) -> Sequence[Sequence[tuple[int, float]]]:
    if not step.top_count:
        return ()
    pairs = list(zip(step.top_token_id, step.top_logprob, strict=True))
    return [pairs[at : at + step.top_count] for at in range(0, len(pairs), step.top_count)]
