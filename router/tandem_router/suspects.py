"""Names the requests that a worker may have died of: who they are and how large their parts are,
never what they say.
"""

from __future__ import annotations

import logging

from google.protobuf.message import DecodeError

from tandem.v1 import common_pb2
from tandem_router.core.actions import Suspect, WorkerDied

log = logging.getLogger(__name__)
MOST_NAMED = 64
"""Suspects of one death that the log names, a line each."""
MOST_READ_BYTES = 4 * 1024 * 1024
"""Tasks of one death are read up to this sum, so that the router's loop goes on. Of those beyond it
only the whole size is said.
"""


def log_death(died: WorkerDied) -> None:
    """One line for the worker, and one for each request that had begun there."""
    log.error(
        "a worker was lost while requests ran there, and may have died of one of those requests",
        extra={"worker": died.worker, "reason": died.reason, "count": len(died.suspects)},
    )
    left = MOST_READ_BYTES
    for suspect in died.suspects[:MOST_NAMED]:
        said = whole_size(suspect)
        if len(suspect.task) <= left:
            left -= len(suspect.task)
            said = sizes(suspect)
        fields = {"trace_id": suspect.submit.trace_id, "worker": died.worker, "sizes": said}
        log.warning("the worker may have died of this request", extra=fields)


def whole_size(suspect: Suspect) -> str:
    """What is known without reading the task."""
    return f"n={suspect.submit.n} bytes={len(suspect.task) + suspect.let_go_bytes}"


def sizes(suspect: Suspect) -> str:
    """Sizes of a request's parts, such as "n=1 bytes=48300 args_json[0]=48120"."""
    try:
        task = common_pb2.Task.FromString(suspect.task)
    except DecodeError:
        return f"{whole_size(suspect)} unreadable"
    sampling = task.sampling
    let_go = 0 if suspect.submit.prompt_tokens else suspect.let_go_bytes
    found = {
        "prompt_token_ids": len(task.prompt_token_ids) or suspect.submit.prompt_tokens,
        "prompt_text": len(task.prompt_text) or let_go,
        "max_tokens": sampling.max_tokens,
        "logprobs": sampling.logprobs,
        "stop": sum(map(len, sampling.stop)),
        "stop_token_ids": len(sampling.stop_token_ids),
        "stop_words": sum(len(word.token_id) for word in sampling.stop_words),
        "logit_bias": len(sampling.logit_bias),
        "embedding_bias": task.embedding_bias.ByteSize(),
        "metadata": sum(len(key) + len(value) for key, value in task.metadata.items()),
    }
    for place, processor in enumerate(task.logits.processors):
        found[f"args_json[{place}]"] = len(processor.args_json)
    parts = [f"{name}={size}" for name, size in found.items() if size]
    return " ".join([whole_size(suspect), *parts])
