"""What stands in place of vLLM for an engine's requests: it keeps what it is given, and puts out
what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tandem.engine.base import Delta, EngineRequest, ParkingLimits, Role, Step
from tandem.errors import TandemError
from tandem.logits.model import Model
from tandem.logits.registry import Registry
from tandem.v1 import common_pb2
from tandem_vllm.launch import Launched
from tandem_vllm.pull_client import PullClient
from tandem_vllm.pull_server import PullServer
from tandem_vllm.traffic import Traffic
from tandem_vllm.validation import EngineBounds

PAGE = 4
VOCABULARY = 100
EOS = 2
LAYOUT = 7
PATIENCE = 10.0
PARKING = ParkingLimits()


class StandInClient:
    """AsyncMPClient, as far as the adapter knows it."""

    def __init__(self) -> None:
        self.added: list[Any] = []
        self.aborted: list[str] = []
        self.answers = True
        self._outputs: asyncio.Queue[Any] = asyncio.Queue()

    async def add_request_async(self, request: Any) -> None:
        self.added.append(request)

    async def abort_requests_async(self, names: list[str]) -> None:
        self.aborted += names

    async def call_utility_async(self, name: str) -> None:
        if not self.answers:
            await asyncio.Event().wait()

    async def get_output_async(self) -> Any:
        step = await self._outputs.get()
        if isinstance(step, Exception):
            raise step
        return step

    def put(self, *outputs: Any, waiting: int = 0) -> None:
        stats = SimpleNamespace(num_waiting_reqs=waiting, num_skipped_waiting_reqs=0)
        self._outputs.put_nowait(SimpleNamespace(outputs=outputs, scheduler_stats=stats))

    def die(self) -> None:
        self._outputs.put_nowait(RuntimeError("EngineDeadError"))

    @property
    def names(self) -> list[str]:
        return [request.request_id for request in self.added]


@dataclass
class StandInNotes:
    """NoteReader without a socket."""

    failed: dict[str, TandemError] = field(default_factory=dict)
    page_bytes: int = 1024

    def read(self) -> dict[str, TandemError]:
        failed, self.failed = self.failed, {}
        return failed


class Refusing:
    """SamplingParams that refuse one temperature, as vLLM's do by ValueError."""

    def __init__(self, **given: Any) -> None:
        if given.get("temperature") == 1.5:
            raise ValueError("not so warm")
        self.given = given


class Side:
    """A Traffic of one role, and what it has handed on."""

    def __init__(
        self,
        role: Role,
        *,
        handover_seconds: float = 30.0,
        parking: ParkingLimits = PARKING,
    ) -> None:
        self.vllm = StandInClient()
        self.notes = StandInNotes()
        self.deltas: list[Delta] = []
        self.server = self.client = None
        if role is Role.PREFILL:
            self.server = PullServer(
                wait_seconds=handover_seconds, tls=None, limits=None, budget=None
            )
        elif role is Role.DECODE:
            self.client = PullClient(None)
        registry = Registry.builtin()
        settings: Any = SimpleNamespace(registry=registry, parking=parking)
        self.traffic = Traffic(
            role,
            settings,
            model=Model(vocabulary=VOCABULARY, eos_token_ids=[EOS]),
            eos_token_ids=frozenset({EOS}),
            handover_seconds=handover_seconds,
            notes=self.notes,  # type: ignore[arg-type]
            server=self.server,
            client=self.client,
        )
        self.launched = Launched(
            client=self.vllm,
            version="0.32.0",
            dtype="float32",
            kv_dtype="float32",
            page_size=PAGE,
            pages=100,
            context_length=200,
            vocabulary=VOCABULARY,
            request=SimpleNamespace,
            sampling=Refusing,
        )
        self.failure: Exception | None = None

    def begin(self, layout: int = LAYOUT) -> None:
        """Needs a running loop."""
        bounds = EngineBounds(role=self.traffic._role, context_length=200, vocabulary=VOCABULARY)
        self.traffic.begin(self.launched, bounds, layout)
        self.traffic.tasks.start(self._hand_on())

    async def _hand_on(self) -> None:
        def take(step: Step) -> None:
            self.deltas += step

        try:
            await self.traffic.mailbox.hand_on(take)
        except Exception as error:  # noqa: BLE001 - for the test to see
            self.failure = error

    async def ended(self, count: int = 1) -> list[Delta]:
        """The deltas, once so many requests have ended."""
        await until(lambda: sum(delta.end is not None for delta in self.deltas) >= count)
        return self.deltas

    async def close(self) -> None:
        for end in (self.server, self.client, self.traffic):
            if end is not None:
                await end.close()


async def until(holds: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 - whatever it is that holds
            await asyncio.sleep(0.002)


def request(number: int = 1, *, room: int = 0, made: Sequence[int] = (), **given: Any) -> Any:
    """An EngineRequest. What is no field of it is of its sampling parameters."""
    fields = {each: given.pop(each) for each in EngineRequest.__struct_fields__ if each in given}
    sampling = {"max_tokens": 8, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, **given}
    return EngineRequest(
        request_id=number,
        token_ids=fields.pop("token_ids", [5, 6, 7]),
        made=made,
        room=room,
        sampling=common_pb2.SamplingParams(**sampling),
        **fields,
    )


def output(number: int, *tokens: int, end: int | None = None, **given: Any) -> Any:
    """An EngineCoreOutput."""
    fields: dict[str, Any] = {
        "request_id": f"tandem-{number}",
        "new_token_ids": list(tokens),
        "finish_reason": end,
        "new_logprobs": None,
        "new_prompt_logprobs_tensors": None,
        "kv_transfer_params": None,
        "prefill_stats": None,
        "events": None,
    }
    return SimpleNamespace(**fields | given)


def computed(local: int = 0, external: int = 0) -> Any:
    """PrefillStats."""
    return SimpleNamespace(num_local_cached_tokens=local, num_external_cached_tokens=external)
