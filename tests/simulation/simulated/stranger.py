"""A frontend and a router of another make, which break the protocol: what is their fault costs
nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from simulated.dice import Dice
from simulated.loop import Process
from tandem.v1 import router_pb2, router_pb2_grpc, worker_pb2, worker_pb2_grpc
from tandem.wire.grpc import open_channel

__all__ = ["STRANGE_ROUTER", "StrangeRouter", "Stranger", "open_channel"]
STRANGE_ROUTER = "strange router"


class Stranger:
    """Connects once, asks for what cannot be, and is gone."""

    def __init__(self, dice: Dice, model: str, task: bytes) -> None:
        self._dice, self._model, self._task = dice, model, task
        self.process = Process("stranger")

    def start(self) -> None:
        self._dice.loop.spawn(self.process, self._run())

    async def _run(self) -> None:
        async with open_channel("router") as channel:
            stub: Any = router_pb2_grpc.RouterStub(channel)
            call = stub.Connect(self._messages())
            await _listen(call)

    async def _messages(self) -> AsyncIterator[router_pb2.FrontendMessage]:
        await asyncio.sleep(self._dice.random.random() / 4)
        yield router_pb2.FrontendMessage(
            submit=[
                self._submit(10, n=3),
                self._submit(20, prompt_tokens=4_090),
                self._submit(30, model="nobody's"),
            ]
        )
        yield router_pb2.FrontendMessage(cancel=[11, 999])  # no request begins there
        await asyncio.sleep(self._dice.random.random() / 4)
        last = self._dice.random.choice(
            (
                self._submit(2**64 - 1, n=2),
                self._submit(12, n=2),
                self._submit(9, n=2),
                self._submit(40, n=0),
                None,
            )
        )
        if last is not None:
            yield router_pb2.FrontendMessage(submit=[last, self._submit(50)])
        await asyncio.sleep(self._dice.random.random())

    def _submit(
        self, first: int, *, n: int = 1, model: str = "", prompt_tokens: int = 4
    ) -> router_pb2.Submit:
        return router_pb2.Submit(
            first_sequence=first,
            n=n,
            trace_id=f"{self._dice.random.getrandbits(64):032x}",
            model=model or self._model,
            prompt_tokens=prompt_tokens,
            max_tokens=16,
            timeout_ms=1_000_000,
            task=self._task,
        )


class StrangeRouter:
    """Starts a leg under a number that is open already; the worker is to give it up."""

    def __init__(self, dice: Dice, address: str, task: bytes) -> None:
        self._dice, self._address, self._task = dice, address, task
        self.process = Process(STRANGE_ROUTER)

    def start(self) -> None:
        self._dice.loop.spawn(self.process, self._run())

    async def _run(self) -> None:
        async with open_channel(self._address) as channel:
            stub: Any = worker_pb2_grpc.WorkerStub(channel)
            call = stub.Connect(self._messages())
            await _listen(call)

    async def _messages(self) -> AsyncIterator[worker_pb2.WorkerCommand]:
        start = worker_pb2.StartLeg(
            leg=1,
            destination=1,
            sequence=1,
            room=self._dice.random.getrandbits(62) | 1,
            kv_peer="nowhere",
            timeout_ms=1_000_000,
            task=self._task,
        )
        yield worker_pb2.WorkerCommand(start=[start])
        await asyncio.sleep(self._dice.random.random() / 4)
        yield worker_pb2.WorkerCommand(start=[start])
        await asyncio.sleep(self._dice.random.random())


async def _listen(call: Any) -> None:
    """Until the other side ends the stream, whatever it says."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError:
        pass
    finally:
        call.cancel()
