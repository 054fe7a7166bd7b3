"""A decode worker that sends what cannot be, beside a good one, over real gRPC: whatever did not
run on it is exactly right, whatever did ends with a typed error, and it is ejected.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from echo_workers import ROWS, Spoil, echo_worker
from harness import COMPLETION, MODEL, PATIENCE, Harness, Start, say_hello

from tandem import ids
from tandem.engine import model_files
from tandem.v1 import common_pb2, worker_pb2
from tandem_router.config import RouterConfig
from tandem_router.connection import MOST_EVENTS
from tandem_router.core.actions import StartLeg
from tandem_router.core.snapshot import UNKNOWN
from tandem_router.links import WorkerLink
from tandem_router.server import RunningRouter, running

WHOLE = "".join(ROWS)
CLIENTS = 8
FAULTS = 2
"""After which the bad worker is ejected."""
TYPED = {"worker_error", "worker_lost"}
Columns = common_pb2.TokenColumns


def unreadable(_: int, columns: Columns) -> bytes:
    return columns.SerializeToString() + b"\xff"


def gap(number: int, columns: Columns) -> bytes:
    return b"" if number == 3 else columns.SerializeToString()


def twice(number: int, columns: Columns) -> bytes:
    return columns.SerializeToString() * (1 + (number == 3))


def foreign(number: int, columns: Columns) -> bytes:
    """Rows that name what other clients run."""
    for near in range(-4, 5):
        other = Columns()
        other.CopyFrom(columns)
        other.sequence[0] = max(1, columns.sequence[0] + near)
        other.text[0] = "stolen"
        columns.MergeFrom(other)
    return columns.SerializeToString()


def past_the_end(number: int, columns: Columns) -> bytes:
    for finish in columns.finish:
        finish.rows += 1
    return columns.SerializeToString()


def uneven(number: int, columns: Columns) -> bytes:
    if number == 3:
        columns.ClearField("text")
    return columns.SerializeToString()


def huge(number: int, columns: Columns) -> bytes:
    if number == 3:
        columns.token_count[0] = 2**32 - 1
    return columns.SerializeToString()


def ends_of_others(number: int, columns: Columns) -> bytes:
    for near in (-3, -2, -1, 1, 2, 3):
        columns.finish.add(sequence=max(1, columns.sequence[0] + near), rows=number + 1)
    return columns.SerializeToString() + (b"\xff" if number == 5 else b"")


def late(number: int, columns: Columns) -> bytes:
    """The end comes in the middle."""
    if number == 3:
        columns.finish.add(sequence=columns.sequence[0], rows=4)
    return columns.SerializeToString() + (b"\xff" if number == 5 else b"")


LIES = (late, ends_of_others)
"""Ends of what the worker runs itself that fit: nobody can tell them from true ones."""


def no_frame(frame: worker_pb2.WorkerFrame) -> bytes:
    return frame.SerializeToString() + b"\xff" * bool(frame.envelopes)


def crowded(frame: worker_pb2.WorkerFrame) -> bytes:
    if frame.envelopes:
        frame.events.extend([worker_pb2.LegEvent()] * (MOST_EVENTS + 1))
    return frame.SerializeToString()


def events_of_others(frame: worker_pb2.WorkerFrame) -> bytes:
    """Besides, a payload that cannot be read."""
    closed = worker_pb2.LegClosed(outcome=worker_pb2.LegClosed.OUTCOME_FAILED)
    if frame.envelopes:
        frame.events.extend(worker_pb2.LegEvent(leg=leg, closed=closed) for leg in range(99))
        frame.envelopes[0].payload += b"\xff"
    return frame.SerializeToString()


@dataclass(frozen=True)
class Fault:
    """How the bad worker is bad."""

    spoil: Spoil | None = None
    spoil_frame: Callable[[worker_pb2.WorkerFrame], bytes] | None = None


OF_ROWS = (unreadable, gap, twice, foreign, past_the_end, uneven, huge, ends_of_others, late)
OF_FRAMES = (no_frame, crowded, events_of_others)


async def ask(frontend: Harness) -> tuple[str, str, str]:
    """Its trace id, its text where it is whole, and the code of its error."""
    trace_id = ids.new_trace_id()
    response = await frontend.http.post(
        "/v1/completions",
        json={**COMPLETION, "stream": False},
        headers={"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"},
    )
    said: dict[str, Any] = response.json()
    if response.status_code == 200:
        return trace_id, said["choices"][0]["text"], ""
    return trace_id, "", said["error"]["code"]


def workers_by_request(monkeypatch: pytest.MonkeyPatch) -> defaultdict[str, set[str]]:
    """To which workers the router gave each request, by its trace id: also before they began it."""
    given: defaultdict[str, set[str]] = defaultdict(set)
    start = WorkerLink.start

    def noted(link: WorkerLink, action: StartLeg) -> None:
        given[common_pb2.Task.FromString(action.task).trace_id].add(action.worker)
        start(link, action)

    monkeypatch.setattr(WorkerLink, "start", noted)
    return given


def ejections(router: RunningRouter) -> dict[str, int]:
    """How often each address was ejected; one that never came up was not."""
    trusts = router.relay.core.snapshot().trusts
    addresses = (each.address for each in router.workers.listed())
    return {each: trusts.get(each, UNKNOWN).ejections for each in addresses}


@pytest.mark.promise("S6-181")
@pytest.mark.parametrize(
    "fault",
    [
        *(pytest.param(Fault(spoil=each), id=each.__name__) for each in OF_ROWS),
        *(pytest.param(Fault(spoil_frame=each), id=each.__name__) for each in OF_FRAMES),
    ],
)
async def test_what_one_worker_garbles_costs_nobody_else_and_ejects_it(
    start: Start,
    model_path: Path,
    fault: Fault,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = workers_by_request(monkeypatch)
    fingerprint = common_pb2.Fingerprint(
        model=MODEL, tokenizer_sha256=model_files.tokenizer_sha256(model_path)
    )
    decode = common_pb2.PHASE_DECODE
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        _, prefill = await enter(echo_worker(common_pb2.PHASE_PREFILL, fingerprint))
        good, good_address = await enter(echo_worker(decode, fingerprint))
        bad, bad_address = await enter(
            echo_worker(decode, fingerprint, fault.spoil, spoil_frame=fault.spoil_frame)
        )
        router = await enter(
            running(
                RouterConfig(
                    listen="127.0.0.1:0",
                    prefill=(prefill,),
                    decode=(good_address, bad_address),
                    decode_policy="round_robin",
                    eject_after_faults=FAULTS,
                    eject_after_failures=0,
                    eject_seconds=600.0,
                )
            )
        )
        frontend = await start(
            say_hello, router=(f"127.0.0.1:{router.port}",), trust_traceparent=True
        )
        failed: list[str] = []

        async def ask_on() -> None:
            """Until the bad worker is ejected."""
            while not ejections(router)[bad_address]:
                trace_id, text, code = await ask(frontend)
                if bad_address not in given[trace_id]:
                    assert (text, code) == (WHOLE, "")
                elif trace_id not in good.runs and (code or fault.spoil not in LIES):
                    assert code in TYPED
                failed.append(code)

        with caplog.at_level(logging.WARNING):
            async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
                for _ in range(CLIENTS):
                    group.create_task(ask_on())
        assert TYPED.intersection(failed)
        assert ejections(router) == {prefill: 0, good_address: 0, bad_address: 1}
        named = [each for each in caplog.records if each.getMessage() == "worker ejected"]
        assert [each.address for each in named] == [bad_address]  # type: ignore[attr-defined]
        before = len(bad.runs)
        answers = await asyncio.gather(*(ask(frontend) for _ in range(CLIENTS)))
        assert {(text, code) for _, text, code in answers} == {(WHOLE, "")}
        assert len(bad.runs) == before
