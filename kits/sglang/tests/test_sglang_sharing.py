"""What a further process joins SGLang's engine with, and what is ended when it is gone."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tandem_sglang import requests, sharing
from tandem_sglang.additions import TokenAddresses
from tandem_sglang.launch import Launched
from tandem_sglang.sharing import SharedEngine, Ticket
from tandem_sglang.token_sockets import Replies, TokenSockets

pytestmark = pytest.mark.promise("S5-450")


@dataclass
class PortArgs:
    tokenizer_ipc_name: str = "first's outputs"
    scheduler_input_ipc_name: str = "first's requests"
    instance_id: str = "this engine"


def launched() -> Any:
    dispatched: list[str] = []
    return Launched(
        engine=SimpleNamespace(port_args=PortArgs(), server_args={"resolved": True}),
        schedulers=["not to be pickled", lambda: None],
        manager=SimpleNamespace(
            max_req_input_len=77, _dispatch_to_scheduler=dispatched.append, dispatched=dispatched
        ),
        arguments={"page_size": 1},
        capacity=1000,
        messages=SimpleNamespace(AbortReq=lambda rid: rid),
        processor="ours",
        version="0.5.21",
    )


def opened(processes: int) -> tuple[SharedEngine, Any]:
    engine, started = SharedEngine(processes), launched()
    engine.opened(started)
    return engine, started


async def test_a_ticket_says_all_that_a_process_needs_and_which_sockets_are_its_own() -> None:
    engine, started = opened(3)
    second, third = engine.addresses
    ticket: Ticket = pickle.loads(engine.ticket(3))
    joined = ticket.launched
    assert (ticket.server_args, joined.arguments) == ({"resolved": True}, {"page_size": 1})
    assert (joined.capacity, ticket.max_req_input_len) == (1000, 77)
    assert (joined.processor, joined.version) == ("ours", "0.5.21")
    assert ticket.port_args == PortArgs(third.outputs, third.requests)
    assert started.engine.port_args == PortArgs(), "the first's own stay"
    assert len({second.requests, second.outputs, third.requests, third.outputs}) == 4
    await engine.close()


async def test_its_sockets_are_for_nobody_else_on_the_machine_and_go_with_the_engine() -> None:
    engine, _ = opened(2)
    (second,) = engine.addresses
    folder = Path(second.requests.removeprefix("ipc://")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    await engine.close()
    assert not folder.exists()


async def test_each_start_of_a_process_has_names_of_its_own() -> None:
    engine, _ = opened(3)
    begins = [pickle.loads(engine.ticket(number)).begins for number in (2, 3, 2)]
    assert begins == ["tandem-02-000001-", "tandem-03-000001-", "tandem-02-000002-"]
    names = [requests.rid(7, each) for each in (*begins, requests.FIRST)]
    assert len({len(name) for name in names}) == 1
    assert [requests.process_of(name) for name in names] == [2, 3, 2, 1]
    await engine.close()


@pytest.mark.promise("S5-451")
async def test_all_that_a_process_had_open_is_aborted_again_and_again_for_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process that takes its place is not."""
    monkeypatch.setattr(sharing, "ABORT_AGAIN_SECONDS", 0.001)
    monkeypatch.setattr(sharing, "ABANDON_SECONDS", 0.005)
    engine, started = opened(2)
    engine.ticket(2)
    engine.left(2)
    engine.ticket(2)
    async with asyncio.timeout(30):
        await asyncio.gather(*engine._aborts._running)
    assert started.manager.dispatched == ["tandem-02-000001-"] * 5
    await engine.close()


async def test_nothing_is_aborted_once_the_engine_closes() -> None:
    engine, started = opened(2)
    engine.ticket(2)
    engine.left(2)
    await engine.close()
    assert len(started.manager.dispatched) <= 1


class Recorder:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send_output(self, output: Any, recv_obj: object = None) -> None:
        self.sent.append((output, recv_obj))


def test_an_answer_goes_to_the_process_whose_request_it_names() -> None:
    senders = [Recorder(), Recorder()]
    replies = Replies(senders)
    of_first, of_second = requests.rid(1), requests.rid(1, requests.names(2, 5))
    answers: list[Any] = [
        SimpleNamespace(rid=each) for each in (of_first, of_second, None, "", "HEALTH_CHECK_1")
    ]
    answers.append(SimpleNamespace())
    for answer in answers:
        replies.send_output(answer, "asked")
    assert senders[1].sent == [(answers[1], "asked")]
    assert [answer for answer, _ in senders[0].sent] == [answers[0], *answers[2:]]


@dataclass(frozen=True)
class Channels:
    recv_from_tokenizer: Any
    send_to_tokenizer: Any


def made(takes_requests: bool, further: int, inbox: bool = True) -> tuple[Any, list[str], Any]:
    connected: list[str] = []
    addresses = [TokenAddresses(f"in-{number}", f"out-{number}") for number in range(further)]
    channels = Channels(
        SimpleNamespace(connect=connected.append) if inbox else None, SimpleNamespace(socket="own")
    )
    sockets = TokenSockets(addresses)
    make: Any = lambda beside, address: (beside, address)  # noqa: E731
    got = sockets.open(channels, make, takes_requests=takes_requests)
    return got, connected, (channels, sockets)


def test_a_scheduler_of_one_process_is_left_as_it_is() -> None:
    got, connected, (channels, sockets) = made(True, 0)
    assert got is channels
    assert (connected, sockets.senders("first")) == ([], ["first"])


def test_a_rank_without_sockets_gets_none() -> None:
    got, _, (channels, sockets) = made(True, 2, inbox=False)
    assert got is channels
    assert sockets.senders("first") == ["first"]


@pytest.mark.parametrize("takes_requests", [True, False])
def test_requests_come_here_unless_a_controller_gives_them_out(takes_requests: bool) -> None:
    got, connected, (channels, sockets) = made(takes_requests, 2)
    assert connected == (["in-0", "in-1"] if takes_requests else [])
    further = [("own", "out-0"), ("own", "out-1")]
    assert sockets.senders("first") == ["first", *further]
    assert got.send_to_tokenizer._senders == [channels.send_to_tokenizer, *further]
