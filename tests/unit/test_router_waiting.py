"""Whose turn it is among keys, and how much is remembered of them."""

from __future__ import annotations

import pytest
from simulated import submits

from tandem.byte_budget import ByteBudget
from tandem.keys import MAX_NAME, MAX_WEIGHT
from tandem.v1 import router_pb2
from tandem_router.core.sequences import Request, Sequence
from tandem_router.core.values import Edition
from tandem_router.core.waiting import MAX_DEBTS, Queue
from tandem_router.ingress import read_submit
from tandem_router.permissions import Permissions

EDITION = Edition("tiny", "sha")


def sequence(arrival: int, tenant: str, *, weight: int = 1, priority: int = 0) -> Sequence:
    asked = submits.submit(
        arrival,
        n=1,
        model="tiny",
        timeout_seconds=1.0,
        task=b"",
        tenant=tenant,
        weight=weight,
        priority=priority,
    )
    request = Request(asked, EDITION, 0.0, 1.0, 1, ByteBudget().allotment())
    return Sequence(request, arrival, 0, (-priority, arrival), 0.0)


def queue(*waiting: Sequence) -> Queue:
    made = Queue(EDITION)
    for each in waiting:
        made.add(each)
    return made


def order(of: Queue, *, seconds: float | None = None) -> list[str]:
    """The keys of all that wait as they begin; each settles at once after so many seconds, or never
    does.
    """
    found = []
    while head := of.head(None):
        of.begin(head)
        if seconds is not None:
            of.settle(head, seconds)
        found.append(head.request.submit.tenant)
    return found


@pytest.mark.promise("S6-154")
def test_keys_take_turns_and_each_key_s_own_go_by_arrival() -> None:
    made = queue(*(sequence(number, "a") for number in range(3)), sequence(3, "b"))
    first = made.head(None)
    assert first is not None
    assert first.number == 0
    assert order(made) == ["a", "b", "a", "a"]


def test_a_weight_is_a_number_of_turns() -> None:
    made = queue(
        *(sequence(number, "a") for number in range(4)),
        *(sequence(number, "b", weight=3) for number in range(4, 10)),
    )
    assert "".join(order(made)[:8]).count("b") == 6


def test_priority_comes_before_fairness() -> None:
    made = queue(
        sequence(1, "a"), sequence(2, "b"), *(sequence(n, "a", priority=1) for n in (3, 4))
    )
    assert order(made) == ["a", "a", "b", "a"]


def test_a_key_pays_for_the_time_that_its_sequences_took() -> None:
    made = queue(*(sequence(number, "long") for number in range(3)))
    for _ in range(2):
        head = made.head(None)
        assert head is not None
        made.begin(head)
        made.settle(head, 3.0)
    for number in range(10, 14):
        made.add(sequence(number, "short"))
    assert order(made, seconds=1.0) == ["short"] * 3 + ["long", "short"]


def test_a_key_owes_what_it_was_given_also_after_it_wanted_nothing() -> None:
    made = queue(sequence(1, "calm"), sequence(2, "greedy"))
    assert order(made, seconds=5.0) == ["calm", "greedy"]
    for number in range(3, 6):
        made.add(sequence(number, "greedy"))
        made.add(sequence(number + 10, "new"))
    assert order(made, seconds=1.0)[:3] == ["new", "new", "new"]


def test_a_key_that_wants_nothing_and_owes_nothing_is_forgotten() -> None:
    made = queue(sequence(1, "a"), sequence(2, "b"))
    assert order(made, seconds=0.0) == ["a", "b"]
    assert not made.accounts
    made.add(sequence(3, "c"))
    made.remove(sequence(3, "c"))
    assert not made.accounts


def test_debts_are_remembered_but_not_any_number_of_them() -> None:
    made = Queue(EDITION)
    for number in range(MAX_DEBTS + 5):
        waiting = sequence(number, f"key{number}")
        made.add(waiting)
        made.begin(waiting)
        made.settle(waiting, 1.0 + number)
    assert len(made.accounts) == MAX_DEBTS
    assert "key4" not in made.accounts
    assert "key5" in made.accounts


@pytest.mark.promise("S6-166")
def test_a_message_s_key_and_weight_are_bounded() -> None:
    def read(**fields: object) -> tuple[str, int]:
        given = router_pb2.Submit(**fields)  # type: ignore[arg-type]
        made = read_submit(
            1, given, permissions=Permissions(), max_timeout_seconds=1.0, tracing=False
        ).message
        return made.tenant, made.weight

    assert read() == ("", 1)
    assert read(tenant="x" * MAX_NAME, weight=MAX_WEIGHT) == ("x" * MAX_NAME, MAX_WEIGHT)
    assert read(tenant="x" * 10**6, weight=2**32 - 1) == ("x" * MAX_NAME, MAX_WEIGHT)
