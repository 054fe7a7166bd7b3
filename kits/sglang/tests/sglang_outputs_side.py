"""Run in a process of its own by test_sglang_outputs.py: steps of outputs in SGLang's own messages,
sent as its scheduler sends them and received as its tokenizer manager receives them. Prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from array import array
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import zmq
import zmq.asyncio
from sglang.srt.managers import io_struct
from sglang.srt.managers.io_struct import BatchTokenIDOutput
from sglang.srt.managers.scheduler_components.output_sender import SenderWrapper

from tandem_sglang import outputs, requests
from tandem_sglang.chunks import HAND_OVER_KEY
from tandem_sglang.outputs import RunningRows
from tandem_sglang.streamer import MeasuringStreamer

COLUMNS = ("output_ids", "cached_tokens", "retraction_counts", "prompt_tokens", "finished_reasons")
VALUES, PLACES = "output_token_logprobs_val", "output_token_logprobs_idx"


class Streamer(MeasuringStreamer):
    """What is measured of a request is in it."""

    def __init__(self, senders: Sequence[Any]) -> None:
        self.send_to_detokenizer = senders[0]
        self.sockets: Any = SimpleNamespace(senders=lambda first: senders)
        with patch("tandem_sglang.streamer.SchedulerOutputStreamer.__post_init__"):
            MeasuringStreamer.__post_init__(self)

    def _hand_overs(self, reqs: Sequence[Any]) -> dict[str, Any]:
        measured = [req.measured for req in reqs]
        return {HAND_OVER_KEY: measured} if any(measured) else {}


def request(
    row: int,
    *,
    ends: bool = False,
    logprobs: bool = False,
    measured: bool = False,
    process: int = 1,
) -> Any:
    return SimpleNamespace(
        rid=f"r{row}" if process == 1 else requests.rid(row, requests.names(process, 3)),
        row=row,
        ends=ends,
        return_logprob=logprobs,
        measured=[(100 + row, 0.5, f"wire {row}")] if measured else [],
    )


def output(streamer: Streamer, reqs: Sequence[Any]) -> Any:
    """As _GenerationStreamAccumulator makes it: every cell says whose it is."""
    rows = [req.row for req in reqs]
    values: dict[str, Any] = {
        "rids": [req.rid for req in reqs],
        "output_ids": [array("q", range(row, 2 * row + 1)) for row in rows],
        "cached_tokens": [10 + row for row in rows],
        "retraction_counts": [20 + row for row in rows],
        "prompt_tokens": [30 + row for row in rows],
        "finished_reasons": [{"type": "stop", "matched": 40} if req.ends else None for req in reqs],
        "time_stats": io_struct.wrap_as_pickle([object] * len(rows)),
    }
    if any(req.return_logprob for req in reqs):
        values |= {VALUES: [[float(row)] for row in rows], PLACES: [[row] for row in rows]}
    info = streamer.build_additional_customized_info(reqs)
    values["customized_info"] = io_struct.wrap_as_pickle(info) if info else None
    fields = msgspec.structs.fields(BatchTokenIDOutput)
    return BatchTokenIDOutput(**{each.name: [] for each in fields if each.required} | values)


def told(message: Any) -> Any:
    if type(message) is RunningRows:
        columns = (message.token_ids, message.cached_tokens, message.retractions)
        return ["running", message.rids, *columns, message.hand_overs]
    info = io_struct.unwrap_from_pickle(message.customized_info)
    found = [getattr(message, name) for name in COLUMNS]
    found[0] = [list(row) for row in found[0]]
    times = io_struct.unwrap_from_pickle(message.time_stats)
    logprobs = [getattr(message, name) for name in (VALUES, PLACES)]
    return [type(message).__name__, message.rids, *found, logprobs, info, times]


def sent(*reqs: Any) -> Any:
    """The messages that one step becomes, pickled and packed."""
    (found,) = sent_to(1, *reqs)
    return found


def sent_to(processes: int, *reqs: Any) -> Any:
    """Likewise, of each process."""
    found = []
    for pickled in (True, False):
        with patch.object(io_struct, "_USE_PICKLE_IPC", pickled):
            found.append(asyncio.run(_through_sockets(processes, reqs)))
    assert json.dumps(found[0]) == json.dumps(found[1])
    return found[0]


async def _through_sockets(processes: int, reqs: Sequence[Any]) -> list[list[Any]]:
    context = zmq.asyncio.Context()
    sync = zmq.Context.shadow(context.underlying)
    pairs = [(sync.socket(zmq.PUSH), context.socket(zmq.PULL)) for _ in range(processes)]
    try:
        for number, (there, here) in enumerate(pairs):
            there.bind(f"inproc://outputs-{number}")
            here.connect(f"inproc://outputs-{number}")
        senders = [SenderWrapper(there) for there, _ in pairs]
        streamer = Streamer(senders)
        streamer.send_to_detokenizer.send_output(output(streamer, reqs))
        for sender in senders:
            sender.send_output(io_struct.FreezeGCReq())
        return [await _received(here) for _, here in pairs]
    finally:
        for socket in (each for pair in pairs for each in pair):
            socket.close(0)
        context.term()


async def _received(here: Any) -> list[Any]:
    found = []
    while type(message := _read(await here.recv())) is not io_struct.FreezeGCReq:
        found.append(told(message))
    return found


def _read(data: bytes) -> Any:
    if (rows := outputs.unpacked(data)) is not None:
        return rows
    return pickle.loads(data) if io_struct._USE_PICKLE_IPC else io_struct.msgpack_decode(data)


def mixed() -> Any:
    return sent(
        request(1, measured=True),
        request(2, ends=True, measured=True),
        request(3, logprobs=True),
        request(4),
        request(5, ends=True, logprobs=True),
    )


def all_go_on() -> Any:
    return sent(request(1), request(2))


def all_end() -> Any:
    return sent(request(1, ends=True, measured=True), request(2, ends=True))


def nobody() -> Any:
    return sent()


def of_a_rank_that_sends_nothing() -> Any:
    """As all ranks but the first have it. Those of several processes too."""
    for count in (1, 2):
        streamer = Streamer([SenderWrapper(None)] * count)
        reqs = [request(1), request(2, ends=True)]
        streamer.send_to_detokenizer.send_output(output(streamer, reqs))
    return "nothing"


def of_three_processes() -> Any:
    """The third has nothing in this step."""
    return sent_to(
        3,
        request(1, process=2, measured=True),
        request(2, measured=True),
        request(3, process=2, ends=True, measured=True),
        request(4, process=2),
        request(5, ends=True),
    )


def all_of_the_second_process() -> Any:
    return sent_to(2, request(1, process=2, ends=True), request(2, process=2, ends=True))


def nobody_of_two() -> Any:
    return sent_to(2)


CHECKS: tuple[Callable[[], Any], ...] = (
    mixed,
    all_go_on,
    all_end,
    nobody,
    of_a_rank_that_sends_nothing,
    of_three_processes,
    all_of_the_second_process,
    nobody_of_two,
)

if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps({check.__name__: check() for check in CHECKS}))
