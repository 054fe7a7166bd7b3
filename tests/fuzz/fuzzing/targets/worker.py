"""What a router says to a worker, of each phase: beside it, a leg of another router goes on."""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from google.protobuf.message import DecodeError

from fuzzing.messages import spoil_message
from fuzzing.router_bench import AbortedError, Context, once
from fuzzing.target import MODEL_PATH, ROOT, FoundError, Target
from tandem import prefix_blocks
from tandem.engine.base import Delta, Ending
from tandem.hooks.contract import Phase
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker import halves
from tandem.worker.servicer import WorkerServicer

sys.path.append(str(ROOT / "tests" / "unit" / "worker"))

from worker_harness import Bench, Said

_PATIENCE_SECONDS = 60.0
_MOST_ROWS = 4_000
"""Of the good leg; then another one begins."""


class WorkerSubject:
    """Each input is said on a stream of its own."""

    def __init__(self, tokenizer: Tokenizer, phase: Phase) -> None:
        self._bench = Bench(
            tokenizer, phase=phase, park_seconds=60.0 if phase == "prefill" else 0.0
        )
        self._phase = phase
        self._servicer = WorkerServicer(
            shell=self._bench.shell,
            describe=worker_pb2.WorkerDescription,
            on_paired=self._paired,
        )
        self._good = 0
        self._leg = 0

    async def _paired(self) -> None: ...

    async def give(self, data: bytes) -> None:
        if not self._good:
            self._leg += 1
            self._good = self._bench.start(self._leg, max_tokens=4_000)
        try:
            command = worker_pb2.WorkerCommand.FromString(data)
        except DecodeError:
            return  # gRPC ends the stream before we see it
        context = Context()
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._servicer.Connect(once(command), context)
        except AbortedError:
            pass
        for frame in context.written:
            worker_pb2.WorkerFrame.FromString(frame)
        self._bench.settle()
        self._forget_the_past()
        self._check_good()

    async def left_open(self) -> int:
        return self._open()

    def _open(self) -> int:
        """Legs beside the good one."""
        return len(self._bench.shell) - bool(self._good)

    def _forget_the_past(self) -> None:
        """What the bench keeps for tests would look like a leak."""
        engine = self._bench.engine
        engine.submitted, engine.cancelled = engine.submitted[-64:], engine.cancelled[-64:]
        self._bench.hook.calls.clear()
        self._bench.said = Said()

    def _check_good(self) -> None:
        """Its next token arrives; a leg of prefill has one, and then ends."""
        end = Ending.LENGTH if self._phase == "prefill" else None
        said = self._bench.step(Delta(self._good, [20], end))
        if self._bench.link.broken.is_set():
            raise FoundError("fault", f"another router was given up: {self._bench.link.fault}")
        closed = said.of(self._leg, "closed")
        if end is None and (closed or not said.columns):
            raise FoundError("fault", "another router's leg lost its output")
        if end is not None:
            if [each.outcome for each in closed] != [worker_pb2.LegClosed.OUTCOME_FINISHED]:
                raise FoundError("fault", "another router's leg did not end as it should")
            self._good = 0
        if self._open():
            raise FoundError("leak", "a leg outlives its stream")


def _commands() -> Sequence[bytes]:
    bench = Bench(Tokenizer.load(MODEL_PATH))
    start = bench.command
    logits = {"processors": [{"name": "choice", "args_json": '{"texts":["a","b"]}'}]}
    task = start(1).task
    digest = halves.digest(common_pb2.Task.FromString(task), array("I", [10, 11, 12]))
    kept = worker_pb2.KeptTask(number=3, task=task)
    of_kept = worker_pb2.StartLeg(
        leg=4, sequence=8, room=9, kv_peer="127.0.0.1:1", timeout_ms=100, kept_task=3
    )
    of_blocks = start(10)
    of_blocks.to_compute, of_blocks.new_blocks = 40, prefix_blocks.packed(range(64))
    commands = [
        worker_pb2.WorkerCommand(start=[start(1)]),
        worker_pb2.WorkerCommand(start=[start(1), start(2, stop=["a"], seed=4)], release=[1]),
        worker_pb2.WorkerCommand(
            start=[
                start(1, task={"logits": logits, "want_token_ids": True, "metadata": {"a": "b"}})
            ],
            cancel=[worker_pb2.CancelLeg(leg=1, reason="cancelled")],
        ),
        worker_pb2.WorkerCommand(
            start=[start(5, task={"prompt_token_ids": [], "prompt_text": "p"})]
        ),
        worker_pb2.WorkerCommand(keep=[kept], start=[of_kept], forget=[3], paired=True),
        worker_pb2.WorkerCommand(start=[start(7, context_only=True)]),
        worker_pb2.WorkerCommand(start=[start(8, task_digest=digest)]),
        worker_pb2.WorkerCommand(start=[of_blocks]),
        worker_pb2.WorkerCommand(
            start=[
                start(
                    7,
                    stop_words=[{"token_id": [20, 21]}, {"token_id": [22]}],
                    stop_token_ids=[23],
                    stop=["ab"],
                    thought={"begin": "<t>", "end": "</t>", "opened": True, "silent": ["s"]},
                    task={
                        "embedding_bias": {
                            "token_ids": b"\x05\0\0\0\x06\0\0\0",
                            "values": b"\0\0\x80?\0\0\x80?",
                        }
                    },
                )
            ]
        ),
        worker_pb2.WorkerCommand(
            start=[start(6, hold=True, parent_span=4, logprobs=2, logit_bias={5: 1.0})], release=[6]
        ),
    ]
    return [command.SerializeToString() for command in commands]


@contextmanager
def _subject(phase: Phase) -> Iterator[WorkerSubject]:
    yield WorkerSubject(Tokenizer.load(MODEL_PATH), phase)


PREFILL, DECODE = (
    Target(
        name=f"{phase}-commands",
        goal=150_000,
        corpus=_commands,
        spoil=partial(spoil_message, worker_pb2.WorkerCommand),
        subject=partial(_subject, phase),
    )
    for phase in ("prefill", "decode")
)
