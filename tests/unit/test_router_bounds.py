"""The router's timers, settings, drafts and metrics."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import sys
import urllib.request
from typing import Any

import msgspec
import pytest
from one_case import one_case
from prometheus_client import generate_latest
from router_messages import messages, told
from simulated import submits

from tandem.byte_budget import ByteBudget
from tandem.config import load
from tandem.errors import (
    ConfigError,
    InvalidRequestError,
    RequestError,
    SlowClientError,
    WorkerError,
)
from tandem.free_ports import FreePorts
from tandem.message_limits import MAX_KEPT_BYTES
from tandem.v1 import common_pb2, router_pb2, worker_pb2
from tandem_router import generate, metrics, translate
from tandem_router.config import RouterConfig
from tandem_router.core import actions, events
from tandem_router.core.machine import RouterCore
from tandem_router.core.timers import Timers
from tandem_router.core.values import Bounds, Fingerprint, Phase, Profile
from tandem_router.discovery.static import StaticDiscovery
from tandem_router.generate import Answers
from tandem_router.links import MESSAGE_BYTES, FrontendLink, Patience, WorkerLink
from tandem_router.permissions import Permissions
from tandem_router.relay import Relay
from tandem_router.server import build_core
from tandem_router.workers import Workers


def test_timers_give_each_item_once_and_never_early_or_late() -> None:
    draw = random.Random(1)
    timers: Timers[int] = Timers()
    times = {item: draw.uniform(0, 20) for item in range(500)}
    for item, at in times.items():
        timers.set(item, at)
    cleared = set(draw.sample(sorted(times), 200))
    for item in cleared:
        timers.clear(item, times[item])
    now, given = 0.0, []
    while now < 21:
        now += draw.uniform(0, 0.3)
        due = timers.due(now)
        assert all(times[item] <= now for item in due)
        given += due
        assert not [each for each in timers if times[each] <= now]
    assert sorted(given) == sorted(times.keys() - cleared)


_DNS: dict[str, Any] = {"discovery": "dns", "decode_routers": 1}
_KUBERNETES: dict[str, Any] = {
    "discovery": "kubernetes",
    "prefill_service": "p",
    "decode_service": "d",
    "decode_routers": 1,
}


@one_case(
    ("settings", "names"),
    [
        ({"max_queue": 0}, "max_queue"),
        ({"settle_seconds": 0.0}, "settle_seconds"),
        ({"drain_seconds": -1.0}, "drain_seconds"),
        ({"default_timeout_seconds": 7200.0}, "default_timeout_seconds"),
        ({"prefill": ("a:1",), "decode": ("a:1",)}, "a:1"),
        ({"prefill": ("a:1", "b", "c:port")}, "b, c:port"),
        ({"discovery": "kubernetes", "prefill_service": "p"}, "decode_service"),
        (
            {"discovery": "kubernetes", "prefill_service": "p", "decode_service": "p"},
            "each another Service",
        ),
        (
            {
                "discovery": "kubernetes",
                "prefill_service": "p",
                "decode_service": "d",
                "prefill": ("a:1",),
            },
            "prefill, decode and workers are not used",
        ),
        ({"prefill_service": "p"}, "discovery: kubernetes only"),
        ({"decode_routers": -1}, "decode_routers"),
        ({"decode_routers_from": -1}, "decode_routers_from"),
        ({"routers": ("a",)}, "routers are written host:port; not so: a"),
        ({"routers": ("a:1", "a:1")}, "routers are listed twice: a:1"),
        ({"decode_routers": 1}, "needs routers"),
        ({"decode_routers": 1, "routers": ("a:1",)}, "127.0.0.1:7000 is not one of routers"),
        (
            {"decode_routers": 1, "routers": ("a:1",), "advertise_host": "a"},
            "a:7000 is not one of routers: set advertise_host",
        ),
        (
            {"decode_routers": 1, "routers": ("127.0.0.1:7000",), "router_service": "r"},
            "no router_service",
        ),
        (_DNS, "needs routers"),
        (_DNS | {"routers": ("a:1",), "advertise_host": "a"}, "a is no IP address"),
        (_DNS | {"routers": ("a:1",), "listen": "0.0.0.0:1"}, "0.0.0.0 is no IP address"),
        (_DNS | {"routers": ("a:1",), "listen": "[::]:1"}, ":: is no IP address"),
        (_DNS | {"routers": ("a:1",), "advertise_host": "fd00::0:1"}, "set advertise_host"),
        (_KUBERNETES, "needs router_service"),
        (_KUBERNETES | {"router_service": "d"}, "another Service"),
        (_KUBERNETES | {"router_service": "r", "routers": ("a:1",)}, "no routers"),
        (_KUBERNETES | {"router_service": "r", "advertise_host": "a"}, "set advertise_host"),
    ],
)
def test_settings_that_cannot_serve_are_refused_by_name(
    settings: dict[str, Any], names: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(names)):
        RouterConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "own"),
    [
        ({"routers": ("127.0.0.1:7000", "b:1"), "decode_routers": 1}, "127.0.0.1:7000"),
        (
            {"routers": ("a:1",), "decode_routers": 1, "listen": "[::]:1", "advertise_host": "a"},
            "a:1",
        ),
        (_DNS | {"routers": ("a:1",), "advertise_host": "10.0.0.1"}, "10.0.0.1:7000"),
        (_DNS | {"routers": ("a:1",), "listen": "[fd00::1]:1"}, "[fd00::1]:1"),
        (_KUBERNETES | {"router_service": "r", "advertise_host": "fd00::1"}, "[fd00::1]:7000"),
        (_KUBERNETES | {"decode_routers": 0, "advertise_host": "pod"}, "pod:7000"),
        ({"routers": ("a:1",), "router_service": "r"}, "127.0.0.1:7000"),
    ],
)
def test_a_router_knows_its_address_among_the_others(settings: dict[str, Any], own: str) -> None:
    """Without decode_routers what else is set of it is not looked at."""
    assert RouterConfig(**settings).own_address == own


def test_worker_addresses_come_as_lists_from_a_flag() -> None:
    argv = ["--prefill=a:1,b:2", "--decode", "c:3"]
    config = load(RouterConfig, prog="tandem-router", argv=argv)
    assert (config.prefill, config.decode) == (("a:1", "b:2"), ("c:3",))


# --- drafts ----------------------------------------------------------------------------------


def _start(leg: int, size: int = 1) -> actions.StartLeg:
    return actions.StartLeg(
        worker="w",
        command=worker_pb2.StartLeg(leg=leg, destination=1, sequence=1, room=1, timeout_ms=1),
        task=b"x" * size,
    )


async def test_commands_of_one_moment_leave_as_one_message() -> None:
    link = WorkerLink()
    link.start(_start(1))
    link.start(_start(2))
    link.release(actions.ReleaseLeg("w", 3))
    link.cancel(actions.CancelLeg("w", 4, "cancelled"))
    command = await anext(link.outbox.messages())
    assert [each.leg for each in command.start] == [1, 2]
    assert (list(command.release), [each.leg for each in command.cancel]) == ([3], [4])


async def test_a_start_never_leaves_after_its_cancel() -> None:
    link = WorkerLink()
    for leg in range(5):
        link.start(_start(leg, MESSAGE_BYTES // 2))
    link.cancel(actions.CancelLeg("w", 4, "cancelled"))
    messages = link.outbox.messages()
    seen: list[int] = []
    while True:
        command = await anext(messages)
        assert command.ByteSize() < 2 * MESSAGE_BYTES
        seen += [each.leg for each in command.start]
        if command.cancel:
            break
    assert seen == [0, 1, 2, 3, 4]


def _shared(leg: int, task: bytes, *, request: int = 7, overlay: bytes = b"") -> actions.StartLeg:
    return msgspec.structs.replace(_start(leg), task=task, request=request, overlay=overlay)


@pytest.mark.promise("S6-141")
async def test_a_task_of_many_legs_is_said_to_a_worker_once() -> None:
    link, task = WorkerLink(), b"t" * 90_000
    for leg in range(128):
        link.start(_shared(leg, task))
    link.start(_shared(128, task, overlay=b"again"))
    link.start(_start(129))
    command = await anext(link.outbox.messages())
    assert [(each.number, each.task) for each in command.keep] == [(7, task)]
    assert {each.kept_task for each in command.start[:129]} == {7}
    assert [each.task for each in command.start[127:]] == [b"", b"again", b"x"]
    assert command.ByteSize() < 110_000
    link.forget(7)
    link.forget(8)
    assert list((await anext(link.outbox.messages())).forget) == [7]
    link.start(_shared(130, task))
    assert len((await anext(link.outbox.messages())).keep) == 1


async def test_what_has_not_left_is_known_to_be_unsent() -> None:
    link = WorkerLink()
    for leg in (1, 2, 3):
        link.start(_start(leg, MESSAGE_BYTES // 2))
    assert link.unsent() == {1, 2, 3}
    await anext(link.outbox.messages())
    assert link.unsent() == {3}


async def test_a_worker_that_keeps_no_tasks_is_said_each() -> None:
    link = WorkerLink()
    link.keeps_tasks = False
    link.start(_shared(1, b"task", overlay=b" and more"))
    command = await anext(link.outbox.messages())
    assert (len(command.keep), command.start[0].kept_task) == (0, 0)
    assert command.start[0].task == b"task and more"


async def test_tasks_beyond_what_a_worker_keeps_are_said_for_each_leg() -> None:
    link, size = WorkerLink(), MAX_KEPT_BYTES // 5 * 2
    tasks = {request: bytes([request]) * size for request in (1, 2, 3)}
    for request, task in tasks.items():
        link.start(_shared(request, task, request=request))
    messages, kept, starts = link.outbox.messages(), [], []
    while len(starts) < 3:
        command = await anext(messages)
        kept += [each.number for each in command.keep]
        starts += command.start
    assert kept == [1, 2]
    assert [(each.kept_task, len(each.task)) for each in starts] == [(1, 0), (2, 0), (0, size)]


def test_only_a_peer_that_takes_nothing_for_long_is_out_of_patience() -> None:
    patience = Patience()
    assert not patience.over(100.0, 5.0)
    assert not patience.over(102.0, 5.0)
    patience.moved = True
    assert not patience.over(106.0, 5.0)
    assert not patience.over(120.0, 5.0), "the router itself was asleep"
    assert patience.over(120.5, 5.0)


@pytest.mark.promise("S6-141")
async def test_no_number_of_starts_ends_a_worker_s_stream() -> None:
    """What one moment brings is more than a socket takes; it leaves in pieces."""
    link, task = WorkerLink(), b"x" * MESSAGE_BYTES
    for leg in range(1_000):
        link.start(msgspec.structs.replace(_start(leg), task=task))
    messages, seen = link.outbox.messages(), 0
    while link.waits:
        assert not link.patience.over(0.0, 5.0)
        seen += len((await anext(messages)).start)
    assert seen == 1_000


@pytest.mark.promise("S6-169")
async def test_a_frontend_is_given_up_past_its_bound_once_it_does_not_read() -> None:
    now = [0.0]
    link = FrontendLink(1_000, ByteBudget(), clock=lambda: now[0])

    def given_up_by(*times: float) -> bool:
        for each in times:
            now[0] = each
            link.add_payload(1, b"x" * 300)
        return link.failure is not None

    assert not given_up_by(0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    await anext(link.outbox.messages())
    assert not given_up_by(7.0, 7.0, 7.0, 7.0, 8.0, 11.0)
    assert given_up_by(13.0)
    assert isinstance(link.failure, SlowClientError)
    assert link.over.is_set()


async def test_a_frontend_that_is_given_up_leaves_nothing_to_send_for_ever() -> None:
    link = FrontendLink(1_000, ByteBudget(), clock=lambda: 0.0)
    link.add_payload(1, b"x" * 2 * MESSAGE_BYTES)
    assert link.failure is not None
    link.close()
    # It never suspends, so a message that is asked for again and again would stop the loop.
    takes = 0

    def counted() -> None:
        nonlocal takes
        takes += 1
        assert takes < 10

    take = link.outbox._take
    link.outbox._take = lambda: (counted(), take())[1]
    assert [message async for message in link.outbox.messages()] == []


async def test_a_frontend_that_reads_too_slowly_is_given_up_past_four_times_its_bound() -> None:
    link = FrontendLink(1_000, ByteBudget(), clock=lambda: 0.0)
    link.add_payload(1, b"x" * 4_000)
    assert link.failure is None
    link.add_payload(1, b"x")
    assert isinstance(link.failure, SlowClientError)


async def test_ends_with_long_reasons_leave_in_pieces() -> None:
    link = FrontendLink(10 * MESSAGE_BYTES, ByteBudget())
    for sequence in range(20):
        link.add_end(actions.EndSequence(1, sequence, None, "r" * (MESSAGE_BYTES // 4)))
    following, got = messages(link), []
    while len(got) < 20:
        message = await anext(following)
        assert message.ByteSize() < 2 * MESSAGE_BYTES
        got += [each.sequence for each in message.ends]
    assert got == list(range(20))


async def test_a_large_backlog_leaves_once_and_in_order_and_its_ends_after_it() -> None:
    link = FrontendLink(10 * MESSAGE_BYTES, ByteBudget())
    payloads = [bytes([index]) * (MESSAGE_BYTES // 2) for index in range(9)]
    for payload in payloads:
        link.add_payload(1, payload)
    link.add_end(actions.EndSequence(1, 7, None))
    following, got = messages(link), b""
    while True:
        message = await asyncio.wait_for(anext(following), 10)
        assert message.ByteSize() < 2 * MESSAGE_BYTES
        got += message.payload
        if message.ends:
            break
    assert got == b"".join(payloads)


@one_case("size", [0, 1, 127, 128, 16_383, 16_384])
@one_case("worker", [1, 127, 128, 16_384, 2**32 - 1])
def test_a_payload_alone_is_its_worker_s(worker: int, size: int) -> None:
    link = FrontendLink(10 * MESSAGE_BYTES, ByteBudget())
    payload = b"x" * size
    link.add_payload(worker, payload)
    said = router_pb2.RouterMessage(payload=payload, part_worker=[worker], part_bytes=[size])
    assert told(link) == said
    assert link._take() is None


@pytest.mark.promise("S5-561")
async def test_that_a_sequence_runs_is_said_at_once_and_once() -> None:
    link = FrontendLink(1_000, ByteBudget())
    link.add_run(7, 3)
    message = await anext(messages(link))
    assert (list(message.run_sequence), list(message.run_worker)) == ([7], [3])
    assert not message.payload
    link.add_payload(3, b"one")
    message = await anext(messages(link))
    assert (list(message.run_sequence), message.payload) == ([], b"one")


async def test_how_long_a_sequence_waited_is_said_at_once_and_once() -> None:
    link = FrontendLink(1_000, ByteBudget())
    link.add_queue_wait(actions.QueueWait(1, 7, 2.5, "why"))
    message = await anext(messages(link))
    said = router_pb2.QueueWait(sequence=7, seconds=2.5, cause="why")
    assert message == router_pb2.RouterMessage(queue_wait=[said])
    assert link._take() is None


async def test_what_a_sequence_waits_for_is_said_at_once_and_once() -> None:
    link = FrontendLink(1_000, ByteBudget())
    link.add_waiting(actions.TellWait(1, 7, "why"))
    message = await anext(messages(link))
    said = router_pb2.Waiting(sequence=7, what="why")
    assert message == router_pb2.RouterMessage(waiting=[said])
    assert link._take() is None


async def test_what_is_said_beside_payloads_leaves_with_them_and_once() -> None:
    link = FrontendLink(1_000, ByteBudget())
    for _ in range(2):
        link.add_payload(3, b"one")
        link.add_lost(4)
        link.set_fleet(router_pb2.Fleet(expected=["tiny"]))
        link.set_draining()
        link.add_end(actions.EndSequence(1, 7, None))
        message = await anext(messages(link))
        assert (message.payload, list(message.lost), message.draining) == (b"one", [4], True)
        assert (message.fleet.expected, message.ends[0].sequence) == (["tiny"], 7)
        link.add_payload(3, b"two")
        message = await anext(messages(link))
        assert message == router_pb2.RouterMessage(payload=b"two", part_worker=[3], part_bytes=[3])


async def test_a_backlog_is_given_back_with_the_message_by_which_it_left() -> None:
    budget = ByteBudget()
    link = FrontendLink(10 * MESSAGE_BYTES, budget)
    link.add_payload(1, bytes(MESSAGE_BYTES - 1))
    assert budget.held
    await anext(link.outbox.messages())
    assert budget.held == 0


async def test_joined_payloads_are_the_bytes_that_came() -> None:
    link = FrontendLink(1_000, ByteBudget())
    link.add_payload(1, b"\x00one")
    link.add_payload(1, b"two\xff")
    message = await anext(messages(link))
    assert message.payload == b"\x00onetwo\xff"


# --- the relay -------------------------------------------------------------------------------


def test_the_number_of_a_frontend_is_not_given_to_the_next_one() -> None:
    """What is late for the old one would reach the new one."""
    relay = Relay(build_core(RouterConfig()))
    first = relay.frontend_up(FrontendLink(1, ByteBudget()))
    relay.frontend_down(first)
    assert relay.frontend_up(FrontendLink(1, ByteBudget())) != first


# --- what workers say of themselves ----------------------------------------------------------


LIMITS = worker_pb2.Limits(max_sequences=1, context_length=1, vocabulary=1)


def test_fields_of_a_newer_fingerprint_count_too() -> None:
    known = common_pb2.Fingerprint(model="m", page_size=16, protocol_version=1)
    newer = common_pb2.Fingerprint.FromString(known.SerializeToString() + b"\xfa\x01\x02no")
    other = common_pb2.Fingerprint.FromString(known.SerializeToString() + b"\xfa\x01\x02yo")
    prints = [
        translate.profile(
            worker_pb2.WorkerDescription(
                phase=common_pb2.PHASE_DECODE, fingerprint=each, limits=LIMITS
            )
        ).fingerprint
        for each in (known, newer, newer, other)
    ]
    assert prints[0].unknown_fields == b""
    assert prints[0].difference(prints[1]) == "unknown_fields"
    assert prints[1] == prints[2]
    assert prints[1].difference(prints[3]) == "unknown_fields"


# --- Generate's checks -----------------------------------------------------------------------


def _generate(**fields: Any) -> events.Submit:
    sampling = common_pb2.SamplingParams(**{"max_tokens": 4, **fields.pop("sampling", {})})
    timeout_ms, n = fields.pop("timeout_ms", 0), fields.pop("n", 0)
    task = common_pb2.Task(**{"model": "m", "prompt_text": "p", "sampling": sampling, **fields})
    request = router_pb2.GenerateRequest(task=task, n=n, timeout_ms=timeout_ms)
    return generate.submit(
        request,
        frontend=1,
        permissions=Permissions(),
        max_n=8,
        default_timeout_seconds=60.0,
        max_timeout_seconds=100.0,
    )


def test_generate_fills_in_what_was_not_given() -> None:
    made = _generate(sampling={"temperature": 0.5})
    assert (made.message.n, made.message.timeout_ms, made.message.max_tokens) == (1, 60_000, 4)
    sampling = common_pb2.Task.FromString(made.task).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 1.0, -1)
    assert sampling.repetition_penalty == 1.0


@one_case(
    ("fields", "param"),
    [
        ({"n": 9}, "n"),
        ({"timeout_ms": 100_001}, "timeout_ms"),
        ({"prompt_text": ""}, "task.prompt_text"),
        ({"prompt_token_ids": [1]}, "task.prompt_text"),
        ({"trace_id": "XYZ"}, "task.trace_id"),
        ({"sampling": {"max_tokens": 0}}, "task.sampling.max_tokens"),
        ({"sampling": {"temperature": float("nan")}}, "task.sampling.temperature"),
        ({"sampling": {"top_p": 1.5}}, "task.sampling.top_p"),
        ({"sampling": {"top_k": -2}}, "task.sampling.top_k"),
        ({"sampling": {"min_p": 1.0}}, "task.sampling.min_p"),
        ({"sampling": {"presence_penalty": 3.0}}, "task.sampling.presence_penalty"),
    ],
)
def test_generate_refuses_what_cannot_be_and_names_the_field(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        _generate(**fields)
    assert caught.value.param == param


async def test_generate_gives_a_second_report_a_response_of_its_own() -> None:
    answers = Answers(1, 1_000_000, ByteBudget())
    columns = common_pb2.TokenColumns(
        sequence=[1],
        offset=[0],
        token_count=[2],
        text=["hi"],
        token_id=[5, 6],
        report=[
            common_pb2.PhaseReport(sequence=1, phase=common_pb2.PHASE_PREFILL),
            common_pb2.PhaseReport(sequence=1, phase=common_pb2.PHASE_DECODE),
        ],
        finish=[common_pb2.Finish(sequence=1, rows=1)],
    )
    answers.add_run(1, 7)
    answers.add_waiting(actions.TellWait(1, 1, "why"))  # not told
    answers.add_queue_wait(actions.QueueWait(1, 1, 2.5, "why"))
    assert not answers.add_payload(7, columns.SerializeToString())
    waited, *got = [each async for each in answers.responses()]
    assert waited.queue_wait == router_pb2.QueueWait(seconds=2.5, cause="why")
    assert [each.report.phase for each in got] == [
        common_pb2.PHASE_DECODE,
        common_pb2.PHASE_PREFILL,
    ]
    assert list(got[1].token_ids) == [5, 6]
    assert got[1].HasField("finish")


def _part(sequence: int, place: int, *token_ids: int) -> common_pb2.TokenLogprobs:
    values = [-float(token_id) for token_id in token_ids]
    return common_pb2.TokenLogprobs(
        sequence=sequence, place=place, token_id=token_ids, logprob=values
    )


def _scored(*parts: common_pb2.TokenLogprobs) -> bytes:
    return common_pb2.TokenColumns(prompt_logprobs=parts).SerializeToString()


def _ended(*sequences: int, prompt_tokens: int = 3) -> bytes:
    finishes = [common_pb2.Finish(sequence=each, prompt_tokens=prompt_tokens) for each in sequences]
    return common_pb2.TokenColumns(finish=finishes).SerializeToString()


def _two_outputs() -> Answers:
    """Prefill is worker 6, decode 7."""
    answers = Answers(2, 1_000_000, ByteBudget(), prompt_logprobs=True)
    for sequence in (1, 2):
        answers.add_run(sequence, 7)
    return answers


@pytest.mark.promise("S6-331", "S6-333")
async def test_generate_gives_each_output_its_prompts_log_probabilities_once() -> None:
    """A prefill that is run again says again what has come."""
    answers = _two_outputs()
    assert not answers.add_payload(6, _scored(_part(1, 0, 8), _part(2, 0, 8), _part(1, 1, 9)))
    assert not answers.add_payload(6, _scored(_part(1, 0, 8), _part(1, 1, 9), _part(1, 2, 5)))
    assert not answers.add_payload(6, _scored(_part(2, 1, 9, 5)))
    assert not answers.add_payload(7, _ended(1, 2))
    got = [each async for each in answers.responses()]
    for index, sizes in ((0, [1, 1, 1]), (1, [1, 2])):
        parts = [
            each.prompt_logprobs
            for each in got
            if each.output_index == index and each.HasField("prompt_logprobs")
        ]
        assert [len(part.token_id) for part in parts] == sizes
        assert [token_id for part in parts for token_id in part.token_id] == [8, 9, 5]
        assert [part.place for part in parts] == [sum(sizes[:i]) for i in range(len(sizes))]
    assert [each.output_index for each in got if each.HasField("finish")] == [0, 1]


@pytest.mark.promise("S6-333")
@pytest.mark.parametrize("part", [_part(1, 2, 5), _part(3, 0, 8)], ids=["a gap", "of nobody"])
async def test_a_part_of_a_prompt_that_does_not_follow_is_left_out_and_told(
    part: common_pb2.TokenLogprobs,
) -> None:
    """It may be of somebody else. Whoever misses one fails with its end."""
    answers = _two_outputs()
    assert "nobody waits for" in answers.add_payload(6, _scored(part))
    assert not answers.add_payload(6, _scored(_part(1, 0, 8, 9, 5), _part(2, 0, 8)))
    assert not answers.add_payload(7, _ended(1))
    assert "are missing" in answers.add_payload(7, _ended(2))
    with pytest.raises(WorkerError):
        [each async for each in answers.responses()]


async def test_log_probabilities_of_a_prompt_that_nobody_asked_for_are_left_out() -> None:
    answers = Answers(1, 1_000_000, ByteBudget())
    answers.add_run(1, 7)
    assert "nobody waits for" in answers.add_payload(6, _scored(_part(1, 0, 8)))
    assert not answers.add_payload(7, _ended(1))
    assert [each.HasField("finish") for each in [a async for a in answers.responses()]] == [True]


def test_generate_holds_decodes_output_until_prefill_has_said_all() -> None:
    assert _generate(sampling={"prompt_logprobs": 0}).message.prompt_logprobs
    assert not _generate().message.prompt_logprobs


async def test_a_slow_generate_client_is_failed_at_its_bound() -> None:
    answers = Answers(1, 10, ByteBudget())
    columns = common_pb2.TokenColumns(sequence=[1], offset=[0], token_count=[1], text=["x" * 20])
    answers.add_run(1, 7)
    assert not answers.add_payload(7, columns.SerializeToString())
    with pytest.raises(SlowClientError):
        await anext(answers.responses())


# --- metrics ---------------------------------------------------------------------------------


def _relay() -> Relay:
    return Relay(build_core(RouterConfig()))


def _series(relay: Relay) -> dict[str, float]:
    workers = Workers(StaticDiscovery(prefill=(), decode=()), relay, silence_seconds=1.0)
    text = generate_latest(metrics.new_registry(lambda: metrics.read(relay, workers))).decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("tandem_router")]
    return {name: float(value) for name, value in lines}


async def test_every_series_is_there_at_zero_from_the_start() -> None:
    series = _series(_relay())
    for name in (
        'tandem_router_requests_total{outcome="finished"}',
        'tandem_router_requests_total{outcome="queue_full"}',
        'tandem_router_requests_total{outcome="kv_transfer_failed"}',
        'tandem_router_cancels_total{reason="deadline_exceeded"}',
        'tandem_router_pair_rejected_total{reason="page_size"}',
        'tandem_router_routable_workers{phase="prefill"}',
        'tandem_router_routable_workers{phase="decode"}',
        'tandem_router_legs_total{outcome="lost",phase="decode"}',
        "tandem_router_queue_length",
        "tandem_router_queue_seconds_count",
        "tandem_router_open_sequences",
        "tandem_router_retries_total",
        "tandem_router_requeued_total",
        'tandem_router_discovered_workers{phase="prefill"}',
        'tandem_router_discovered_workers{phase="decode"}',
        'tandem_router_discovery_errors_total{reason="forbidden"}',
        "tandem_router_discovery_age_seconds",
        "tandem_router_settle_overdue_total",
        "tandem_router_relayed_bytes_total",
        "tandem_router_relayed_frames_total",
    ):
        assert series.get(name, series.get(_swapped(name))) == 0, name


def _swapped(name: str) -> str:
    """The labels in the order in which they were declared."""
    return re.sub(r"\{(\w+=\"\w+\"),(\w+=\"\w+\")\}", r"{\2,\1}", name)


async def test_metrics_follow_a_request() -> None:
    relay = _relay()
    core = relay.core
    _request_with_nobody_to_relay_to(core)
    series = _series(relay)
    assert series['tandem_router_routable_workers{phase="prefill"}'] == 1
    assert series['tandem_router_worker_open_legs{phase="decode",worker="decode"}'] == 1 or (
        series['tandem_router_worker_open_legs{worker="decode",phase="decode"}'] == 1
    )
    assert series["tandem_router_open_sequences"] == 1
    assert series["tandem_router_queue_seconds_count"] == 1
    core.handle(1.0, [events.Cancel(1, 1)])
    series = _series(relay)
    assert series['tandem_router_requests_total{outcome="cancelled"}'] == 1
    assert series['tandem_router_cancels_total{reason="cancelled"}'] == 2


def _request_with_nobody_to_relay_to(core: RouterCore) -> None:
    fingerprint = Fingerprint("m", "", "", "", "", 1, "", "", 1, "", 1)
    batch: list[events.Event] = [events.FrontendUp(1)]
    for phase in Phase:
        profile = Profile(
            name="w", phase=phase, fingerprint=fingerprint, max_sequences=1, context_length=9
        )
        batch.append(events.WorkerUp(worker=phase.value, listed_as=phase, profile=profile))
    batch.append(submits.submit(1, n=1, model="m", timeout_seconds=5.0, task=b""))
    core.handle(0.0, batch)


# --- the process -----------------------------------------------------------------------------


async def test_the_process_serves_metrics_and_ends_on_sigterm(free: FreePorts) -> None:
    grpc_port, metrics_port = free.port(), free.port()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tandem_router",
        f"--listen=127.0.0.1:{grpc_port}",
        f"--metrics-listen=127.0.0.1:{metrics_port}",
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(30):
            while b"serving" not in await process.stderr.readline():
                pass
            url = f"http://127.0.0.1:{metrics_port}/metrics"
            body = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read())
            assert b"tandem_router_queue_length 0.0" in body
            process.terminate()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("flag", ["listen", "metrics-listen"])
async def test_a_taken_address_ends_the_process_with_a_sentence(flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tandem_router",
            *(() if flag == "listen" else ("--listen=127.0.0.1:0",)),
            f"--{flag}=127.0.0.1:{taken.getsockname()[1]}",
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 2
    assert b"tandem router: cannot listen on" in said
    assert b"Traceback" not in said


def test_the_bounds_of_the_core_are_those_of_the_settings() -> None:
    core = build_core(RouterConfig(max_queue=3, settle_seconds=1.5, max_retries=0))
    assert core.state.bounds == Bounds(
        max_queue=3, max_retries=0, settle_seconds=1.5, pair_wait_seconds=10.0
    )


@pytest.mark.promise("S6-143")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"want_report": True}, "tandem.report"),
        ({"want_external_scores": True}, "tandem.external_scores"),
        (
            {"logits": common_pb2.LogitsSpec(processors=[{"name": "forced_sequence"}])},
            "logits_processors[0].name",
        ),
        (
            {"regeneration": common_pb2.Regeneration(spent_tokens=2**32 - 1)},
            "task.regeneration",
        ),
        (
            {"resume": common_pb2.Resumption(step=[common_pb2.TokenLogprobs(token_id=[4])])},
            "task.resume",
        ),
    ],
)
def test_generate_asks_for_nothing_that_is_not_allowed(fields: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        _generate(**fields)
    assert caught.value.param == param


def test_a_sign_of_life_is_one_message_that_says_what_else_there_is() -> None:
    link = FrontendLink(1_000, ByteBudget())
    link.set_fleet(router_pb2.Fleet())
    said = told(link)
    assert said is not None
    assert said.HasField("fleet")
    link.set_fleet(router_pb2.Fleet())
    link.add_payload(1, b"x")
    said = told(link)
    assert said is not None
    assert (said.HasField("fleet"), said.payload) == (True, b"x")
    assert link._take() is None
