"""A batch of actions is carried out whole: one that fails costs its own sequence, which ends with
an error, and every other is carried out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from router_messages import told
from simulated import submits

from tandem.byte_budget import ByteBudget
from tandem.endings import Outcome
from tandem.errors import InvalidRequestError
from tandem.v1 import router_pb2, worker_pb2
from tandem_router.config import RouterConfig
from tandem_router.core import actions, events
from tandem_router.core.values import Fingerprint, Phase, Profile
from tandem_router.links import FrontendLink, WorkerLink
from tandem_router.relay import Relay
from tandem_router.server import build_core

pytestmark = pytest.mark.promise("S6-182")

_KIND = Fingerprint("m", "", "e", "1", "f", 16, "", "", 1, "t", 1)
BROKEN, WHOLE = 1, 2
"""Two sequences; actions of the first fail."""


class Bench:
    """A relay with a frontend and a pair, whose output is held for prefill's verdict."""

    def __init__(self) -> None:
        self.relay = Relay(build_core(RouterConfig()), clock=lambda: 0.0)
        self.frontend = FrontendLink(1_000_000, ByteBudget())
        self.number = self.relay.frontend_up(self.frontend)
        self.links = {phase: WorkerLink() for phase in Phase}
        for phase, link in self.links.items():
            profile = Profile(
                name=phase.value,
                phase=phase,
                fingerprint=_KIND,
                max_sequences=4,
                context_length=64,
                has_hook=phase is Phase.PREFILL,
            )
            self.relay.worker_up(phase.value, link, listed_as=phase, profile=profile)
        self.legs: dict[int, dict[Phase, int]] = {BROKEN: {}, WHOLE: {}}

    def break_action(self, kind: type[Any], phase: Phase | None) -> None:
        """Those of the first sequence raise from now on."""
        relay = self.relay
        real: Callable[[Any], None] = relay._carry_out[kind]

        def carry_out(action: Any) -> None:
            command = getattr(action, "command", action)
            own = getattr(command, "sequence", None) == BROKEN
            own |= getattr(action, "leg", None) in self.legs[BROKEN].values()
            if own and phase in (None, Phase(getattr(action, "worker", "decode"))):
                raise OSError("of a kind that nobody expects")
            real(action)

        relay._carry_out[kind] = carry_out

    def submit(self) -> None:
        self.relay.handle(
            *(
                submits.submit(
                    first,
                    frontend=self.number,
                    n=1,
                    model="m",
                    timeout_seconds=5.0,
                    task=b"",
                )
                for first in (BROKEN, WHOLE)
            )
        )
        for phase, link in self.links.items():
            for start in self.said(link).start:
                self.legs[start.sequence][phase] = start.leg

    def said(self, link: WorkerLink) -> worker_pb2.WorkerCommand:
        return link._take() or worker_pb2.WorkerCommand()

    def told(self) -> router_pb2.RouterMessage:
        return told(self.frontend) or router_pb2.RouterMessage()

    def judge(self) -> None:
        self.relay.handle(
            *(
                events.LegVerdict("prefill", legs[Phase.PREFILL], False)
                for legs in self.legs.values()
                if Phase.PREFILL in legs
            )
        )

    def close(self, sequence: int) -> None:
        """Its workers close what they know of it."""
        self.relay.handle(
            *(
                events.LegClosed(phase.value, leg, Outcome.FINISHED)
                for phase, leg in self.legs[sequence].items()
            )
        )


def errors_of(message: router_pb2.RouterMessage) -> list[tuple[int, str]]:
    return [(each.sequence, each.error.code) for each in message.ends]


@pytest.mark.parametrize("phase", list(Phase))
def test_a_leg_that_cannot_be_started_ends_its_sequence_alone(phase: Phase) -> None:
    bench = Bench()
    bench.break_action(actions.StartLeg, phase)
    bench.submit()
    assert errors_of(bench.told()) == [(BROKEN, "internal_error")]
    other = next(each for each in Phase if each is not phase)
    assert list(bench.legs[BROKEN]) == [other]
    assert len(bench.legs[WHOLE]) == 2
    bench.judge()
    bench.close(BROKEN)
    bench.close(WHOLE)
    assert bench.relay.core.idle


@pytest.mark.parametrize("phase", list(Phase))
def test_what_was_told_of_a_sequence_that_cannot_be_started_is_cancelled(phase: Phase) -> None:
    bench = Bench()
    bench.break_action(actions.StartLeg, phase)
    relay = bench.relay
    relay.handle(
        submits.submit(BROKEN, frontend=bench.number, n=1, model="m", timeout_seconds=5.0,
            task=b"",
        )
    )  # fmt: skip
    other = bench.links[next(each for each in Phase if each is not phase)]
    said = bench.said(other)
    assert [each.leg for each in said.cancel] == [each.leg for each in said.start]
    assert len(said.start) == 1


def test_a_leg_that_cannot_be_released_ends_its_sequence_alone() -> None:
    bench = Bench()
    bench.submit()
    bench.break_action(actions.ReleaseLeg, None)
    bench.judge()
    assert errors_of(bench.told()) == [(BROKEN, "internal_error")]
    said = bench.said(bench.links[Phase.DECODE])
    assert list(said.release) == [bench.legs[WHOLE][Phase.DECODE]]
    assert [each.leg for each in said.cancel] == [bench.legs[BROKEN][Phase.DECODE]]
    bench.close(BROKEN)
    bench.close(WHOLE)
    assert bench.relay.core.idle


@pytest.mark.parametrize("phase", list(Phase))
def test_a_leg_that_cannot_be_cancelled_keeps_no_other_from_it(phase: Phase) -> None:
    bench = Bench()
    bench.submit()
    bench.break_action(actions.CancelLeg, phase)
    bench.relay.handle(
        events.Cancel(bench.number, BROKEN),
        events.Cancel(bench.number, WHOLE),
    )
    assert errors_of(bench.told()) == [(BROKEN, "cancelled"), (WHOLE, "cancelled")]
    for each, link in bench.links.items():
        expected = [bench.legs[WHOLE][each]]
        if each is not phase:
            expected = [bench.legs[BROKEN][each], *expected]
        assert [cancel.leg for cancel in bench.said(link).cancel] == expected
    bench.close(BROKEN)  # at the deadline that the worker was told, at the latest
    bench.close(WHOLE)
    assert bench.relay.core.idle


def test_an_end_that_cannot_be_said_as_it_is_is_said_as_an_error() -> None:
    bench = Bench()
    bench.submit()
    odd = InvalidRequestError("of an engine", param="\ud800")
    for sequence in (BROKEN, WHOLE):
        error = odd if sequence == BROKEN else None
        leg = bench.legs[sequence][Phase.PREFILL]
        bench.relay.handle(
            events.LegClosed("prefill", leg, Outcome.FAILED, error=error),
        )
    assert errors_of(bench.told()) == [(BROKEN, "internal_error"), (WHOLE, "worker_error")]


@pytest.mark.parametrize("kind", [actions.RequestEnded, actions.EndSequence, actions.CancelLeg])
def test_what_fails_however_often_ends_no_batch(kind: type[Any]) -> None:
    bench = Bench()
    bench.submit()

    def fail(_: Any) -> None:
        raise OSError("of a kind that nobody expects")

    bench.relay._carry_out[kind] = fail
    bench.relay.handle(events.Cancel(bench.number, BROKEN), events.Cancel(bench.number, WHOLE))
    assert bench.relay.core.snapshot().open_sequences == 0


def test_a_start_that_cannot_be_said_is_noticed_before_it_leaves_with_others() -> None:
    link = WorkerLink()

    def start(leg: int, made: bytes = b"") -> None:
        command = worker_pb2.StartLeg(leg=leg, destination=1, sequence=1, room=1, timeout_ms=1)
        link.start(actions.StartLeg(worker="w", command=command, task=b"t", made=made))

    start(1)
    with pytest.raises(DecodeError):
        start(3, made=b"\xff")
    start(2)
    command = link._take()
    assert command is not None
    assert [(each.leg, each.task) for each in command.start] == [(1, b"t"), (2, b"t")]
