"""What a worker of `tandem replay` keeps of prompts, and what it tells routers of that."""

from __future__ import annotations

from tandem_tools.trace_replay.prefix_cache import ReplayedPrefixCache


def test_a_prompts_end_is_given_up_before_its_beginning() -> None:
    cache = ReplayedPrefixCache(4)
    cache.add((1, 2, 3))
    cache.add((7, 8))
    assert cache.match((1, 2, 3)) == 2
    assert cache.match((7, 8)) == 2
    assert len(cache) == 4


def test_what_was_found_counts_as_used() -> None:
    cache = ReplayedPrefixCache(4)
    cache.add((1, 2))
    cache.add((7, 8))
    assert cache.match((1, 2)) == 2
    cache.add((5,))
    assert cache.match((1, 2)) == 2
    assert cache.match((7, 8)) == 1


def test_a_gap_ends_what_is_found_and_a_prompt_larger_than_all_is_kept_in_part() -> None:
    cache = ReplayedPrefixCache(3)
    cache.add((1, 2, 3, 4, 5))
    assert len(cache) == 3
    assert cache.match((1, 2, 3, 4, 5)) == 3
    assert cache.match((1, 9, 3)) == 1
    assert ReplayedPrefixCache(0).match((1,)) == 0


def test_its_log_has_what_is_there() -> None:
    cache = ReplayedPrefixCache(2)
    cache.add((1, 2, 3))
    assert {*cache.log.held} == {1, 2}
    cache.add((5,))
    assert {*cache.log.held} == {1, 5}
    assert cache.log.keeps
    assert not ReplayedPrefixCache(0).log.keeps
