"""Trace ids, rooms and counters."""

from __future__ import annotations

import pytest

from tandem import ids

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_valid_traceparent_gives_its_trace_its_span_and_whether_it_is_sampled() -> None:
    sampled = ids.traceparent_from(f"00-{TRACE}-00f067aa0ba902b7-01")
    assert sampled == ids.Traceparent(TRACE, 0x00F067AA0BA902B7, True)
    unsampled = ids.traceparent_from(f"00-{TRACE}-00f067aa0ba902b7-02")
    assert unsampled == ids.Traceparent(TRACE, 0x00F067AA0BA902B7, False)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "nonsense",
        f"00-{TRACE.upper()}-00f067aa0ba902b7-01",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-00f067aa0ba902b7-01",
        f"00-{TRACE}-00f067aa0ba902b7-01-extra",
    ],
)
def test_a_malformed_traceparent_gives_none(header: str | None) -> None:
    assert ids.traceparent_from(header) is None


def test_new_ids_have_the_form_they_promise() -> None:
    assert ids.TRACE_ID.fullmatch(ids.new_trace_id())
    spans = {ids.new_span_id() for _ in range(1000)}
    assert len(spans) == 1000
    assert all(0 < span < 2**63 for span in spans)
    rooms = {ids.new_room() for _ in range(1000)}
    assert len(rooms) == 1000
    assert all(0 < room < 2**63 for room in rooms)


@pytest.mark.promise("S5-440")
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_rooms_fill_all_data_parallel_ranks(ranks: int) -> None:
    """A rank without any has a chance of 10**-57."""
    assert {ids.new_room() % ranks for _ in range(1000)} == set(range(ranks))


def test_a_counter_starts_at_one_and_never_repeats() -> None:
    next_id = ids.counter()
    assert [next_id() for _ in range(3)] == [1, 2, 3]
