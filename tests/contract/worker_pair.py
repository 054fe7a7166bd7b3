"""A real prefill and a real decode worker process, and a router's side of their streams."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import contract_hook
import grpc
from prometheus_client.parser import text_string_to_metric_families

from tandem.free_ports import FreePorts
from tandem.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from tandem.wire.frames import parse
from tandem.wire.grpc import open_channel

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODEL = "tandem-tiny"
PATIENCE = 60.0
FINISHED = worker_pb2.LegClosed.OUTCOME_FINISHED
FAILED = worker_pb2.LegClosed.OUTCOME_FAILED
END_SECONDS = 40.0
WITHOUT_FORMS = 'server_args={"grammar_backend":"none"}'
"""Option of an SGLang engine whose tests ask for no form of an answer: each of the worker's
processes starts another one to compile forms, which has SGLang in memory for that.
"""
_numbers = itertools.count(1)


@dataclass
class WorkerProcess:
    """One `python -m <phase>_worker`."""

    process: subprocess.Popen[bytes]
    log: Path
    metrics_port: int
    port: int = 0

    def metric(self, name: str, **labels: str) -> float | None:
        """A sample of it as it is now; None: there is none."""
        return next((value for _, value in self.samples(name, **labels)), None)

    def total(self, name: str, **labels: str) -> float:
        """All samples of it together."""
        return sum(value for _, value in self.samples(name, **labels))

    def samples(self, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """All of it that have these labels, as they are at one time, each with all its labels."""
        address = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    yield dict(sample.labels), float(sample.value)

    def said(self, message: str) -> list[dict[str, str]]:
        """These entries of its log."""
        lines = (line for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [entry for line in lines if (entry := json.loads(line))["message"] == message]

    def wait_for(self, message: str, deadline: float, count: int = 1) -> list[dict[str, str]]:
        """Until its log has it so often."""
        while len(found := self.said(message)) < count:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        return found

    def wait_serving(self, deadline: float) -> None:
        self.port = port_of(self.wait_for("serving", deadline)[0])

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(END_SECONDS)


def port_of(serving: dict[str, str]) -> int:
    return int(serving["address"].rpartition(":")[2])


def without_float32() -> bool:
    """The workers compute on a GPU, where SGLang's kernels know no float32."""
    return "device=cuda" in os.environ.get("TANDEM_ENGINE_OPTIONS", "").split(",")


def options_flag(options: str) -> str:
    """These engine options, and those of the environment, which a flag would take the place of:
    there a machine says what it needs beside, and what it has in place of a CPU.
    """
    given = os.environ.get("TANDEM_ENGINE_OPTIONS")
    return f"--engine-options={options}{',' + given if given else ''}"


@contextmanager
def launched(
    phase: str, engine: str, model_path: Path, log: Path, *flags: str
) -> Iterator[WorkerProcess]:
    held = ExitStack()
    metrics_port = FreePorts(held).port()
    command = [
        sys.executable,
        "-m",
        f"tandem_{phase}_worker",
        f"--engine={engine}",
        f"--model-path={model_path}",
        "--listen=127.0.0.1:0",
        f"--metrics-listen=127.0.0.1:{metrics_port}",
        f"--name={phase}-{engine}",
        "--log-format=json",
        "--max-sequences=16",
        *flags,
    ]
    path = os.pathsep.join([str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")])
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
    try:
        yield WorkerProcess(process, log, metrics_port)
    finally:
        held.close()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(END_SECONDS)


@contextmanager
def launched_pair(
    engine: str, model_path: Path, folder: Path, *, ready_seconds: float, flags: Sequence[str] = ()
) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                launched(phase, engine, model_path, folder / f"{phase}.log", *flags)
            )
            for phase in ("prefill", "decode")
        ]
        deadline = time.monotonic() + ready_seconds
        for worker in workers:
            worker.wait_serving(deadline)
        yield workers[0], workers[1]


@dataclass
class Told:
    """What one worker said on its stream."""

    events: list[worker_pb2.LegEvent] = field(default_factory=list)
    columns: list[common_pb2.TokenColumns] = field(default_factory=list)

    def of(self, leg: int, kind: str) -> list[Any]:
        found = [event for event in self.events if event.leg == leg]
        return [getattr(event, kind) for event in found if event.WhichOneof("event") == kind]


class Stream:
    """One Connect stream to a worker."""

    def __init__(self, stub: worker_pb2_grpc.WorkerStub) -> None:
        self.call: Any = stub.Connect()
        self.told = Told()
        self.patience = PATIENCE

    async def send(self, **command: Any) -> None:
        await self.call.write(worker_pb2.WorkerCommand(**command))

    async def until(self, holds: Callable[[Told], Any]) -> None:
        """Raises TimeoutError, after which the stream is closed."""
        async with asyncio.timeout(self.patience):
            while not holds(self.told):
                frame = await self.call.read()
                assert frame is not grpc.aio.EOF, "the worker ended the stream"
                self.told.columns += [parse(envelope.payload) for envelope in frame.envelopes]
                self.told.events += frame.events

    async def closed(self, leg: int) -> worker_pb2.LegClosed:
        await self.until(lambda told: told.of(leg, "closed"))
        closed = self.told.of(leg, "closed")
        assert len(closed) == 1
        last: worker_pb2.LegClosed = closed[0]
        return last


@dataclass
class Sequence_:
    """A sequence as its frontend sees it."""

    number: int
    pair: Pair

    @property
    def _columns(self) -> list[common_pb2.TokenColumns]:
        return [*self.pair.prefill.told.columns, *self.pair.decode.told.columns]

    @property
    def text(self) -> str:
        return "".join(
            text
            for columns in self._columns
            for number, text in zip(columns.sequence, columns.text, strict=True)
            if number == self.number
        )

    @property
    def token_ids(self) -> list[int]:
        """Right while it alone wants token ids."""
        return [token_id for columns in self._columns for token_id in columns.token_id]

    @property
    def logprobs(self) -> list[common_pb2.TokenLogprobs]:
        return [e for c in self._columns for e in c.logprobs if e.sequence == self.number]

    @property
    def prompt_logprobs(self) -> list[common_pb2.TokenLogprobs]:
        """The parts of the prompt's, which prefill alone may send."""
        assert not any(e for c in self.pair.decode.told.columns for e in c.prompt_logprobs)
        columns = self.pair.prefill.told.columns
        return [e for c in columns for e in c.prompt_logprobs if e.sequence == self.number]

    @property
    def finishes(self) -> list[common_pb2.Finish]:
        return [e for c in self._columns for e in c.finish if e.sequence == self.number]

    @property
    def reports(self) -> list[common_pb2.PhaseReport]:
        return [e for c in self._columns for e in c.report if e.sequence == self.number]


class Pair:
    """A router's streams to both workers."""

    def __init__(self, stubs: Sequence[worker_pb2_grpc.WorkerStub], kv_peer: str) -> None:
        self.stubs = stubs
        self.prefill, self.decode = (Stream(stub) for stub in stubs)
        self.kv_peer = kv_peer

    async def start(
        self,
        *,
        behaviour: int = contract_hook.PASS,
        phases: Sequence[str] = ("prefill", "decode"),
        hold: bool = False,
        timeout_ms: int = 60_000,
        output_index: int = 0,
        room: int | None = None,
        task: dict[str, Any] | None = None,
        decode_task: dict[str, Any] | None = None,
        **sampling: Any,
    ) -> Sequence_:
        """A sequence whose number is that of both legs. `decode_task` differs in decode's leg."""
        number = next(_numbers)
        greedy = {"max_tokens": 12, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}
        fields = {
            "trace_id": contract_hook.trace(behaviour, number),
            "model": MODEL,
            "prompt_text": "The for statement is used to",
            "streaming": True,
            "want_text": True,
            **(task or {}),
        }
        params = {**greedy, "ignore_eos": True, **sampling}

        def serialized(changes: dict[str, Any]) -> bytes:
            sampling = common_pb2.SamplingParams(**params)
            return common_pb2.Task(**fields | changes, sampling=sampling).SerializeToString()

        command: dict[str, Any] = {
            "leg": number,
            "destination": 1,
            "sequence": number,
            "output_index": output_index,
            "room": secrets.randbits(62) | 1 if room is None else room,
            "timeout_ms": timeout_ms,
        }
        if "decode" in phases:
            held = {"kv_peer": self.kv_peer, "hold_output": hold}
            start = worker_pb2.StartLeg(**command, **held, task=serialized(decode_task or {}))
            await self.decode.send(start=[start])
        if "prefill" in phases:
            start = worker_pb2.StartLeg(**command, task=serialized({}))
            await self.prefill.send(start=[start])
        return Sequence_(number, self)

    async def finished(self, sequence: Sequence_) -> tuple[Any, Any]:
        """How both legs closed."""
        return (
            await self.prefill.closed(sequence.number),
            await self.decode.closed(sequence.number),
        )

    async def finished_well(self, sequence: Sequence_) -> None:
        ends = await self.finished(sequence)
        assert [end.outcome for end in ends] == [FINISHED] * 2, ends

    async def run(self, **fields: Any) -> Sequence_:
        """A sequence that `start` begins, once it has finished well."""
        sequence = await self.start(**fields)
        await self.finished_well(sequence)
        return sequence

    async def cancel(self, sequence: Sequence_) -> None:
        cancel = [worker_pb2.CancelLeg(leg=sequence.number, reason="test")]
        await self.prefill.send(cancel=cancel)
        await self.decode.send(cancel=cancel)

    async def idle(self) -> None:
        """Until neither worker holds a leg or KV."""
        async with asyncio.timeout(PATIENCE):
            for stub in self.stubs:
                while True:
                    load = (await stub.Describe(worker_pb2.DescribeWorkerRequest())).load
                    if not (load.open_legs or load.waiting_legs or load.kv_tokens_used):
                        break
                    await asyncio.sleep(0.02)


@asynccontextmanager
async def connected(workers: Sequence[WorkerProcess]) -> AsyncIterator[Pair]:
    channels = [open_channel(f"127.0.0.1:{worker.port}") for worker in workers]
    try:
        stubs = [worker_pb2_grpc.WorkerStub(channel) for channel in channels]
        asked = worker_pb2.DescribeWorkerRequest()
        prefill, _ = [await stub.Describe(asked) for stub in stubs]
        yield Pair(stubs, prefill.kv_endpoint)
    finally:
        for channel in channels:
            await channel.close()
