"""What SGLang's rows become: one step of all requests that are still open, handed on at once. No
GPU and no SGLang.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem.engine.base import Delta, Ending, EngineRequest, Role
from tandem.errors import EngineError
from tandem.v1 import common_pb2
from tandem_sglang import requests
from tandem_sglang.outputs import RunningRows
from tandem_sglang.request_stream import RequestStream
from tandem_sglang.traffic import Traffic


class Followed:
    """A process's requests in SGLang, and the steps that came of them."""

    def __init__(self, *numbers: int) -> None:
        none: Any = None
        self.traffic = Traffic(Role.DECODE, none, data_ranks=1, sharers=1)
        for number in numbers:
            self.traffic._streams[requests.rid(number)] = RequestStream(
                EngineRequest(
                    request_id=number, token_ids=[1], sampling=common_pb2.SamplingParams()
                ),
                role=Role.DECODE,
                manager=None,
                sglang_request=None,
                emit=self.traffic._emit,
            )
        self.steps: list[list[tuple[int, list[int]]]] = []
        self.following: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self.following = asyncio.create_task(
            self.traffic.hand_on(
                lambda step: self.steps.append(
                    [(delta.request_id, list(delta.token_ids)) for delta in step]
                )
            )
        )
        await asyncio.sleep(0)

    def rows(self, *numbers: int) -> None:
        """A token for each, which is the request's number."""
        count = len(numbers)
        rids = [requests.rid(number) for number in numbers]
        tokens = [[number] for number in numbers]
        self.traffic._take(RunningRows(rids, tokens, [0] * count, [0] * count, [()] * count))


async def test_rows_are_one_step_in_the_turn_in_which_they_come() -> None:
    followed = Followed(4, 5)
    await followed.begin()
    followed.rows(4, 5)
    assert followed.steps == [[(4, [4]), (5, [5])]]


async def test_rows_of_whoever_has_ended_or_is_to_end_are_passed_over() -> None:
    followed = Followed(4, 5)
    followed.traffic._streams[requests.rid(5)].cancel()
    await followed.begin()
    followed.rows(3, 4, 5)
    assert followed.steps == [[(4, [4])]]


async def test_what_ended_before_rows_came_is_told_before_them() -> None:
    followed = Followed(4, 5)
    await followed.begin()
    followed.traffic._emit(Delta(4, (), end=Ending.STOP))
    followed.rows(5)
    assert followed.steps == [[(4, []), (5, [5])]]


@pytest.mark.parametrize("dies", [True, False])
async def test_whoever_hands_on_is_told_of_the_end(dies: bool) -> None:
    followed = Followed(4)
    await followed.begin()
    assert followed.following is not None
    followed.rows(4)
    if dies:
        followed.traffic.die("a scheduler ended")
        with pytest.raises(EngineError, match="a scheduler ended"):
            await followed.following
    else:
        await followed.traffic.close()
        await followed.following
    followed.rows(4)
    assert followed.steps == [[(4, [4])]]
