"""A frontend and routers of another make, which break the protocol: what is their fault costs
nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc.aio

from simulated.dice import Dice
from simulated.loop import Process
from tandem.errors import DrainingError
from tandem.v1 import common_pb2, router_pb2, router_pb2_grpc, worker_pb2, worker_pb2_grpc
from tandem.wire.grpc import open_channel

if TYPE_CHECKING:
    from simulated.network import Network
from simulated.script import FIRST_TOKENIZER, tokenizer_hash

__all__ = ["STRANGE_ROUTER", "FickleRouter", "StrangeRouter", "Stranger", "open_channel"]
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


class FickleRouter(router_pb2_grpc.RouterServicer):
    """Takes requests of one model, begins them, and then drains as if it had not."""

    name = "fickle router"

    def __init__(
        self,
        dice: Dice,
        network: Network,
        model: str,
        begun: dict[tuple[str, int], float],
    ) -> None:
        """In `begun` it notes the prompts that it begins."""
        self._dice, self._network, self._model, self._begun = dice, network, model, begun
        self.process = Process(self.name)

    def start(self) -> None:
        listener = self._network.listen(self.name, self.process)
        router_pb2_grpc.add_RouterServicer_to_server(self, listener)
        self._network.services.setdefault("router", []).append(self.name)

    def _stop(self) -> None:
        names = self._network.services["router"]
        if self.name in names:
            names.remove(self.name)

    async def Connect(
        self, messages: AsyncIterator[router_pb2.FrontendMessage], context: Any
    ) -> None:
        greeting = router_pb2.RouterMessage()
        greeting.fleet.models.add(
            name=self._model,
            ready_pairs=1,
            tokenizer_sha256=tokenizer_hash(self._model, FIRST_TOKENIZER),
        )
        await context.write(greeting)
        async for message in messages:
            for submit in message.submit:
                self._stop()
                await context.write(self._begin(submit))
                await context.write(router_pb2.RouterMessage(draining=True))
                if self._dice.random.random() < 0.5:
                    refused = router_pb2.RouterMessage()
                    end = refused.ends.add(sequence=submit.first_sequence)
                    end.error.CopyFrom(DrainingError("it has not begun").to_proto())
                    await context.write(refused)
                return

    def _begin(self, submit: router_pb2.Submit) -> router_pb2.RouterMessage:
        """A row of the prompt's first output, with nothing in it."""
        now = asyncio.get_running_loop().time()
        self._begun[submit.trace_id, submit.first_sequence] = now
        row = common_pb2.TokenColumns(
            sequence=[submit.first_sequence], offset=[0], token_count=[0], text=[""]
        )
        payload = row.SerializeToString()
        return router_pb2.RouterMessage(
            run_sequence=row.sequence,
            run_worker=[1],
            part_worker=[1],
            part_bytes=[len(payload)],
            payload=payload,
        )


async def _listen(call: Any) -> None:
    """Until the other side ends the stream, whatever it says."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError:
        pass
    finally:
        call.cancel()
