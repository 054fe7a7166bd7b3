"""A stack of real processes whose connections go through proxies, and what may be done to it."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import signal
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from stacks import metric_sum

from chaotic.proxy import Proxy
from tandem.cli import processes
from tandem.cli.client import Client
from tandem.cli.plan import Launch, StackOptions
from tandem.cli.stack import Stack

MODEL_PATH = Path(__file__).resolve().parents[3] / "model" / "tandem-tiny"
DRAIN_SECONDS = 40.0
"""What a process has to drain and end by itself; then it is killed."""
SILENCE_SECONDS = 2.0
LEASED_SECONDS = 25.0
"""After the last answer, for which pages may still be kept for a peer that says nothing: the
hand-over's time, 2 s, and 20 s.
"""
ENGINE = "step_ms=15,prefill_base_ms=10,handover_timeout_seconds=2"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineOf:
    """What a stack's workers run, and how long a start may take."""

    name: str
    options: str
    ready_seconds: float


SIM = EngineOf(name="sim", options=ENGINE, ready_seconds=30.0)
VLLM = EngineOf(
    name="vllm", options="dtype=float32,handover_timeout_seconds=4", ready_seconds=400.0
)
"""In bfloat16 a near tie may fall otherwise in another batch."""
ENGINES = {each.name: each for each in (SIM, VLLM)}
SLOTS = 8
"""Sequences of one worker, where nothing else is said."""
QUEUE = 64
ROUTER = (
    f"--worker-silence-seconds={SILENCE_SECONDS}",
    "--stall-seconds=1",
    "--stall-failover-seconds=2.5",
    "--settle-seconds=3",
    "--eject-first-seconds=1",
    "--eject-seconds=2",
    f"--max-queue={QUEUE}",
)


class Fleet:
    """The processes of one stack.

    Whoever lets a fault strike gives it `struck`, to be called as the fault begins, and `burst`,
    which asks so many requests at once.
    """

    def __init__(self, stack: Stack, proxies: dict[str, Proxy], engine: EngineOf = SIM) -> None:
        self.stack = stack
        self.engine = engine
        self.proxies = proxies
        self.struck: Callable[[], None]
        self.burst: Callable[[int], Awaitable[None]]
        self._numbers = itertools.count(1)
        self._launches = {name: each.launch for name, each in stack.components.items()}

    @property
    def ready_seconds(self) -> float:
        return self.engine.ready_seconds

    @property
    def workers(self) -> list[str]:
        return [name for name in self._launches if "worker" in name]

    def launch(self, name: str) -> Launch:
        """How it was started at first."""
        return self._launches[name]

    def kill(self, name: str) -> None:
        self._send(name, signal.SIGKILL)

    def pause(self, name: str) -> None:
        self._send(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._send(name, signal.SIGCONT)

    def engine_process(self, name: str) -> psutil.Process:
        """The process in which a worker's engine computes, where that is not the worker's own."""
        worker = psutil.Process(self.stack.components[name].pid)
        (found,) = (each for each in worker.children() if "EngineCore" in "".join(each.cmdline()))
        return found

    async def ended(self, name: str) -> None:
        """Wait until its process has."""
        await asyncio.to_thread(self.stack.components[name].process.wait, self.ready_seconds)

    async def start(self, name: str, **environment: str) -> None:
        """Start it again, where it was, and wait until it is ready. Raises TimeoutError."""
        log = self.stack.components[name].log
        log.rename(log.with_name(f"{next(self._numbers)}-{log.name}"))
        with mock.patch.dict(os.environ, environment):
            self.stack.restart(name)
        await self.ready(name)

    async def ready(self, name: str) -> None:
        """Wait until it says so itself. Raises TimeoutError."""
        async with asyncio.timeout(self.ready_seconds):
            while not await asyncio.to_thread(self._answers, name):  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.1)

    async def end(self, name: str, *, grace_seconds: float) -> bool:
        """Ask it to drain and end. Whether it did within the time; else it is killed."""
        component = self.stack.components[name]
        overdue = await asyncio.to_thread(
            processes.end, [component.identity], grace_seconds=grace_seconds
        )
        component.process.wait(self.ready_seconds)
        return not overdue

    async def replace(
        self,
        name: str,
        *,
        engine: str = "",
        grace_seconds: float = DRAIN_SECONDS,
        **environment: str,
    ) -> None:
        """Drain a process, and start it at the same address: as it was at first, but for further
        options of its engine and variables. Raises TimeoutError.
        """
        await self.end(name, grace_seconds=grace_seconds)
        launch = self._launches[name]
        if engine:
            more = (*launch.flags, f"--engine-options={self.engine.options},{engine}")
            launch = dataclasses.replace(launch, flags=more)
        self.stack.components[name].launch = launch
        await self.start(name, **environment)

    async def connected(self) -> None:
        """Wait until the router uses every worker. Raises TimeoutError."""
        async with asyncio.timeout(self.ready_seconds):
            while not all(map(_in_use, await self._told())):  # noqa: ASYNC110 - other processes
                await asyncio.sleep(0.1)

    async def trusted(self) -> bool:
        """Whether the router treats every worker as it would a new one."""
        return all(each["standing"] == "whole" for each in await self._told())

    async def recover(self) -> None:
        """Wait until the router uses every worker again. One that distrusts any is replaced by one
        that knows nothing of them. Raises TimeoutError.
        """
        if not await self.trusted():
            await self.replace("router")
        await self.connected()

    async def still_open(self) -> list[str]:
        """What the components still have open when all they lease to others must be back."""
        until = time.monotonic() + LEASED_SECONDS
        while True:
            left = await asyncio.to_thread(self._still_open)
            if not left or time.monotonic() > until:
                return left
            await asyncio.sleep(0.1)

    def metric(self, component: str, name: str, **labels: str) -> float:
        return metric_sum(self._fetch(component, "/metrics"), name, labels)

    def _send(self, name: str, number: signal.Signals) -> None:
        processes.send(self.stack.components[name].identity, number)

    def _answers(self, name: str) -> bool:
        launch = self.stack.components[name].launch
        return Client(launch.metrics, timeout_seconds=1).status("/ready") == 200

    async def _told(self) -> list[dict[str, Any]]:
        """What the router knows of its workers."""
        text = await asyncio.to_thread(self._fetch, "router", "/debug/fleet")
        workers: list[dict[str, Any]] = json.loads(text)["workers"]
        return workers

    def _still_open(self) -> list[str]:
        gauges = {
            "router": ("tandem_router_open_sequences", "tandem_router_queue_length"),
            "frontend": ("tandem_frontend_open_requests",),
        } | dict.fromkeys(self.workers, ("tandem_worker_open_legs", "tandem_worker_kv_tokens_used"))
        return [
            f"{component}: {name} is {value:.0f}"
            for component, names in gauges.items()
            for name in names
            if (value := self.metric(component, name))
        ]

    def _fetch(self, component: str, path: str) -> str:
        url = f"http://{self.stack.components[component].launch.metrics}{path}"
        with urllib.request.urlopen(url, timeout=5) as response:
            return str(response.read().decode())


def _in_use(worker: dict[str, Any]) -> bool:
    return worker["connected"] and not worker["refused"]


@asynccontextmanager
async def running(
    run_dir: Path,
    *,
    engine: EngineOf = SIM,
    prefill: int = 2,
    decode: int = 2,
    slots: int = SLOTS,
) -> AsyncIterator[Fleet]:
    """A stack with a proxy before the router and each worker, ready and stopped at the end.
    `slots`: sequences of each worker.
    """
    names = [
        *(f"prefill_worker-{number}" for number in range(prefill)),
        *(f"decode_worker-{number}" for number in range(decode)),
        "router",
    ]
    proxies = {name: Proxy() for name in names}
    fronts = {name: await proxy.start() for name, proxy in proxies.items()}

    def of(phase: str) -> str:
        return ",".join(front for name, front in fronts.items() if name.startswith(phase))

    workers = (f"--max-sequences={slots}",)
    options = StackOptions(
        model_path=MODEL_PATH,
        engine=engine.name,
        prefill=prefill,
        decode=decode,
        engine_options=tuple(engine.options.split(",")),
        flags={
            "router": (*ROUTER, f"--prefill={of('prefill')}", f"--decode={of('decode')}"),
            "frontend": (
                f"--router={fronts['router']}",
                f"--router-silence-seconds={SILENCE_SECONDS}",
            ),
            "prefill_worker": workers,
            "decode_worker": workers,
        },
    )
    stack = Stack(options, run_dir=run_dir)
    try:
        stack.start()
        for name, proxy in proxies.items():
            proxy.target = stack.components[name].address
        await asyncio.to_thread(stack.wait_ready, timeout_seconds=engine.ready_seconds)
        fleet = Fleet(stack, proxies, engine)
        await fleet.connected()
        yield fleet
    finally:
        for component in stack.components.values():  # a stopped one would not end
            processes.send(component.identity, signal.SIGCONT)
        await asyncio.to_thread(stack.stop, grace_seconds=3.0)
        for proxy in proxies.values():
            await proxy.close()
