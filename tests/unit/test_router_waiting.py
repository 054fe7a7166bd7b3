"""Whose turn it is among keys, and how much is remembered of them."""

from __future__ import annotations

import gc

import pytest
from simulated import submits

from tandem.byte_budget import ByteBudget
from tandem.keys import MAX_NAME, MAX_WEIGHT
from tandem.v1 import router_pb2
from tandem_router.core.sequences import Request, Sequence
from tandem_router.core.values import Edition
from tandem_router.core.waiting import MAX_DEBTS, Queue, rank
from tandem_router.ingress import read_submit
from tandem_router.permissions import Permissions

EDITION = Edition("tiny", "sha")


def sequence(arrival: int, tenant: str, **fields: int) -> Sequence:
    """`fields`: others of tandem.v1.Submit."""
    asked = submits.submit(arrival, timeout_seconds=1.0, task=b"", tenant=tenant, **fields)
    request = Request(asked, EDITION, 0.0, 1.0, 1, ByteBudget().allotment())
    return Sequence(request, arrival, 0, rank(asked.message, 0.0, arrival), 0.0)


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


def numbers(of: Queue) -> list[int]:
    """The numbers of all that wait as they begin; none settles."""
    found = []
    while head := of.head():
        of.begin(head)
        found.append(head.number)
    return found


@pytest.mark.promise("S5-782")
def test_flows_of_a_key_take_turns_and_a_later_flow_waits_for_one_turn_of_each_other() -> None:
    made = queue(*(sequence(number, "a", fairness=7) for number in range(3)))
    for number, flow in ((3, 0), (4, 0), (5, 9)):
        made.add(sequence(number, "a", fairness=flow))
    assert numbers(made) == [0, 3, 5, 1, 4, 2]


@pytest.mark.promise("S5-782")
def test_what_is_cancelled_was_no_turn_of_its_flow() -> None:
    made = queue(*(sequence(number, "a", fairness=1 + number % 2) for number in range(4)))
    made.remove(sequence(0, "a", fairness=1))
    assert numbers(made) == [2, 1, 3]


@pytest.mark.promise("S5-782")
def test_a_flow_that_comes_again_and_again_waits_behind_the_others_each_time() -> None:
    made = queue(*(sequence(number, "a", fairness=1) for number in range(3)))
    found = []
    for number in range(10, 13):
        made.add(sequence(number, "a", fairness=2))
        for _ in range(2):
            head = made.head()
            assert head is not None
            made.begin(head)
            found.append(head.number)
    assert found == [0, 10, 1, 11, 2, 12]


@pytest.mark.promise("S5-783")
def test_a_key_of_a_hundred_flows_has_the_turns_of_one_key() -> None:
    made = queue(
        *(sequence(number, "inventive", fairness=1 + number) for number in range(100)),
        *(sequence(number, "plain") for number in range(100, 104)),
    )
    assert order(made)[:8] == ["inventive", "plain"] * 4


@pytest.mark.promise("S5-784")
def test_of_a_flow_what_is_due_first_is_next_and_what_is_not_due_comes_last() -> None:
    made = queue(
        sequence(1, "a"),
        sequence(2, "a", first_token_ms=4_000_000_000),
        sequence(3, "a", first_token_ms=500),
        sequence(4, "a", first_token_ms=500),
        sequence(5, "a", first_token_ms=499),
        sequence(6, "a"),
    )
    assert numbers(made) == [5, 3, 4, 2, 1, 6]


@pytest.mark.promise("S5-784")
def test_a_first_token_is_due_from_when_its_request_came() -> None:
    early, late = (router_pb2.Submit(first_token_ms=ms) for ms in (1500, 1000))
    assert rank(early, 1.0, 1) > rank(late, 1.0, 2)
    assert rank(early, 0.0, 1) < rank(late, 1.0, 2)


@pytest.mark.promise("S5-784")
def test_what_is_due_at_once_passes_no_key_no_flow_and_no_priority() -> None:
    made = queue(sequence(0, "a", fairness=1), sequence(1, "a", fairness=2), sequence(2, "b"))
    for number in range(3, 6):
        made.add(sequence(number, "a", fairness=1, first_token_ms=1))
    made.add(sequence(6, "a", fairness=1, priority=1))
    assert numbers(made) == [6, 2, 3, 1, 4, 5, 0]


@pytest.mark.promise("S5-785")
def test_the_next_of_a_thousand_flows_is_found_without_a_look_at_the_others() -> None:
    made = queue(*(sequence(number, "a", fairness=1 + number) for number in range(1000)))
    looked_at = []
    for number in range(3):
        head = made.head(lambda each: looked_at.append(each.number) is not None)
        assert head is not None
        assert head.number == number
        made.begin(head)
    assert looked_at == [0, 1, 2]


@pytest.mark.promise("S5-785")
def test_a_flow_of_which_nothing_waits_leaves_nothing_behind() -> None:
    """Its key still runs something, and so is remembered."""
    made = queue(sequence(0, "a"))
    order(made)
    flows = made.accounts["a"].flows
    before = objects_of(flows)
    for number in range(200):
        made.add(sequence(number, "a", fairness=number, priority=number % 5))
    for number in range(0, 200, 2):
        made.remove(sequence(number, "a", fairness=number, priority=number % 5))
    assert objects_of(flows) > before + 100
    assert flows.count_of(7) == 1
    assert len(order(made)) == 100
    assert flows is made.accounts["a"].flows
    assert objects_of(flows) == before
    assert flows.count_of(7) == len(flows) == 0


def objects_of(root: object) -> int:
    """How many objects `root` holds, through others too."""
    found: dict[int, object] = {}
    following = [root]
    while following:
        each = following.pop()
        if id(each) not in found and not isinstance(each, type):
            found[id(each)] = each
            following += gc.get_referents(each)
    return len(found)


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
