"""Names the requests that a worker may have died of: who they are and how large their parts are,
never what they say.
"""

from __future__ import annotations

import logging

from google.protobuf.message import DecodeError

from router.core.actions import WorkerDied
from router.core.events import Submit
from tandem.v1 import common_pb2

log = logging.getLogger(__name__)
MOST_NAMED = 64
"""Suspects of one death that have lines of their own."""


def log_death(died: WorkerDied) -> None:
    """One line for the worker, and one for each request that had begun there."""
    log.error(
        "a worker was lost with requests that had begun there; it may have died of one of them",
        extra={"worker": died.worker, "reason": died.reason, "count": len(died.suspects)},
    )
    for submit in died.suspects[:MOST_NAMED]:
        fields = {"trace_id": submit.trace_id, "worker": died.worker, "sizes": sizes(submit)}
        log.warning("the worker may have died of this request", extra=fields)


def sizes(submit: Submit) -> str:
    """Sizes of a request's parts, such as "n=1 prompt_token_ids=12 args_json[0]=48120"."""
    found = {"n": submit.n, "bytes": len(submit.task)}
    try:
        task = common_pb2.Task.FromString(submit.task)
    except DecodeError:
        return " ".join(f"{name}={size}" for name, size in found.items()) + " unreadable"
    sampling = task.sampling
    found |= {
        "prompt_token_ids": len(task.prompt_token_ids),
        "prompt_text": len(task.prompt_text),
        "max_tokens": sampling.max_tokens,
        "logprobs": sampling.logprobs,
        "stop": sum(map(len, sampling.stop)),
        "stop_token_ids": len(sampling.stop_token_ids),
        "logit_bias": len(sampling.logit_bias),
        "metadata": sum(len(key) + len(value) for key, value in task.metadata.items()),
    }
    for place, processor in enumerate(task.logits.processors):
        found[f"args_json[{place}]"] = len(processor.args_json)
    return " ".join(f"{name}={size}" for name, size in found.items() if size)
