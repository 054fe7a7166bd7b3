"""Three routers that divide the decode workers: each worker has one of them, and when one dies the
others take over.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sim_oracle import Oracle
from stacks import MODEL, PATIENCE, SIM_READY_SECONDS, Served, options
from test_failures import until

from tandem.cli.stack import Stack
from tandem.free_ports import FreePorts
from tandem.v1 import common_pb2, router_pb2, router_pb2_grpc
from tandem.wire.grpc import open_channel
from tandem_router.discovery.share import servers

DECODE = 6
TAKEN_OVER_WITHIN = 20.0
"""Seconds. The ports of routers are asked every two; the rest is a busy machine's."""
SHORT, LONG = 8, 250
"""Tokens of an answer, 20 ms each."""


@dataclass
class Routers:
    """The routers, by address, and the decode workers that each of them should serve."""

    served: Served
    names: Mapping[str, str]
    decode: frozenset[str]

    def shares(self, *gone: str) -> dict[str, frozenset[str]]:
        there = [each for each in self.names if each not in gone]
        return {
            router: frozenset(each for each in self.decode if servers(each, there, 1) == [router])
            for router in there
        }

    def connected(self, router: str) -> frozenset[str]:
        """The decode workers that it has a stream to; none while it starts."""
        component = self.served.stack.components[self.names[router]]
        url = f"http://{component.launch.metrics}/debug/fleet"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                workers = json.load(response)["workers"]
        except urllib.error.URLError:
            return frozenset()
        return frozenset(
            each["address"] for each in workers if each["phase"] == "decode" and each["connected"]
        )

    async def divided(self, *gone: str) -> None:
        """Until each decode worker has the one router that it should have."""
        expected = self.shares(*gone)
        await until(
            lambda: all(self.connected(each) == share for each, share in expected.items()),
            within=TAKEN_OVER_WITHIN,
            what=f"shares without {gone}",
        )


@contextmanager
def dividing(model_path: Path, run_dir: Path, free: FreePorts) -> Iterator[Routers]:
    """Without the stack's own router, which serves all workers."""
    plain = options(
        "sim",
        model_path,
        decode=DECODE,
        hook_prefill="",
        hook_decode="",
        engine_options=("step_ms=20",),
        flags={},
    )
    with Stack(plain, run_dir=run_dir) as stack:
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        first = stack.components["router"]
        decode = frozenset(
            each.address for name, each in stack.components.items() if "decode" in name
        )
        addresses = _with_shares(decode, free)
        names = {address: f"router-{index}" for index, address in enumerate(addresses)}
        kept = [each for each in first.launch.flags if "listen=" not in each]
        for address, name in names.items():
            metrics = free.address()
            flags = (
                f"--listen={address}",
                f"--metrics-listen={metrics}",
                f"--routers={','.join(addresses)}",
                "--decode-routers=1",
                "--decode-routers-from=1",
                *kept,
            )
            launch = replace(first.launch, name=name, address=address, metrics=metrics, flags=flags)
            stack.components[name] = replace(first, launch=launch, ready=False)
            stack.restart(name)
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        first.process.kill()
        first.process.wait()
        yield Routers(Served("sim", stack, Path()), names, decode)


def _with_shares(decode: frozenset[str], free: FreePorts) -> list[str]:
    """Addresses of three routers, none of which is without a decode worker."""
    while True:
        addresses = [free.address() for _ in range(3)]
        if {servers(each, addresses, 1)[0] for each in decode} == {*addresses}:
            return addresses


class Client:
    """Asks routers, and holds each answer to what it must be."""

    def __init__(self) -> None:
        self._oracle = Oracle()
        self._prompts = itertools.count(5)

    async def ask(self, router: str, *, tokens: int = SHORT) -> None:
        prompt = [next(self._prompts) % 200, 7, 9]
        sampling = common_pb2.SamplingParams(max_tokens=tokens, ignore_eos=True)
        task = common_pb2.Task(
            model=MODEL, prompt_token_ids=prompt, sampling=sampling, want_token_ids=True
        )
        async with open_channel(router) as channel:
            stub = router_pb2_grpc.RouterStub(channel)
            call = stub.Generate(router_pb2.GenerateRequest(task=task, timeout_ms=60_000))
            answer = [token async for response in call for token in response.token_ids]
        assert answer == self._oracle.answer(prompt, tokens)


@pytest.mark.promise("S5-270", "S5-274", "S5-276")
async def test_each_worker_has_one_router_and_others_take_over_when_it_dies_or_stops(
    model_path: Path, tmp_path: Path, free: FreePorts
) -> None:
    with dividing(model_path, tmp_path / "run", free) as routers:
        client = Client()
        await routers.divided()
        assert set().union(*routers.shares().values()) == routers.decode
        await asyncio.gather(*(client.ask(each) for each in [*routers.names] * 4))

        dying, *others = routers.names
        stack = routers.served.stack
        component = stack.components[routers.names[dying]]
        running = [asyncio.create_task(client.ask(each, tokens=LONG)) for each in others]
        component.process.kill()
        component.process.wait()
        await routers.divided(dying)
        await asyncio.gather(*(client.ask(each) for each in others * 6), *running)

        # It comes back: its share moves away from the others in the midst of their requests.
        open_then = [
            asyncio.create_task(client.ask(each, tokens=LONG)) for each in others for _ in range(9)
        ]
        stack.restart(routers.names[dying])
        await routers.divided()
        await asyncio.gather(*open_then, client.ask(dying))

        # One that is told to stop finishes what it has; nothing is lost.
        *others, stopping = routers.names
        component = stack.components[routers.names[stopping]]
        running = [asyncio.create_task(client.ask(each, tokens=LONG)) for each in routers.names]
        name = "tandem_router_open_sequences"
        await until(
            lambda: all(routers.served.metric(each, name) for each in routers.names.values()),
            within=PATIENCE,
            what="all have something open",
        )
        component.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*running)
        assert await asyncio.to_thread(component.process.wait, 30) == 0
        await routers.divided(stopping)
        await asyncio.gather(*(client.ask(each) for each in others * 6))
