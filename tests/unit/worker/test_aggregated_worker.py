"""A process that serves both phases, over real gRPC: two streams, one engine, one life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from scripted_engine import ScriptedEngine
from test_worker_server import PATIENCE, Router, until
from worker_harness import MODEL, SAMPLING, TRACE

from tandem.cli.client import Client
from tandem.engine.base import Delta, Ending
from tandem.errors import ConfigError, EngineError
from tandem.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from tandem.wire import faces
from tandem.wire.grpc import open_channel
from tandem.worker.config import WorkerConfig
from tandem_aggregated_worker.worker import AggregatedWorker


class Served:
    def __init__(self, worker: AggregatedWorker, engine: ScriptedEngine) -> None:
        self.worker, self.engine = worker, engine
        self.address = f"127.0.0.1:{worker.port}"
        self.channel = open_channel(self.address)
        self.stub = worker_pb2_grpc.WorkerStub(self.channel)

    def metadata(self, phase: str) -> Any:
        return faces.metadata(faces.key(self.address, phase))

    async def describe(self, phase: str) -> worker_pb2.WorkerDescription:
        request = worker_pb2.DescribeWorkerRequest()
        described: worker_pb2.WorkerDescription = await self.stub.Describe(
            request, metadata=self.metadata(phase)
        )
        return described

    def connect(self, phase: str) -> Router:
        return Router(_Phase(self.stub, self.metadata(phase)))  # type: ignore[arg-type]

    async def ready(self) -> int:
        admin = Client(f"127.0.0.1:{self.worker.metrics_port}", timeout_seconds=PATIENCE)
        return await asyncio.to_thread(admin.status, "/ready")

    async def metrics(self) -> str:
        admin = Client(f"127.0.0.1:{self.worker.metrics_port}", timeout_seconds=PATIENCE)
        return await asyncio.to_thread(admin.text, "/metrics")


class _Phase:
    """A stub whose calls mean one phase."""

    def __init__(self, stub: worker_pb2_grpc.WorkerStub, metadata: Any) -> None:
        self._stub, self._metadata = stub, metadata

    def Connect(self) -> Any:
        return self._stub.Connect(metadata=self._metadata)


@pytest.fixture
def serving(model_path: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def serve(stop: asyncio.Event, **settings: Any) -> AsyncIterator[Served]:
        engine = ScriptedEngine()
        config = WorkerConfig(
            model_path=model_path,
            name="both",
            engine="sim",  # of its forms, which take less to be there than SGLang's
            listen="127.0.0.1:0",
            metrics_listen="127.0.0.1:0",
            **settings,
        )
        worker = AggregatedWorker(config, create=lambda *arguments: engine)
        try:
            assert await worker.start(stop)
            served = Served(worker, engine)
            yield served
        finally:
            await worker.close()
            await served.channel.close()
        assert engine.closed

    return serve


def start(leg: int, **fields: Any) -> worker_pb2.StartLeg:
    task = common_pb2.Task(
        trace_id=TRACE,
        model=MODEL,
        prompt_token_ids=[10, 11],
        sampling=common_pb2.SamplingParams(**SAMPLING),
        want_text=True,
        want_report=True,
    )
    return worker_pb2.StartLeg(
        leg=leg,
        destination=7,
        sequence=100,
        room=5,
        timeout_ms=60_000,
        task=task.SerializeToString(),
        **fields,
    )


async def begun(served: Served, stop: asyncio.Event) -> tuple[asyncio.Future[None], Router, Router]:
    """The worker serves, and the engine has a request that is leg 1 of prefill and 2 of decode."""
    serve = asyncio.ensure_future(served.worker.serve(stop))
    prefill, decode = served.connect("prefill"), served.connect("decode")
    await prefill.send(start=[start(1)])
    await decode.send(start=[start(2, kv_peer="aggregated")])
    await until(lambda: served.engine.submitted)
    return serve, prefill, decode


async def test_both_phases_say_that_they_are_one_process(serving: Callable[..., Any]) -> None:
    async with serving(asyncio.Event()) as served:
        prefill, decode = await served.describe("prefill"), await served.describe("decode")
        assert (prefill.phase, decode.phase) == (common_pb2.PHASE_PREFILL, common_pb2.PHASE_DECODE)
        assert prefill.instance == decode.instance != ""
        assert prefill.name == decode.name == "both"
        assert prefill.fingerprint == decode.fingerprint
        assert prefill.fingerprint.aggregated
        assert [each.load.moved_kv for each in (prefill, decode)] == [True] * 2, "no canary is due"
        assert not prefill.parks


@pytest.mark.parametrize("metadata", [(), (("tandem-phase", "neither"),)])
async def test_a_call_that_means_neither_phase_is_told_so(
    serving: Callable[..., Any], metadata: Any
) -> None:
    async with serving(asyncio.Event()) as served:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.stub.Describe(worker_pb2.DescribeWorkerRequest(), metadata=metadata)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "setting workers" in (refused.value.details() or "")


async def test_a_sequence_is_one_request_of_the_engine_and_a_leg_of_either_phase(
    serving: Callable[..., Any],
) -> None:
    stop = asyncio.Event()
    async with serving(stop) as served:
        serve, prefill, decode = await begun(served, stop)
        (request,) = served.engine.submitted
        served.engine.give(Delta(request.request_id, [20]))
        said = await prefill.until(lambda said: said.of(1, "closed"))
        assert said.of(1, "verdict")
        served.engine.give(Delta(request.request_id, [21], Ending.LENGTH))
        said = await decode.until(lambda said: said.of(2, "closed"))
        assert said.finishes(100)[0].completion_tokens == 2
        names = [family.name for family in text_string_to_metric_families(await served.metrics())]
        assert len(names) == len(set(names)), "each family is there once"
        stop.set()
        await asyncio.wait_for(serve, PATIENCE)


async def test_neither_phase_goes_before_the_other_is_drained(serving: Callable[..., Any]) -> None:
    stop = asyncio.Event()
    async with serving(stop) as served:
        serve, prefill, decode = await begun(served, stop)
        (request,) = served.engine.submitted
        served.engine.give(Delta(request.request_id, [20]))
        await prefill.until(lambda said: said.of(1, "closed"))
        stop.set()
        before = len(prefill.said.loads)
        await prefill.until(lambda said: len(said.loads) > before + 2)
        assert prefill.said.loads[-1].draining, "prefill reports on, with nothing open"
        assert await served.ready() == 503
        served.engine.give(Delta(request.request_id, [21], Ending.LENGTH))
        await decode.until(lambda said: said.of(2, "closed"))
        await asyncio.wait_for(serve, PATIENCE)


async def test_an_engine_that_dies_ends_both(serving: Callable[..., Any]) -> None:
    stop = asyncio.Event()
    async with serving(stop) as served:
        serve, prefill, decode = await begun(served, stop)
        served.engine.die(EngineError("out of memory"))
        for router, leg in ((prefill, 1), (decode, 2)):
            said = await router.until(lambda said, leg=leg: said.of(leg, "closed"))
            assert said.closed(leg).worker_died
        with pytest.raises(EngineError, match="out of memory"):
            await asyncio.wait_for(serve, PATIENCE)


def test_it_computes_on_one_node(model_path: Path) -> None:
    config = WorkerConfig(model_path=model_path, nodes=2, leader="a:1")
    with pytest.raises(ConfigError, match="nodes"):
        AggregatedWorker(config)


def test_it_is_one_process(model_path: Path) -> None:
    config = WorkerConfig(model_path=model_path, token_processes=2)
    with pytest.raises(ConfigError, match="one process: leave token_processes at 1"):
        AggregatedWorker(config)
