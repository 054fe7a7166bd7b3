"""What a task says of a sequence that goes on here, after the worker was lost that had begun it."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from itertools import chain

from tandem import sampling
from tandem.errors import InvalidRequestError
from tandem.token_limits import check_token_ids
from tandem.v1 import common_pb2, worker_pb2

_PARAM = "resume"


def made(task: common_pb2.Task, limits: worker_pb2.Limits) -> array[int]:
    """The tokens that it goes on behind; none: it begins here. Raises InvalidRequestError for what
    no worker has made of it.
    """
    if not task.HasField("resume"):
        return array("I")
    steps = task.resume.step[:]
    found = array("I", chain.from_iterable(step.token_id for step in steps))
    if not 0 < len(found) < task.sampling.max_tokens:
        raise _unfit(f"{len(found)} tokens of {task.sampling.max_tokens}")
    check_token_ids(found, limits.vocabulary, param=_PARAM)
    wanted = task.sampling.HasField("logprobs")
    if not all(_is_whole(step, wanted=wanted) for step in steps):
        raise _unfit("a step that is not whole")
    return found


def obstacle(params: common_pb2.SamplingParams, cannot: Collection[str]) -> str:
    """Why an engine cannot go on with a request as if it had begun it; empty: it can. `cannot`: as
    the engine describes it.
    """
    found = sampling.used(params, cannot)
    return f"its engine cannot go on with {found[0]}" if found else ""


def _is_whole(step: common_pb2.TokenLogprobs, *, wanted: bool) -> bool:
    """Whether log-probabilities are there if wanted; classifiers may have some anyway."""
    count = len(step.token_id)
    alternatives = {len(step.top_token_id), len(step.top_logprob), step.top_count * count}
    logprobs = len(step.logprob) in ((count,) if wanted else (0, count))
    return count > 0 and logprobs and len(alternatives) == 1


def _unfit(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{_PARAM}: {what}", param=_PARAM)
