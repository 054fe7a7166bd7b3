"""A worker's whole life over real gRPC: it starts, serves routers, drains, and survives what they
do.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from scripted_engine import ScriptedEngine
from worker_harness import MODEL, SAMPLING, TRACE, Said

from tandem import process
from tandem.cli.client import Client
from tandem.engine import factory
from tandem.engine.base import Delta, Ending, EngineSettings
from tandem.errors import EngineError, StartError
from tandem.logits.registry import Registry
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from tandem.wire.grpc import open_channel
from tandem.worker.config import WorkerConfig
from tandem.worker.core import machine
from tandem.worker.phase import LoadPhase
from tandem.worker.server import WorkerServer
from tandem_decode_worker.rules import load_phase as load_decode
from tandem_prefill_worker.rules import load_phase as load_prefill

PATIENCE = 60.0
LOAD: dict[str, LoadPhase] = {"prefill": load_prefill, "decode": load_decode}


class Router:
    """One stream to the worker, as a router holds it."""

    def __init__(self, stub: worker_pb2_grpc.WorkerStub) -> None:
        self.call: Any = stub.Connect()
        self.said = Said()

    async def send(self, **command: Any) -> None:
        await self.call.write(worker_pb2.WorkerCommand(**command))

    async def start(self, leg: int = 1, **processors: Any) -> None:
        """`processors`: the arguments of logits processors, by name."""
        task = common_pb2.Task(
            trace_id=TRACE,
            model=MODEL,
            prompt_token_ids=[10, 11],
            sampling=common_pb2.SamplingParams(**SAMPLING),
            want_text=True,
            logits=common_pb2.LogitsSpec(
                processors=[
                    common_pb2.LogitsProcessor(name=name, args_json=json.dumps(args))
                    for name, args in processors.items()
                ]
            ),
        )
        command = worker_pb2.StartLeg(
            leg=leg,
            destination=7,
            sequence=100 + leg,
            room=leg,
            kv_peer="127.0.0.1:1",
            timeout_ms=60_000,
            task=task.SerializeToString(),
        )
        await self.send(start=[command])

    async def until(self, holds: Callable[[Said], Any]) -> Said:
        """Read frames until `holds`."""
        async with asyncio.timeout(PATIENCE):
            while not holds(self.said):
                frame = await self.call.read()
                assert frame is not grpc.aio.EOF, "the worker ended the stream"
                self.said.add(frame)
        return self.said

    async def ended(self) -> grpc.StatusCode:
        """The status of the stream, once all that was sent on it has been read."""
        async with asyncio.timeout(PATIENCE):
            try:
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError as error:
                return error.code()
            return grpc.StatusCode.OK


class Served:
    def __init__(self, worker: WorkerServer, engine: ScriptedEngine, stop: asyncio.Event) -> None:
        self.worker = worker
        self.engine = engine
        self.stop = stop
        self.channel = open_channel(f"127.0.0.1:{worker.port}")
        self.stub = worker_pb2_grpc.WorkerStub(self.channel)
        self.ended: asyncio.Task[EngineError | None] | None = None

    def connect(self) -> Router:
        return Router(self.stub)

    async def submitted(self, count: int) -> list[int]:
        await until(lambda: len(self.engine.submitted) >= count)
        return [request.request_id for request in self.engine.submitted]

    async def health(self) -> int:
        stub: Any = health_pb2_grpc.HealthStub(self.channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service="tandem.v1.Worker"))
        return int(answer.status)

    async def probe(self, path: str) -> int:
        """What the worker's own HTTP server answers."""
        url = f"127.0.0.1:{self.worker.metrics_port}"
        return await asyncio.to_thread(Client(url, timeout_seconds=PATIENCE).status, path)

    async def metrics(self) -> str:
        return await asyncio.to_thread(_scrape, self.worker.metrics_port)

    async def until_ready(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.probe("/ready") != 200:
                pass

    async def outcome(self) -> EngineError | None:
        """What `serve` raised, once it has ended."""
        assert self.ended is not None
        return await asyncio.wait_for(self.ended, PATIENCE)


async def _outcome_of(serving: Awaitable[None]) -> EngineError | None:
    try:
        await serving
    except EngineError as error:
        return error
    return None


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 - what is awaited happens in the worker, without an event
            await asyncio.sleep(0.005)


@pytest.fixture
def serving(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    @asynccontextmanager
    async def serve(phase: Any = "decode", **settings: Any) -> AsyncIterator[Served]:
        engine, stop = ScriptedEngine(), asyncio.Event()
        monkeypatch.setattr(factory, "create", lambda *arguments: engine)
        monkeypatch.setattr(process, "own_signals", lambda stop: None)
        # Of the simulator's forms: what compiles SGLang's imports all of it before it is there.
        defaults = {"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0", "engine": "sim"}
        worker = WorkerServer(
            phase, WorkerConfig(model_path=model_path, **defaults | settings), LOAD[phase]
        )
        try:
            assert await worker.start(stop)
            served = Served(worker, engine, stop)
            async with asyncio.TaskGroup() as tasks:
                served.ended = tasks.create_task(_outcome_of(worker.serve(stop)))
                yield served
                stop.set()
                await served.outcome()
        finally:
            await worker.close()
            await served.channel.close()
        assert engine.closed

    return serve


async def test_a_ready_worker_says_who_it_is_and_reports_its_load(
    serving: Callable[..., Any],
) -> None:
    async with serving("prefill", name="p0", propagate_terminate=True) as served:
        assert await served.health() == health_pb2.HealthCheckResponse.SERVING
        described = await served.stub.Describe(worker_pb2.DescribeWorkerRequest())
        assert (described.name, described.phase) == ("p0", common_pb2.PHASE_PREFILL)
        assert described.propagate_terminate
        assert not described.has_hook
        assert described.limits.max_sequences == 16
        assert "forced_sequence" in described.logits_processors
        again = await served.stub.Describe(worker_pb2.DescribeWorkerRequest())
        assert described.instance == again.instance != ""
        assert described.load.HasField("moved_kv")
        assert not described.load.moved_kv
        router = served.connect()
        said = await router.until(lambda said: len(said.loads) >= 2)
        assert said.loads[0].kv_tokens_total == 1000


async def test_a_sequence_goes_through_and_the_stream_lives_on(
    serving: Callable[..., Any],
) -> None:
    async with serving() as served:
        router = served.connect()
        for leg in (1, 2):
            await router.start(leg)
            (*_, request) = await served.submitted(leg)
            served.engine.give(Delta(request, [20]))
            served.engine.give(Delta(request, [21], Ending.LENGTH))
            said = await router.until(lambda said, leg=leg: said.of(leg, "closed"))
            assert said.finishes(100 + leg)[0].completion_tokens == 2
        assert len(said.rows(101)) >= 1


@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_a_peer_that_skips_the_frontend_gets_no_form_past_the_workers_own_check(
    serving: Callable[..., Any], phase: str
) -> None:
    """Each is refused or compiled elsewhere; the engine, and a sequence beside, never notice."""
    patterns = [f"^.*a.{{{n}}}b.*$" for n in range(59)]
    too_dear: dict[str, dict[str, Any]] = {
        "regex": {"pattern": "a?" * 15_000},
        "choice": {"texts": ["x" * 300_000]},
        "ebnf": {"grammar": "root ::= " + "(" * 400 + '"a"' + ")" * 400},
        "json_schema": {"schema": {"a": [[]] * 65_537}},
        "tagged": {"calls": [{"schema": {"allOf": [{"pattern": p} for p in patterns]}}]},
    }
    async with serving(phase, engine="sim", form_cpu_seconds=1) as served:
        router = served.connect()
        await router.start(1)
        await served.submitted(1)
        for leg, (name, args) in enumerate(too_dear.items(), start=2):
            await router.start(leg, **{name: args})
            said = await router.until(lambda said, leg=leg: said.of(leg, "closed"))
            assert said.closed(leg).error.code == "invalid_request", name
        await router.start(9, regex={"pattern": "(yes|no), [0-9]{3}"})
        await served.submitted(2)
        (beside, good) = served.engine.submitted
        assert beside.logits is None
        assert good.logits.named()[0].ready is not None
        assert not router.said.of(1, "closed")
        for request in (beside, good):
            served.engine.give(Delta(request.request_id, [20], Ending.LENGTH))
        said = await router.until(lambda said: said.of(1, "closed") and said.of(9, "closed"))
        assert {said.closed(leg).outcome for leg in (1, 9)} == {
            worker_pb2.LegClosed.OUTCOME_FINISHED
        }


async def test_steps_that_come_while_a_write_is_in_flight_share_a_frame(
    serving: Callable[..., Any],
) -> None:
    async with serving() as served:
        router = served.connect()
        await router.start()
        (request,) = await served.submitted(1)
        for _ in range(500):
            served.engine.give(Delta(request, [20]))
        served.engine.give(Delta(request, [20], Ending.LENGTH))
        said = await router.until(lambda said: said.of(1, "closed"))
        assert sum(len(columns.sequence) for columns in said.columns) == 501
        assert len(said.columns) < 250


@pytest.mark.parametrize("how", ["cancel", "half-close"])
async def test_a_stream_that_ends_frees_its_legs_and_leaves_the_others(
    serving: Callable[..., Any], how: str
) -> None:
    async with serving() as served:
        gone, stays = served.connect(), served.connect()
        await gone.start(1)
        await served.submitted(1)
        await stays.start(1)
        first, second = await served.submitted(2)
        if how == "cancel":
            gone.call.cancel()
        else:
            await gone.call.done_writing()
        await until(lambda: served.engine.cancelled == [first])
        served.engine.give(*served.engine.settle())
        served.engine.give(Delta(second, [20], Ending.LENGTH))
        await stays.until(lambda said: said.of(1, "closed"))
        load = (await served.stub.Describe(worker_pb2.DescribeWorkerRequest())).load
        assert load.open_legs == 0


async def test_output_that_comes_at_once_flows_in_pieces_and_a_neighbours_goes_between(
    serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a link may have as its backlog, as what was held for a hook can be."""
    monkeypatch.setattr(machine, "MAX_BACKLOG_BYTES", 1_000_000)
    async with serving() as served:
        router = served.connect()
        await router.start(1)
        await served.submitted(1)
        await router.start(2)
        large, small = await served.submitted(2)
        served.engine.give(Delta(large, [20] * 300_000, Ending.LENGTH))
        served.engine.give(Delta(small, [20], Ending.LENGTH))
        said = await router.until(lambda said: said.of(2, "closed"))
        assert not said.of(1, "closed"), "it waited for all of its neighbour's"
        said = await router.until(lambda said: said.of(1, "closed"))
        tokens = sum(
            count
            for columns in said.columns
            for sequence, count in zip(columns.sequence, columns.token_count, strict=True)
            if sequence == 101
        )
        assert tokens == 300_000
        assert len(said.columns) > 5
        assert said.order[-1] == "closed"


@pytest.mark.promise("S6-169")
async def test_a_router_that_does_not_read_is_given_up_alone(
    serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "MAX_BACKLOG_BYTES", 100_000)
    async with serving() as served:
        slow, reads = served.connect(), served.connect()
        await slow.start(1)
        await served.submitted(1)
        await reads.start(1)
        first, second = await served.submitted(2)
        async with asyncio.timeout(PATIENCE):
            while not served.engine.cancelled:
                served.engine.give(Delta(first, [20] * 400))
                await asyncio.sleep(0)
        assert served.engine.cancelled == [first]
        served.engine.give(*served.engine.settle(), Delta(second, [20], Ending.LENGTH))
        await reads.until(lambda said: said.of(1, "closed"))
        assert await slow.ended() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_leg_number_used_twice_ends_the_stream(serving: Callable[..., Any]) -> None:
    async with serving() as served:
        router = served.connect()
        await router.start(1)
        await router.start(1)
        assert await router.ended() is grpc.StatusCode.FAILED_PRECONDITION
        await until(lambda: served.engine.cancelled == [1])
        served.engine.give(*served.engine.settle())


async def test_a_drain_finishes_what_runs_and_refuses_what_comes(
    serving: Callable[..., Any],
) -> None:
    async with serving() as served:
        router = served.connect()
        await router.start(1)
        (request,) = await served.submitted(1)
        served.stop.set()
        await router.until(lambda said: said.loads and said.loads[-1].draining)
        assert await served.health() == health_pb2.HealthCheckResponse.NOT_SERVING
        await router.start(2)
        said = await router.until(lambda said: said.of(2, "closed"))
        assert said.closed(2).error.code == "draining"
        served.engine.give(Delta(request, [20], Ending.LENGTH))
        said = await router.until(lambda said: said.of(1, "closed"))
        assert said.finishes(101)
        assert await served.outcome() is None


async def test_a_dead_engine_fails_open_legs_and_ends_the_worker(
    serving: Callable[..., Any],
) -> None:
    async with serving() as served:
        router = served.connect()
        await router.start(1)
        await served.submitted(1)
        served.engine.die(EngineError("the scheduler died"))
        said = await router.until(lambda said: said.of(1, "closed"))
        closed = said.closed(1)
        assert (closed.error.code, closed.retryable) == ("engine_error", True)
        assert isinstance(await served.outcome(), EngineError)
        assert await served.probe("/live") == await served.probe("/ready") == 503


async def test_every_series_is_there_before_the_first_request(
    serving: Callable[..., Any], tokenizer: Tokenizer
) -> None:
    letters = tokenizer.encode("the", special_tokens=False)
    async with serving(hook="examples.hooks.UpperCase") as served:
        text = await served.metrics()
        for line in (
            'tandem_worker_open_legs{phase="decode"} 0.0',
            'tandem_worker_waiting_legs{phase="decode"} 0.0',
            'tandem_worker_ready{phase="decode"} 1.0',
            'tandem_worker_draining{phase="decode"} 0.0',
            'tandem_worker_legs_total{outcome="terminated",phase="decode"} 0.0',
            'tandem_worker_tokens_total{phase="decode"} 0.0',
            'tandem_worker_kv_tokens_total{phase="decode"} 1000.0',
            'tandem_worker_engine_cpu_seconds_total{phase="decode"} 0.0',
            'tandem_worker_step_seconds_count{phase="decode"} 0.0',
            'tandem_kv_transfer_seconds_count{phase="decode",transport="nixl/ucx/unknown"} 0.0',
            'tandem_kv_transfer_bytes_total{phase="decode",transport="nixl/ucx/unknown"} 0.0',
            'tandem_hook_seconds_count{hook="examples.hooks.UpperCase",phase="decode"} 0.0',
            'tandem_hook_verdicts_total{hook="examples.hooks.UpperCase",phase="decode",'
            'verdict="error"} 0.0',
            "tandem_build_info",
        ):
            assert line in text
        router = served.connect()
        await router.start()
        (request,) = await served.submitted(1)
        served.engine.give(Delta(request, letters, Ending.LENGTH))
        said = await router.until(lambda said: said.of(1, "closed"))
        assert said.text(101) == "THE"
        text = await served.metrics()
        assert 'tandem_worker_legs_total{outcome="finished",phase="decode"} 1.0' in text
        assert 'le="+Inf",phase="decode"} 1.0' in text
        assert 'phase="decode",verdict="rewrite"} 1.0' in text


async def test_a_worker_that_waits_for_a_pair_is_ready_from_the_first_on_and_stays_so(
    serving: Callable[..., Any],
) -> None:
    async with serving(ready_when_paired=True, deployment_revision="r2") as served:
        described = await served.stub.Describe(worker_pb2.DescribeWorkerRequest())
        assert described.fingerprint.deployment_revision == "r2"
        router = served.connect()
        await router.until(lambda said: said.loads)  # a router, and no pair yet
        assert await served.health() == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await served.probe("/ready") == 503
        assert await served.probe("/live") == 200
        await router.send(paired=True)
        await served.until_ready()
        assert await served.health() == health_pb2.HealthCheckResponse.SERVING
        router.call.cancel()
        other = served.connect()
        said = await other.until(lambda said: said.loads)
        assert said.loads[0].moved_kv  # so that this one need not prove it again
        assert await served.probe("/ready") == 200
        assert await served.health() == health_pb2.HealthCheckResponse.SERVING


async def test_a_pair_that_comes_during_the_drain_makes_nothing_ready(
    serving: Callable[..., Any],
) -> None:
    async with serving(ready_when_paired=True) as served:
        router = served.connect()
        await router.start(1)
        (request,) = await served.submitted(1)
        served.stop.set()
        await router.until(lambda said: said.loads and said.loads[-1].draining)
        await router.send(paired=True)
        await router.start(2)  # answered after the word before it was heard
        await router.until(lambda said: said.of(2, "closed"))
        assert await served.health() == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await served.probe("/ready") == 503
        served.engine.give(Delta(request, [20], Ending.LENGTH))
        await router.until(lambda said: said.of(1, "closed"))


async def test_a_drain_that_takes_too_long_fails_what_is_left_and_shows_its_time(
    serving: Callable[..., Any],
) -> None:
    async with serving(drain_seconds=0.05) as served:
        before = await served.metrics()
        assert 'tandem_worker_drain_seconds{phase="decode"} 0.0' in before
        assert 'tandem_worker_drain_aborted_total{phase="decode"} 0.0' in before
        router = served.connect()
        await router.start(1)
        (request,) = await served.submitted(1)
        served.stop.set()
        await until(lambda: served.engine.cancelled == [request])
        during = await served.metrics()
        assert 'tandem_worker_drain_seconds{phase="decode"} 0.0\n' not in during
        assert 'tandem_worker_drain_aborted_total{phase="decode"} 1.0' in during
        assert await served.probe("/ready") == 503
        assert await served.probe("/live") == 200
        served.engine.give(*served.engine.settle())
        closed = (await router.until(lambda said: said.of(1, "closed"))).closed(1)
        assert closed.error.code == "worker_error"
        assert await served.outcome() is None


@pytest.mark.promise("S0-001", "S0-002", "S0-025", "S0-027")
def test_a_worker_does_not_start_with_a_hook_it_cannot_run(
    model_path: Path, tmp_path: Path
) -> None:
    with pytest.raises(StartError, match=r"'no_such_module\.Hook'"):
        WorkerServer(
            "decode",
            WorkerConfig(model_path=model_path, hook="no_such_module.Hook"),
            load_decode,
        )
    with pytest.raises(StartError, match="needs the model's tokenizer"):
        WorkerServer(
            "decode",
            WorkerConfig(model_path=tmp_path, hook="examples.hooks.UpperCase"),
            load_decode,
        )


async def test_a_stop_while_the_engine_starts_ends_the_worker_at_once(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, stop = ScriptedEngine(), asyncio.Event()
    monkeypatch.setattr(engine, "start", asyncio.Event().wait)
    monkeypatch.setattr(factory, "create", lambda *arguments: engine)
    monkeypatch.setattr(process, "own_signals", lambda stop: None)
    worker = WorkerServer("decode", WorkerConfig(model_path=model_path), load_decode)
    stop.set()
    assert not await asyncio.wait_for(worker.start(stop), PATIENCE)
    await worker.close()
    assert engine.closed


def _scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        return str(response.read().decode())


@pytest.mark.promise("S1-044")
@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_the_test_switch_changes_nothing_of_how_the_engine_is_built(
    phase: Any, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[EngineSettings] = []

    def create(name: str, role: object, settings: EngineSettings) -> None:
        built.append(settings)

    monkeypatch.setattr(factory, "create", create)
    for switch in (False, True):
        config = WorkerConfig(model_path=model_path, test_logits_processor=switch)
        WorkerServer(phase, config, LOAD[phase])
    none = Registry()
    off, on = (dataclasses.replace(settings, registry=none, budget=None) for settings in built)
    assert off == on
    assert built[0].registry.import_paths() == built[1].registry.import_paths()
