"""Token payloads: what a relay may do with them without opening them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.v1 import common_pb2
from tandem.wire import columns

ROW = st.tuples(
    st.integers(1, 2**40), st.integers(1, 4), st.text(max_size=8), st.integers(0, 2**20)
)


def _serialize(rows: list[tuple[int, int, str, int]]) -> bytes:
    draft = columns.Draft()
    for sequence, count, text, token in rows:
        draft.add(sequence, 0, count, text, [token] * count)
        draft.finishes.append(common_pb2.Finish(sequence=sequence, stop_reason=text))
    return draft.serialize()


@given(rows=st.lists(ROW, max_size=20), cut=st.integers(0, 20))
def test_two_payloads_joined_are_the_payload_of_both(
    rows: list[tuple[int, int, str, int]], cut: int
) -> None:
    joined = _serialize(rows[:cut]) + _serialize(rows[cut:])
    assert columns.parse(joined) == columns.parse(_serialize(rows))


def test_a_row_without_token_ids_takes_none_of_another_rows() -> None:
    draft = columns.Draft()
    draft.add(1, 0, 2, "ab")
    draft.add(2, 0, 2, "", [7, 8])
    parsed = columns.parse(draft.serialize())
    assert list(parsed.sequence) == [1, 2]
    assert list(parsed.token_count) == [2, 2]
    assert list(parsed.token_id) == [7, 8]


def test_nothing_is_no_bytes() -> None:
    assert columns.Draft().serialize() == b""
