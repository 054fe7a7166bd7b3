"""Keys that share a fleet, in virtual time: one that asks for too much waits for itself.

`hog` asks for ten times its share; `full` is a fleet that is as busy, with nobody beyond a little
more than a share. Waits for a slot are times to first token, less what the slot then takes.
"""

from __future__ import annotations

from typing import Any

import pytest
from simulated.crowd import Crowd, Demand

SLOTS, KEYS = 16, 4
SEEDS = range(2)
SHARE = SLOTS / KEYS
"""Slots of each key."""


def waits(of: dict[str, Demand], *, seconds: float, key: str = "key0") -> list[float]:
    found: list[float] = []
    for seed in SEEDS:
        found += Crowd(of, slots=SLOTS, seed=seed).run(seconds)[key].waits
    return sorted(found)


def p99(waits: list[float]) -> float:
    return waits[int(0.99 * len(waits))]


def demand(slots: float, hold: float, **how: Any) -> Demand:
    """Of a key that keeps so many slots busy."""
    return Demand(rate=slots / hold, hold=hold, **how)


CLAIMS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a flow for each": {"invents": True},
    "due at once": {"first_token_ms": 1},
}
"""What a key says of its sequences."""


@pytest.mark.promise("S6-154")
@pytest.mark.promise("S5-783")
@pytest.mark.parametrize(
    ("hold", "claim"),
    [(0.1, "nothing"), (20.0, "nothing"), *((1.0, claim) for claim in CLAIMS)],
)
def test_a_key_at_ten_times_its_share_moves_another_keys_p99_by_less_than_a_tenth(
    hold: float, claim: str
) -> None:
    mine = demand(0.6 * SHARE, hold)
    others = {f"key{number}": demand(1.05 * SHARE, hold) for number in range(1, KEYS)}
    calm = {f"key{number}": mine for number in range(KEYS)}
    full = p99(waits({**others, "key0": mine}, seconds=150 * hold))
    greedy = demand(10 * SHARE, hold, **CLAIMS[claim])
    hog = p99(waits({**calm, "key1": greedy}, seconds=150 * hold))
    turn = hold / SLOTS
    print(f"p99 {full:.3f} s in a full fleet, {hog:.3f} s beside a hog, a turn is {turn:.4f} s")
    assert hog < 1.1 * full + turn


@pytest.mark.promise("S5-783")
@pytest.mark.parametrize("claim", CLAIMS)
def test_two_greedy_keys_have_half_of_the_slots_each_whatever_one_says(claim: str) -> None:
    greedy = 3.0 * SLOTS
    run = Crowd(
        {"plain": demand(greedy, 1.0), "claims": demand(greedy, 1.0, **CLAIMS[claim])}, slots=SLOTS
    ).run(60.0)
    share = run["claims"].slot_seconds / sum(each.slot_seconds for each in run.values())
    assert 0.48 < share < 0.52


@pytest.mark.promise("S5-782")
def test_a_flow_at_ten_times_its_share_moves_another_flows_p99_by_less_than_a_tenth() -> None:
    def flow(number: int, slots: float) -> Demand:
        return demand(slots, 1.0, key="team", fairness=number)

    others = {f"flow{number}": flow(number, 1.05 * SHARE) for number in range(1, KEYS)}
    calm = {f"flow{number}": flow(number, 0.6 * SHARE) for number in range(KEYS)}
    beside = {**calm, "flow1": flow(1, 10 * SHARE)}
    full = p99(waits({**others, "flow0": calm["flow0"]}, seconds=150, key="flow0"))
    hog = p99(waits(beside, seconds=150, key="flow0"))
    turn = 1.0 / SLOTS
    print(f"p99 {full:.3f} s in a full key, {hog:.3f} s beside a hog, a turn is {turn:.4f} s")
    assert hog < 1.1 * full + turn


@pytest.mark.promise("S5-784")
def test_of_one_flow_what_is_due_soon_waits_less_and_the_rest_as_long_as_it_did() -> None:
    def flow(slots: float, ms: int = 0) -> Demand:
        return demand(slots, 1.0, key="team", fairness=1, first_token_ms=ms)

    run = Crowd(
        {"soon": flow(0.3 * SLOTS, 200), "later": flow(0.8 * SLOTS, 60_000)}, slots=SLOTS
    ).run(100.0)
    soon, later = sorted(run["soon"].waits), sorted(run["later"].waits)
    assert p99(soon) < 0.6 < 1.0 < later[len(later) // 2]


def test_a_key_of_long_answers_gets_no_more_of_the_slots_than_one_of_short_answers() -> None:
    rate = 2.0 * SLOTS
    run = Crowd(
        {"long": Demand(rate=rate, hold=20.0), "short": Demand(rate=rate, hold=1.0)}, slots=SLOTS
    ).run(200.0)
    share = run["long"].slot_seconds / sum(each.slot_seconds for each in run.values())
    assert 0.4 < share < 0.6


@pytest.mark.parametrize("slots", [1, SLOTS])
def test_weights_share_out_the_slots(slots: int) -> None:
    run = Crowd(
        {"one": demand(3.0 * slots, 1.0), "three": demand(3.0 * slots, 1.0, weight=3)},
        slots=slots,
    ).run(400.0)
    share = run["three"].slot_seconds / sum(each.slot_seconds for each in run.values())
    assert 0.7 < share < 0.8


def test_what_a_key_did_not_use_does_not_let_it_starve_others_later() -> None:
    """The late one is calm at first and then wants everything."""
    crowd = Crowd({"calm": demand(0.2, 1.0), "greedy": demand(10 * SLOTS, 1.0)}, slots=SLOTS)
    crowd.add("calm", demand(10 * SLOTS, 1.0), after=100.0, until=120.0)
    run = crowd.run(120.0)
    late = run["greedy"].began_between(101.0, 120.0)
    assert 0.35 < late / (late + run["calm"].began_between(101.0, 120.0)) < 0.65


@pytest.mark.promise("S6-154")
def test_no_key_fills_the_queue_alone() -> None:
    run = Crowd(
        {"hog": demand(20 * SLOTS, 1.0), "other": demand(0.5, 1.0)}, slots=SLOTS, max_queue=40
    ).run(60.0)
    assert run["hog"].refused > 1_000
    assert run["other"].refused == 0
