"""Whether a worker's output can be read: who says so, and what is counted; who is taken out is in
tests/unit/router_traces/unreadable.txt.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
from one_case import one_case
from router_messages import told
from simulated import submits

from tandem.byte_budget import ByteBudget
from tandem.v1 import common_pb2, router_pb2, worker_pb2
from tandem_router.config import RouterConfig
from tandem_router.core.values import Fingerprint, Phase, Profile
from tandem_router.inspection import MOST_SEQUENCES, SECONDS, Inspection
from tandem_router.links import FrontendLink, WorkerLink
from tandem_router.relay import MAX_PAYLOAD_BYTES, Relay
from tandem_router.server import build_core

pytestmark = pytest.mark.promise("S6-181")

_KIND = Fingerprint("m", "", "e", "1", "f", 16, "", "", 1, "t", 1)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def rows(*numbers: tuple[int, int], finish: tuple[tuple[int, int], ...] = ()) -> bytes:
    """Rows of so and so many sequences, each with its offset; ends, each with its rows."""
    return common_pb2.TokenColumns(
        sequence=[sequence for sequence, _ in numbers],
        offset=[offset for _, offset in numbers],
        token_count=[1] * len(numbers),
        text=["x"] * len(numbers),
        finish=[common_pb2.Finish(sequence=each, rows=count) for each, count in finish],
    ).SerializeToString()


def counted(tokens: int) -> bytes:
    """A row of so many tokens."""
    return common_pb2.TokenColumns(
        sequence=[1], offset=[0], token_count=[tokens], text=["x"]
    ).SerializeToString()


# --- inspection ------------------------------------------------------------------------------


@one_case(
    ("payloads", "fault"),
    [
        ([rows((1, 4)), rows((1, 5), (2, 0), (1, 6))], ""),
        ([rows((1, 4)), rows(finish=((1, 5),))], ""),
        ([rows(finish=((1, 5),)), rows((1, 0))], ""),
        ([b"\xff"], "no tandem.v1.TokenColumns"),
        ([rows((1, 4)), rows((1, 6))], "missing or comes again"),
        ([rows((1, 4)), rows((1, 4))], "missing or comes again"),
        ([rows((1, 4), (1, 4))], "missing or comes again"),
        ([rows((1, 4)), rows(finish=((1, 6),))], "missing or comes again"),
        ([rows((9, 0))], "run elsewhere"),
        ([common_pb2.TokenColumns(sequence=[1], offset=[0]).SerializeToString()], "differ"),
        ([common_pb2.TokenColumns(text=["a"]).SerializeToString()], "differ"),
        ([rows((1, 0)) + common_pb2.TokenColumns(token_id=[7]).SerializeToString()], ""),
        ([rows((1, 0)) + common_pb2.TokenColumns(token_id=[7, 8]).SerializeToString()], "no row"),
        ([counted(65_536)], ""),
        ([counted(65_537)], "a number that cannot be"),
    ],
)
async def test_an_inspection_finds_what_a_frontend_would(payloads: list[bytes], fault: str) -> None:
    inspection = Inspection(until=1.0)
    found = [inspection.fault(1, each, lambda sequence: sequence == 9) for each in payloads]
    assert found[:-1] == [""] * (len(payloads) - 1)
    assert fault in found[-1]
    assert bool(found[-1]) == bool(fault)


async def test_frontends_number_their_sequences_each_for_itself() -> None:
    inspection = Inspection(until=1.0)
    for frontend in (1, 2):
        assert not inspection.fault(frontend, rows((1, 3)), lambda _: False)


async def test_an_inspection_remembers_only_so_many_sequences() -> None:
    inspection = Inspection(until=1.0)
    for sequence in range(MOST_SEQUENCES + 10):
        inspection.fault(1, rows((sequence, 3)), lambda _: False)
    assert len(inspection._rows) == MOST_SEQUENCES
    assert not inspection.fault(1, rows((0, 9)), lambda _: False)
    assert inspection.fault(1, rows((MOST_SEQUENCES, 9)), lambda _: False)


# --- the relay -------------------------------------------------------------------------------


class Bench:
    """A relay with one frontend, and a pair that has the frontend's sequence 41."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.relay = Relay(build_core(RouterConfig()), clock=self.clock)
        self.frontend = FrontendLink(1_000_000_000, ByteBudget())
        self.number = self.relay.frontend_up(self.frontend)
        self.decode = WorkerLink()
        self._up("p", WorkerLink(), Phase.PREFILL)
        self._up("d", self.decode, Phase.DECODE)
        submit = submits.submit(41, frontend=self.number, model="m", task=b"")
        self.relay.handle(submit)

    def _up(self, address: str, link: WorkerLink, phase: Phase) -> None:
        profile = Profile(
            name=address, phase=phase, fingerprint=_KIND, max_sequences=4, context_length=64
        )
        self.relay.worker_up(address, link, listed_as=phase, profile=profile)

    def say(self, payload: bytes) -> None:
        envelope = worker_pb2.Envelope(destination=self.number, payload=payload)
        self.relay.frame("d", worker_pb2.WorkerFrame(envelopes=[envelope]))

    def complain(self) -> None:
        self.relay.complaint(self.decode.number, "nonsense")

    @property
    def faults(self) -> int:
        return self.relay.core.snapshot().trusts["d"].faults

    def told(self) -> router_pb2.RouterMessage:
        message = told(self.frontend)
        assert message is not None
        return message


async def test_a_frontend_is_told_which_worker_a_sequence_runs_on_before_its_output() -> None:
    bench = Bench()
    bench.say(b"one")
    bench.say(b"two")
    told = bench.told()
    assert (list(told.run_sequence), list(told.run_worker)) == ([41], [bench.decode.number])
    assert (told.payload, list(told.part_worker), list(told.part_bytes)) == (
        b"onetwo",
        [bench.decode.number],
        [6],
    )


async def test_what_several_workers_said_stays_apart() -> None:
    link = FrontendLink(1_000_000, ByteBudget())
    for worker, payload in ((1, b"a"), (2, b"bb"), (2, b"b"), (1, b"c")):
        link.add_payload(worker, payload)
    message = told(link)
    assert message is not None
    assert message.payload == b"abbbc"
    assert (list(message.part_worker), list(message.part_bytes)) == ([1, 2, 1], [1, 3, 1])


async def test_a_frontend_s_word_alone_takes_no_worker_out() -> None:
    bench = Bench()
    for _ in range(100):
        bench.complain()
        bench.say(rows((41, 0)))
        bench.decode.inspection = None
    assert bench.faults == 0


async def test_faults_are_named_sparingly_and_counted_all(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            bench.relay.fault("d", bench.decode.complaints, "nonsense")
        bench.decode.complaints.close()
    said: Any = [each for each in caplog.records if each.message != "worker ejected"]
    assert {(each.address, each.reason) for each in said[:-1]} == {("d", "nonsense")}
    assert len(said) - 1 + said[-1].count == bench.faults == 20
    assert len(said) < 10


async def test_a_frontend_s_complaint_is_named(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.complain()
    said: Any = caplog.records[-1]
    assert (said.levelname, said.address, said.reason) == ("WARNING", "d", "nonsense")


async def test_a_worker_that_somebody_complains_of_is_looked_at_for_a_time() -> None:
    bench = Bench()
    bench.say(b"\xff")
    assert bench.faults == 0, "nobody had complained"
    bench.complain()
    for _ in range(3):
        bench.say(b"\xff")
    assert bench.faults == 3
    assert bench.decode.given_up is not None
    assert bench.decode.given_up.died
    bench.clock.now += 10.0
    assert bench.relay.closed_for("d") == (50.0, "ejected for 60 s: its output could not be read")
    bench.clock.now += SECONDS + 1
    bench.say(b"\xff")
    bench.say(b"\xff")
    assert bench.faults == 3
    assert bench.decode.inspection is None
    assert bench.relay.closed_for("d")[0] == 0.0
    assert bench.relay.closed_for("unknown") == (0.0, "")


async def test_rows_of_what_runs_elsewhere_are_a_fault() -> None:
    bench = Bench()
    bench.complain()
    bench.say(rows((41, 0), (77, 0)))  # 77 may have ended
    assert bench.faults == 0
    assert bench.relay.core.runs_elsewhere("p", bench.number, 41)
    assert not bench.relay.core.runs_elsewhere("d", bench.number, 41)


async def test_a_complaint_of_an_unknown_worker_is_ignored() -> None:
    bench = Bench()
    bench.relay.complaint(2**32 - 1, "nonsense")
    bench.relay.complaint(0, "nonsense")
    assert bench.decode.inspection is None


@pytest.mark.parametrize(("extra", "lost"), [(0, False), (1, True)])
async def test_a_payload_too_large_for_a_frontend_is_left_out_and_said(
    extra: int, lost: bool
) -> None:
    bench = Bench()
    bench.say(bytes(MAX_PAYLOAD_BYTES + extra))
    told = bench.told()
    assert bool(told.lost) == lost
    assert bool(told.payload) != lost
    assert bench.faults == lost
