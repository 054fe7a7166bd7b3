"""Sim engines in this process, what they said, and a check that they end up holding nothing."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tandem.engine.base import (
    Delta,
    EngineDescription,
    EngineRequest,
    EngineSettings,
    ParkingLimits,
    Role,
)
from tandem.engine.mailbox import steps
from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorSpec
from tandem.v1 import common_pb2
from tandem_sim import SimEngine

PATIENCE = 60.0
PROMPT = tuple(range(100, 250))  # three pages of 64 tokens
_numbers = itertools.count(1)


@dataclass
class Running:
    """A started engine and all its deltas so far."""

    engine: SimEngine
    description: EngineDescription
    said: dict[int, list[Delta]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self) -> None:
        async for step in steps(self.engine):
            for delta in step:
                self.said.setdefault(delta.request_id, []).append(delta)
            self.changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    async def end_of(self, number: int) -> list[Delta]:
        await self.until(lambda: number in self.said and self.said[number][-1].end is not None)
        return self.said[number]

    async def tokens_of(self, number: int) -> list[int]:
        deltas = await self.end_of(number)
        assert deltas[-1].error is None
        return [token for delta in deltas for token in delta.token_ids]

    def ask(
        self,
        prompt: tuple[int, ...] = PROMPT,
        *,
        room: int = 0,
        peer: str = "",
        timeout_seconds: float = 60.0,
        logits: LogitsProcessorSpec | None = None,
        bias: common_pb2.EmbeddingBias | None = None,
        park_seconds: float = 0.0,
        parked: bool = False,
        lora_adapter: str = "",
        cache_salt: str = "",
        **sampling: Any,
    ) -> int:
        sampling.setdefault("max_tokens", 12)
        number = next(_numbers)
        request = EngineRequest(
            request_id=number,
            token_ids=prompt,
            sampling=common_pb2.SamplingParams(**sampling),
            logits=logits,
            embedding_bias=bias,
            room=room,
            kv_peer=peer,
            timeout_seconds=timeout_seconds,
            park_seconds=park_seconds,
            parked=parked,
            lora_adapter=lora_adapter,
            cache_salt=cache_salt,
        )
        self.engine.submit(request)
        return number

    @property
    def idle(self) -> bool:
        load = self.engine.load()
        return not (
            load.open_legs or load.waiting_legs or load.kv_tokens_used or self.engine.open_rooms
        )


@dataclass
class Pair:
    prefill: Running
    decode: Running

    def ask(self, prompt: tuple[int, ...] = PROMPT, **rest: Any) -> tuple[int, int]:
        """The request's numbers in prefill and decode."""
        room = secrets.randbits(63) | 1
        peer = self.prefill.description.kv_endpoint
        return (
            self.prefill.ask(prompt, room=room, **rest),
            self.decode.ask(prompt, room=room, peer=peer, **rest),
        )

    async def tokens(self, prompt: tuple[int, ...] = PROMPT, **rest: Any) -> list[int]:
        first, second = self.ask(prompt, **rest)
        tokens = await self.decode.tokens_of(second)
        assert await self.prefill.tokens_of(first) == tokens[:1]
        return tokens

    @property
    def idle(self) -> bool:
        return self.prefill.idle and self.decode.idle


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start(model_path: Path) -> AsyncIterator[Start]:
    """Starts engines; at the end they are closed and must hold nothing."""
    running: list[Running] = []

    async def start_one(
        role: Role,
        *,
        max_sequences: int = 256,
        parking: ParkingLimits = ParkingLimits(),  # noqa: B008 - it is frozen
        **options: Any,
    ) -> Running:
        registry = options.pop("registry", None) or Registry.builtin()
        engine = SimEngine(
            role,
            EngineSettings(
                model_path=model_path,
                model_name="tiny",
                max_sequences=max_sequences,
                host="127.0.0.1",
                options={"step_ms": 1, "max_total_tokens": 65536, **options},
                registry=registry,
                parking=parking,
            ),
        )
        one = Running(engine, await engine.start())
        group.create_task(one.listen())
        running.append(one)
        return one

    async with asyncio.TaskGroup() as group:
        yield start_one
        for one in running:
            await one.engine.close()
            await one.engine.close()
            assert one.idle


@pytest.fixture
def pairing() -> type[Pair]:
    """Makes a pair of two started engines."""
    return Pair


@pytest.fixture
async def pair(start: Start) -> Pair:
    return Pair(await start(Role.PREFILL), await start(Role.DECODE))
