"""A service that is down is left alone for a while, and then tried once."""

from __future__ import annotations

import asyncio

import pytest

from tandem.hooks.classifiers.contract import ScoringError
from tandem_guardrails.adapters.breaker import CircuitBreaker, UnavailableError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(failures=3, open_seconds=10, clock=clock)


def fail(breaker: CircuitBreaker, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(UnavailableError), breaker.call():
            raise UnavailableError("server_error")


def succeed(breaker: CircuitBreaker) -> None:
    with breaker.call():
        pass


def is_open(breaker: CircuitBreaker) -> bool:
    try:
        succeed(breaker)
    except ScoringError as error:
        return error.reason == "circuit_open"
    return False


def test_it_opens_after_failures_in_a_row(breaker: CircuitBreaker) -> None:
    fail(breaker, 2)
    succeed(breaker)
    fail(breaker, 2)
    assert not is_open(breaker)
    fail(breaker, 3)
    assert is_open(breaker)


def test_one_call_at_a_time_tries_an_open_circuit(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 10
    with breaker.call():
        assert is_open(breaker)
    assert not is_open(breaker)


def test_a_cancelled_try_leaves_the_next_call_to_try(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 10
    with pytest.raises(asyncio.CancelledError), breaker.call():
        raise asyncio.CancelledError
    assert not is_open(breaker)


def test_a_call_from_before_it_opened_neither_closes_nor_prolongs_it(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    good, bad = breaker.call(), breaker.call()
    good.__enter__()
    bad.__enter__()
    fail(breaker, 3)
    clock.now += 5
    good.__exit__(None, None, None)
    assert is_open(breaker)
    error = UnavailableError("timeout")
    assert not bad.__exit__(UnavailableError, error, None)
    clock.now += 5
    assert not is_open(breaker)
