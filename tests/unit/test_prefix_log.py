"""What routers are told of an engine's prefix cache: all of it, each change once."""

from __future__ import annotations

import random

import pytest
from one_case import one_case

from tandem.engine.prefix_log import PrefixLog
from tandem.prefix_blocks import MOST_CHANGES, unpacked
from tandem.v1 import worker_pb2


def taken(changes: worker_pb2.CacheChanges) -> tuple[bool, list[int], list[int]]:
    entered, left = (list(unpacked(each, MOST_CHANGES)) for each in (changes.entered, changes.left))
    return changes.anew, entered, left


def test_a_router_that_comes_is_told_what_is_there_in_the_order_in_which_it_came() -> None:
    log = PrefixLog()
    log.enter([3, 1, 2])
    log.leave([1])
    assert taken(log.reader().take()) == (True, [3, 2], [])


def test_after_that_each_change_is_told_once_and_as_it_is_now() -> None:
    log = PrefixLog()
    log.enter([1, 2])
    reader = log.reader()
    reader.take()
    assert taken(reader.take()) == (False, [], [])
    log.leave([1])
    log.enter([2, 3, 4])
    log.leave([4])
    log.enter([1])
    assert taken(reader.take()) == (False, [3, 1], [4])
    assert taken(reader.take()) == (False, [], [])
    log.clear()
    assert sorted(taken(reader.take())[2]) == [1, 2, 3]


def test_what_does_not_change_is_not_told() -> None:
    log = PrefixLog()
    reader = log.reader()
    reader.take()
    log.enter([1])
    log.enter([1])
    log.leave([5])
    assert (log.changes, taken(reader.take())) == (1, (False, [1], []))


def test_a_router_that_was_told_too_little_is_told_all_anew() -> None:
    log = PrefixLog()
    log.enter([1])
    reader = log.reader()
    reader.take()
    log.enter(range(10, 10 + MOST_CHANGES))
    assert taken(reader.take())[0] is False
    log.enter(range(10**6, 10**6 + MOST_CHANGES + 1))
    anew, entered, left = taken(reader.take())
    assert (anew, left) == (True, [])
    assert entered == [1, *range(10, 9 + MOST_CHANGES)]


@pytest.mark.promise("S5-640")
def test_a_router_that_comes_learns_all_of_a_large_cache_beginnings_first() -> None:
    log = PrefixLog()
    log.enter(range(1, 2 * MOST_CHANGES + 1))
    reader = log.reader()
    anew, known, _ = taken(reader.take())
    assert (anew, known) == (True, list(range(1, MOST_CHANGES + 1)))
    log.leave([2 * MOST_CHANGES])  # before it was told
    log.enter([7 * MOST_CHANGES])
    anew, more, left = taken(reader.take())
    assert not anew
    assert more[0] == 7 * MOST_CHANGES, "what is new is not held up"
    assert len(more) <= MOST_CHANGES
    assert left == [2 * MOST_CHANGES]
    _, rest, _ = taken(reader.take())
    assert {*known, *more, *rest} == {*log.held}
    assert taken(reader.take()) == (False, [], [])


def test_an_engine_without_a_cache_says_so() -> None:
    changes = PrefixLog(keeps=False).reader().take()
    assert changes == worker_pb2.CacheChanges(keeps_none=True)


def test_what_prompts_bring_is_told_until_the_last_of_them_is_over() -> None:
    log = PrefixLog()
    reader = log.reader()
    reader.take()
    log.expect([1, 2])
    assert taken(reader.take()) == (False, [1, 2], [])
    log.expect([2, 3])
    assert taken(reader.take()) == (False, [3], [])
    log.settle([1, 2])
    assert taken(reader.take()) == (False, [], [1])
    log.settle([2, 3])
    assert sorted(taken(reader.take())[2]) == [2, 3]
    assert not log.coming


def test_what_was_brought_stays_as_long_as_the_cache_has_it() -> None:
    log = PrefixLog()
    reader = log.reader()
    log.expect([1])
    assert taken(reader.take()) == (True, [1], [])
    log.enter([1])
    log.settle([1])
    assert (log.changes, taken(reader.take())) == (1, (False, [], []))
    log.expect([1])
    log.leave([1])  # it was given up, and is to come again
    assert taken(reader.take()) == (False, [], [])
    log.settle([1])
    assert taken(reader.take()) == (False, [], [1])


def test_a_router_that_comes_is_told_of_what_prompts_bring_too() -> None:
    log = PrefixLog()
    log.enter([1, 2])
    log.expect([7, 2])
    anew, entered, _ = taken(log.reader().take())
    assert (anew, sorted(entered)) == (True, [1, 2, 7])


@one_case("seed", range(20))
def test_several_readers_always_end_up_with_what_is_held(seed: int) -> None:
    dice, log, coming = random.Random(seed), PrefixLog(), list[list[int]]()
    readers = [(log.reader(), set[int]()) for _ in range(3)]
    for _ in range(200):
        blocks = [dice.randrange(40) for _ in range(dice.randrange(6))]
        if coming and dice.random() < 0.3:
            log.settle(coming.pop(dice.randrange(len(coming))))
        elif dice.random() < 0.4:
            log.expect(blocks)
            coming.append(blocks)
        else:
            dice.choice((log.enter, log.leave))(blocks)
        reader, known = dice.choice(readers)
        anew, entered, left = taken(reader.take())
        if anew:
            known.clear()
        known |= set(entered)
        known -= set(left)
        assert known == {*log.held, *(block for each in coming for block in each)}
