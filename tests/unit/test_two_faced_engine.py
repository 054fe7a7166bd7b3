"""One engine with a face for each phase: legs that come, end and fail in every order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tandem.engine import factory
from tandem.engine.base import Delta, Ending, EngineRequest, EngineSettings, Role
from tandem.engine.faces import ENDPOINT, Face, TwoFacedEngine
from tandem.errors import (
    DeadlineError,
    EngineError,
    InvalidRequestError,
    KvTransferError,
    RequestError,
)
from tandem.logits.registry import Registry
from tandem.v1 import common_pb2

SECONDS = 60.0
PROMPT = [101, 102, 103]


class Faces:
    """Both faces of a sim engine, and what each has brought."""

    def __init__(self, model_path: Path, **options: Any) -> None:
        settings = EngineSettings(
            model_path=model_path,
            model_name="tiny",
            max_sequences=4,
            host="127.0.0.1",
            options={"step_ms": 0} | options,
            registry=Registry.builtin(),
        )
        self.engine = TwoFacedEngine(factory.create)
        self.prefill = self.engine.face("sim", Role.PREFILL, settings)
        self.decode = self.engine.face("sim", Role.DECODE, settings)
        self.brought: dict[str, list[Delta]] = {"prefill": [], "decode": []}
        self.deaths: list[EngineError] = []

    async def follow(self, name: str, face: Face) -> None:
        try:
            await face.hand_on(self.brought[name].extend)
        except EngineError as error:
            self.deaths.append(error)

    async def ended(self, name: str, request_id: int) -> Delta:
        """The last delta of a leg."""
        async with asyncio.timeout(SECONDS):
            while True:
                for delta in self.brought[name]:
                    if delta.request_id == request_id and delta.end is not None:
                        return delta
                await asyncio.sleep(0.005)

    def tokens(self, name: str, request_id: int) -> list[int]:
        of = [each for each in self.brought[name] if each.request_id == request_id]
        return [token for delta in of for token in delta.token_ids]


@pytest.fixture
async def faces(model_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Faces]:
    made = Faces(model_path, **getattr(request, "param", {}))
    descriptions = [await made.prefill.start(), await made.decode.start()]
    assert [each.kv_endpoint for each in descriptions] == [ENDPOINT, ""]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(made.follow("prefill", made.prefill))
        tasks.create_task(made.follow("decode", made.decode))
        yield made
        await made.prefill.close()
        await made.decode.close()
    assert made.prefill.load().kv_tokens_used == 0
    assert not made.engine._rooms


def leg(request_id: int, room: int, **changes: Any) -> EngineRequest:
    sampling = common_pb2.SamplingParams(max_tokens=6, ignore_eos=True, top_k=-1, top_p=1.0)
    sampling.MergeFrom(changes.pop("sampling", common_pb2.SamplingParams()))
    fields = {"request_id": request_id, "token_ids": PROMPT, "sampling": sampling, "room": room}
    return EngineRequest(**fields | changes)


SLOW = pytest.mark.parametrize("faces", [{"step_ms": 50, "prefill_base_ms": 50}], indirect=True)


@pytest.mark.parametrize("first", ["prefill", "decode"])
async def test_both_legs_are_one_request_whichever_comes_first(faces: Faces, first: str) -> None:
    order = [(faces.prefill, leg(1, 7)), (faces.decode, leg(9, 7, kv_peer=ENDPOINT))]
    for face, request in order if first == "prefill" else order[::-1]:
        face.submit(request)
    assert (await faces.ended("decode", 9)).end is Ending.LENGTH
    prefill = await faces.ended("prefill", 1)
    assert prefill.end is Ending.LENGTH
    tokens = faces.tokens("decode", 9)
    assert len(tokens) == 6
    assert list(prefill.token_ids) == tokens[:1]


async def test_sequences_with_equal_request_ids_of_both_workers_do_not_meet(faces: Faces) -> None:
    for number in (1, 2, 3):
        prompt = [*PROMPT, number]
        faces.prefill.submit(leg(number, 10 + number, token_ids=prompt))
        faces.decode.submit(leg(4 - number, 10 + number, token_ids=prompt))
    firsts = {number: (await faces.ended("prefill", number)).token_ids[0] for number in (1, 2, 3)}
    for number in (1, 2, 3):
        await faces.ended("decode", 4 - number)
        assert faces.tokens("decode", 4 - number)[0] == firsts[number]


async def test_log_probabilities_of_the_first_token_are_prefills_too(faces: Faces) -> None:
    wanted = common_pb2.SamplingParams(logprobs=2)
    faces.prefill.submit(leg(1, 7, sampling=wanted))
    faces.decode.submit(leg(1, 7, sampling=wanted))
    await faces.ended("decode", 1)
    prefill = (await faces.ended("prefill", 1)).logprobs
    decode = faces.brought["decode"][0].logprobs
    assert prefill == decode
    assert prefill is not None
    assert len(prefill.chosen) == len(prefill.top) == 1


@SLOW
@pytest.mark.parametrize("cancelled", ["prefill", "decode"])
async def test_a_leg_that_is_cancelled_takes_the_other_along(faces: Faces, cancelled: str) -> None:
    faces.prefill.submit(leg(1, 7))
    faces.decode.submit(leg(2, 7))
    face, request_id = (faces.prefill, 1) if cancelled == "prefill" else (faces.decode, 2)
    face.cancel(request_id)
    ends = {"prefill": await faces.ended("prefill", 1), "decode": await faces.ended("decode", 2)}
    assert ends.pop(cancelled).end is Ending.CANCELLED
    (other,) = ends.values()
    assert (other.end, other.retryable) == (Ending.FAILED, True)
    assert isinstance(other.error, KvTransferError)


@SLOW
async def test_decode_goes_on_and_is_cancelled_after_prefill_has_ended(faces: Faces) -> None:
    faces.prefill.submit(leg(1, 7))
    faces.decode.submit(leg(2, 7))
    assert (await faces.ended("prefill", 1)).end is Ending.LENGTH
    faces.prefill.cancel(1)
    faces.decode.cancel(2)
    assert (await faces.ended("decode", 2)).end is Ending.CANCELLED
    assert len([each for each in faces.brought["prefill"] if each.end]) == 1


async def test_a_leg_that_waits_alone_can_be_cancelled_and_has_a_deadline(faces: Faces) -> None:
    faces.prefill.submit(leg(1, 7))
    faces.prefill.cancel(1)
    assert (await faces.ended("prefill", 1)).end is Ending.CANCELLED
    faces.decode.submit(leg(2, 8, timeout_seconds=0.02))
    late = await faces.ended("decode", 2)
    assert isinstance(late.error, DeadlineError)


@pytest.mark.parametrize("faces", [{"step_ms": 5}], indirect=True)
async def test_one_leg_has_no_more_time_than_the_other(faces: Faces) -> None:
    long = common_pb2.SamplingParams(max_tokens=3000)
    faces.prefill.submit(leg(1, 7, timeout_seconds=0.05, sampling=long))
    faces.decode.submit(leg(2, 7, sampling=long))
    assert isinstance((await faces.ended("decode", 2)).error, DeadlineError)


async def test_what_the_engine_refuses_fails_both_legs(faces: Faces) -> None:
    faces.prefill.submit(leg(1, 7, token_ids=[10**6]))
    with pytest.raises(RequestError):
        faces.decode.submit(leg(2, 7, token_ids=[10**6]))
    assert isinstance((await faces.ended("prefill", 1)).error, RequestError)
    assert not faces.engine._rooms


@SLOW
async def test_a_room_is_not_joined_twice(faces: Faces) -> None:
    long = common_pb2.SamplingParams(max_tokens=3000)
    faces.prefill.submit(leg(1, 7, sampling=long))
    with pytest.raises(InvalidRequestError):
        faces.prefill.submit(leg(2, 7))
    faces.decode.submit(leg(1, 7, sampling=long))
    with pytest.raises(InvalidRequestError):
        faces.decode.submit(leg(2, 7))
    await faces.ended("prefill", 1)
    with pytest.raises(InvalidRequestError):
        faces.prefill.submit(leg(3, 7))
    with pytest.raises(InvalidRequestError):
        faces.prefill.submit(leg(4, 0))


@SLOW
async def test_an_engine_that_dies_ends_the_steps_of_both(faces: Faces) -> None:
    faces.prefill.submit(leg(1, 7))
    faces.decode.submit(leg(1, 7))
    faces.engine.whole._crashed(RuntimeError("on purpose"))  # type: ignore[attr-defined]
    async with asyncio.timeout(SECONDS):
        while len(faces.deaths) < 2:  # noqa: ASYNC110 - the followers write it down
            await asyncio.sleep(0.005)


@SLOW
async def test_what_is_open_ends_where_the_engine_is_closed(faces: Faces) -> None:
    faces.prefill.submit(leg(1, 7))
    faces.decode.submit(leg(2, 7))
    faces.decode.submit(leg(3, 8))
    await faces.prefill.close()
    for name, request_id in (("prefill", 1), ("decode", 2), ("decode", 3)):
        assert (await faces.ended(name, request_id)).end is Ending.CANCELLED


async def test_only_one_face_tells_the_engines_figures(faces: Faces) -> None:
    faces.prefill.submit(leg(1, 7))
    faces.decode.submit(leg(1, 7))
    await faces.ended("decode", 1)
    assert faces.prefill.figures().cpu_seconds == 0.0
    assert faces.decode.figures().cpu_seconds > 0.0
