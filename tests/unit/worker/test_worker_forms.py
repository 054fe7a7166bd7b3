"""What asks for a form reaches the engine once that was compiled elsewhere, and never if not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from scripted_engine import ScriptedEngine

from tandem.engine.base import Delta, Ending, EngineDescription, EngineRequest
from tandem.errors import (
    DrainingError,
    EngineError,
    InvalidRequestError,
    QueueFullError,
    TandemError,
    UnsupportedError,
)
from tandem.logits.forms.workshop import FormPlan, Uncompiled, Workshop, WorkshopLimits
from tandem.logits.model import Model
from tandem.logits.registry import Registry
from tandem.logits.settings import parse
from tandem.logits.spec import LogitsProcessorSpec, SpecReader
from tandem.v1 import common_pb2
from tandem.worker.forms import FormedEngine

REGISTRY = Registry.from_settings(parse({"choice": {"use": "choice", "clients": "none"}}))
WAIT_SECONDS = 60.0


class Workbench(Workshop):
    """Compiles what the test says, when it says so."""

    def __init__(self) -> None:
        plan = FormPlan(compiler="", arguments={}, used_here=frozenset())
        super().__init__(plan, Model(vocabulary=8), WorkshopLimits())
        self.asked: dict[str, asyncio.Future[None]] = {}
        self.forms: dict[str, Uncompiled] = {}
        self.tenants: list[str] = []
        self.stands: asyncio.Event | None = None

    def start(self) -> None:
        self.stands = asyncio.Event()

    async def started(self) -> None:
        assert self.stands is not None
        await self.stands.wait()

    async def compiled(
        self, key: str, make: Callable[[], Uncompiled], tenant: str = ""
    ) -> Uncompiled:
        self.tenants.append(tenant)
        if key not in self.asked:
            self.forms[key] = make()
            self.asked[key] = asyncio.get_running_loop().create_future()
        await asyncio.shield(self.asked[key])
        if self.cache.get(key) is None:
            self.cache.put(key, self.forms[key], 1)
        return self.forms[key]


class Rig:
    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.shop = Workbench()
        self.said: list[Delta] = []
        self.formed = FormedEngine(self.engine, REGISTRY, self.shop, self.said.extend)

    async def turns(self) -> None:
        """Let what can go on go on."""
        for _ in range(10):
            await asyncio.sleep(0)

    def answer(self, error: TandemError | None = None) -> None:
        """To the one form that is being compiled."""
        (asked,) = [each for each in self.shop.asked.values() if not each.done()]
        if error is None:
            asked.set_result(None)
        else:
            asked.set_exception(error)

    @property
    def submitted(self) -> list[int]:
        return [request.request_id for request in self.engine.submitted]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    await asyncio.wait_for(made.formed.close(), WAIT_SECONDS)


def request(
    number: int, *processors: tuple[str, str], seconds: float = 300.0, tenant: str = ""
) -> EngineRequest:
    message = common_pb2.LogitsSpec(
        processors=[
            common_pb2.LogitsProcessor(name=name, args_json=args) for name, args in processors
        ]
    )
    return EngineRequest(
        request_id=number,
        token_ids=[1],
        sampling=common_pb2.SamplingParams(),
        logits=SpecReader().read(message),
        timeout_seconds=seconds,
        tenant=tenant,
    )


REGEX = ("regex", '{"pattern": "a+"}')
OTHER = ("regex", '{"pattern": "b+"}')
BIAS = ("bias", '{"bias": {"1": 1}}')


async def test_it_has_started_once_forms_can_be_compiled_which_begins_before_the_engine(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = rig.engine.start

    async def started_later() -> EngineDescription:
        assert rig.shop.stands is not None
        return await start()

    monkeypatch.setattr(rig.engine, "start", started_later)
    starting = asyncio.create_task(rig.formed.start())
    await rig.turns()
    assert rig.shop.stands is not None
    assert not starting.done()
    rig.shop.stands.set()
    assert await asyncio.wait_for(starting, WAIT_SECONDS) == await start()


async def test_requests_without_a_form_pass_those_that_wait(rig: Rig) -> None:
    rig.formed.submit(request(1, REGEX))
    rig.formed.submit(request(2))
    rig.formed.submit(request(3, BIAS))
    await rig.turns()
    assert rig.submitted == [2, 3]
    assert (rig.formed.load().open_legs, rig.formed.load().waiting_legs) == (3, 1)
    rig.answer()
    await rig.turns()
    assert rig.submitted == [2, 3, 1]
    assert rig.formed.load().waiting_legs == 0
    (only,) = rig.said
    assert (only.request_id, only.token_ids, only.end) == (1, (), None)
    assert only.times is not None
    assert only.times.form > 0


async def test_the_engine_gets_the_compiled_form_and_what_is_left_of_the_time(rig: Rig) -> None:
    rig.formed.submit(request(1, BIAS, REGEX, seconds=5.0))
    await rig.turns()
    rig.answer()
    await rig.turns()
    (given,) = rig.engine.submitted
    assert given.logits is not None
    plain, form = given.logits.named()
    assert plain.ready is None
    assert form.ready is not None
    assert 0 < given.timeout_seconds < 5.0


async def test_the_sequences_of_a_request_share_one_compilation(rig: Rig) -> None:
    for number in range(128):
        rig.formed.submit(request(number, REGEX))
    await rig.turns()
    rig.answer()
    await rig.turns()
    assert rig.submitted == list(range(128))
    rig.formed.submit(request(128, REGEX))
    assert rig.submitted[-1] == 128  # at once: it is known
    assert len(rig.shop.forms) == 1


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (InvalidRequestError("this form is too dear"), False),
        (QueueFullError("64 forms wait"), True),
        (EngineError("lost"), True),
    ],
)
async def test_a_form_that_does_not_pass_ends_its_request_with_its_own_error(
    rig: Rig, error: TandemError, retryable: bool
) -> None:
    rig.formed.submit(request(1, BIAS, REGEX))
    rig.formed.submit(request(2, BIAS, REGEX))
    await rig.turns()
    rig.answer(error)
    await rig.turns()
    assert not rig.submitted
    assert [(delta.request_id, delta.end) for delta in rig.said] == [
        (1, Ending.FAILED),
        (2, Ending.FAILED),
    ]
    first, second = (delta.error for delta in rig.said)
    assert first is not None
    assert first is not second
    assert (type(first), first.message, first.param) == (
        type(error),
        error.message,
        "logits_processors[1]",
    )
    assert rig.said[0].retryable is retryable
    assert rig.formed.load().open_legs == 0


async def test_a_cancelled_request_lets_go_of_its_wait_and_the_engine_never_sees_it(
    rig: Rig,
) -> None:
    rig.formed.submit(request(1, REGEX))
    rig.formed.submit(request(2, REGEX))
    await rig.turns()
    rig.formed.cancel(1)
    rig.formed.cancel(1)
    assert [(delta.request_id, delta.end) for delta in rig.said] == [(1, Ending.CANCELLED)]
    rig.answer()
    await rig.turns()
    assert rig.submitted == [2]
    assert rig.engine.cancelled == [1]  # the second time it was the engine's to ignore


async def test_what_the_engine_refuses_later_is_told_as_an_end(rig: Rig) -> None:
    rig.formed.submit(request(1, REGEX))
    await rig.turns()
    rig.engine.refuse = DrainingError("no more")
    rig.answer()
    await rig.turns()
    assert [delta.error for delta in rig.said] == [rig.engine.refuse]


async def test_a_form_that_clients_may_not_name_is_not_compiled(rig: Rig) -> None:
    rig.formed.submit(request(1, ("choice", '{"texts": ["a"]}')))
    await rig.turns()
    (delta,) = rig.said
    assert isinstance(delta.error, UnsupportedError)
    assert not rig.submitted


async def test_a_form_waits_in_the_line_of_its_clients_key(rig: Rig) -> None:
    rig.formed.submit(request(1, REGEX, tenant="them"))
    await rig.turns()
    assert rig.shop.tenants == ["them"]


async def test_a_refused_form_is_refused_at_once_again(rig: Rig) -> None:
    asked = request(1, REGEX)
    assert asked.logits is not None
    rig.shop._refuse(_key_of(asked.logits), "too dear")
    with pytest.raises(InvalidRequestError, match="too dear") as error:
        rig.formed.submit(asked)
    assert error.value.param == "logits_processors[0]"


async def test_more_processors_than_may_be_are_refused_before_any_is_looked_at(rig: Rig) -> None:
    with pytest.raises(InvalidRequestError, match="at most 16"):
        rig.formed.submit(request(1, *[OTHER] * 17))
    assert not rig.shop.asked


def _key_of(spec: LogitsProcessorSpec) -> str:
    (entry,) = spec.named()
    return entry.key
